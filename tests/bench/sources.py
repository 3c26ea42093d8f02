"""Sources of many sessions read one by one and together, in turns in one process: milliseconds for all, and their ratio.

    PYTHONPATH=build/lib/attnkit/python python3 tests/bench/sources.py [--types f32,int8] [--threads 1,2] [--sources 16] [--lengths 64] [--rounds 9]
"""
import argparse
import random
import tempfile
import time

import attnkit
import base


def one_by_one(sessions, sources):
    for session, source in zip(sessions, sources):
        session.read(source)


def timed(model, sources, read):
    sessions = [attnkit.Session(model, 1) for _ in sources]
    begin = time.perf_counter()
    read(sessions, sources)
    seconds = time.perf_counter() - begin
    saved = sessions[0].save()
    for session in sessions:
        session.close()
    return 1000 * seconds, saved


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", default="f32,int8")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--sources", type=int, default=16)
    parser.add_argument("--lengths", default="64")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    numbers = random.Random(1)
    print("| weights | threads | tokens | one by one, ms | together, ms | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.types.split(","):
            for threads in map(int, given.threads.split(",")):
                manifest = base.write(folder, "model.toml", f'seed = 1\ntype = "{kind}"')
                model = attnkit.Model(attnkit.Runtime(threads=threads), manifest)
                for lengths in given.lengths.split(","):
                    # "8-64": any length in between
                    least, most = (map(int, lengths.split("-")) if "-" in lengths else 2 * [int(lengths)])
                    sources = [[numbers.randrange(3, base.VOCABULARY) for _ in range(numbers.randint(least, most) - 1)] + [base.END]
                               for _ in range(given.sources)]
                    alone, together, ratios = [], [], []
                    for round in range(given.rounds + 1):
                        a, saved = timed(model, sources, one_by_one)
                        b, same = timed(model, sources, attnkit.read_all)
                        assert saved == same, "the states differ"
                        if round:  # the first one makes plans and memory
                            alone.append(a), together.append(b), ratios.append(a / b)
                    print(f"| {kind} | {threads} | {lengths} | {base.quartiles(alone)} | {base.quartiles(together)} "
                          f"| {base.quartiles(ratios, 2)} |", flush=True)
                model.close()


if __name__ == "__main__":
    main()
