"""Tokens a second of one session by placement and length: python speed.py ENCODER/SELF/CROSS ... [--threads N] [--rounds N]

So many tokens of source are read in one call and as many of target written one by one; both count.  Placements take turns in each round, and are divided by
the first one of the same round.  Medians with quartiles.  PYTHONPATH has the attnkit package.
"""
import argparse
import pathlib
import statistics
import tempfile
import time

import attnkit
from digests import hashes
from memory import HERE, LENGTHS, placed


def seconds(model, length):
    begin = time.perf_counter()
    with attnkit.Session(model) as session:
        session.read([7] * length)
        for _ in range(length):
            session.step(7)
    return time.perf_counter() - begin


def middle(values, digits):
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", nargs="+", metavar="ENCODER/SELF/CROSS")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: quartiles need 2 or more")
    cells = {placement: [] for placement in options.placements}
    with tempfile.TemporaryDirectory() as folder:
        runtime = attnkit.Runtime(threads=options.threads)
        models = {placement: attnkit.Model(runtime, placed(pathlib.Path(folder), placement)) for placement in options.placements}
        for length in LENGTHS:
            for model in models.values():
                seconds(model, min(length, 64))
            rounds = [{placement: seconds(model, length) for placement, model in models.items()} for _ in range(options.rounds)]
            for placement, row in cells.items():
                row.append(f"{middle([length / of[placement] for of in rounds], 0)}; "
                           f"{middle([of[options.placements[0]] / of[placement] for of in rounds], 2)}")
    hashes(HERE / "model.toml")
    print(f"| placement | {' | '.join(map(str, LENGTHS))} |\n|{'---|' * (1 + len(LENGTHS))}")
    for placement, row in cells.items():
        print(f"| {placement} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
