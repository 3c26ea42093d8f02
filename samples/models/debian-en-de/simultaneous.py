"""BLEU against lag of placements under wait-k, beside their softmax: python simultaneous.py ATTNKIT MANIFEST TSV ENCODER/SELF/CROSS ...

A unit of the source is a token.  Three tables: BLEU, with paired differences to the first placement, then AL, LAAL and DAL in words, and the same
with the time of computing, as attnkit stream has them.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

from digests import hashes
from evaluate import Journal, interval, resampled, written
from placements import PLAIN, ROLES, placed, three
from sacrebleu.metrics import BLEU


def simulated(attnkit, manifest, k, sources, references):
    """The outputs, and their lags by name, without and with the time of computing."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, targets = written(pathlib.Path(folder) / "inputs", sources), written(pathlib.Path(folder) / "targets", references)
        said = subprocess.run([attnkit, "stream", manifest, "--policy", f"wait-k:{k}", "--unit", "token", "--file", inputs, "--target-file", targets,
                               "--replay", "--json", "--progress", "none"], check=True, stdout=subprocess.PIPE).stdout
    made = json.loads(said)
    return [r["output"] for r in made["results"]], [made["summary"][lags] for lags in ("latency", "computation_aware")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("manifest", type=pathlib.Path, help="with softmax as the default of [attention]")
    parser.add_argument("data", type=pathlib.Path, help="lines of source TAB reference")
    parser.add_argument("placements", type=three, nargs="+", metavar="ENCODER/SELF/CROSS")
    parser.add_argument("--k", type=lambda text: [int(k) for k in text.split(",")], default=[1, 3, 5, 7, 9], help="(1,3,5,7,9)")
    parser.add_argument("--lines", type=int, help="only so many, from the file's beginning")
    parser.add_argument("--seed", type=int, default=1, help="of the samples (%(default)s)")
    parser.add_argument("--journal", type=pathlib.Path, help="what is there already, and where new outputs go")
    options = parser.parse_args()
    rows = [line.split("\t") for line in options.data.read_text(encoding="utf-8").splitlines()][:options.lines]
    sources, references = map(list, zip(*rows))
    # The roles' own lines make place for those of each placement.
    text = re.sub(r'(?m)^"(encoder|decoder)\.(self|cross)" = ".*\n', "", options.manifest.read_text(encoding="utf-8"))
    if PLAIN not in text:
        parser.error(f"{options.manifest}: [attention] must say {PLAIN.strip()}")
    known, journal = {}, Journal(options.journal)
    for placement in options.placements:
        with placed(options.manifest, text, dict(zip(ROLES, placement.split("/")))) as manifest:
            for k in options.k:
                known[placement, k] = journal.value(simulated, options.attnkit, manifest, k, sources, references)
    heading = " | ".join(f"k = {k}" for k in options.k)
    hashes(options.manifest, options.data)
    print(f"{len(rows)} lines\n\n| placement | {heading} |\n|{'---|' * (1 + len(options.k))}")
    base = {}
    for placement in options.placements:
        cells = []
        for k in options.k:
            score, scores = resampled(BLEU(), known[placement, k][0], references, options.seed)
            first = k not in base
            whole, sampled = base.setdefault(k, (score.score, scores))
            low, high = interval(scores if first else scores - sampled)
            cells.append(f"{score.score:.2f} ({low:.1f} to {high:.1f})" if first else f"{score.score - whole:+.2f} ({low:+.2f} to {high:+.2f})")
        print(f"| {placement} | {' | '.join(cells)} |")
    for computing in range(2):
        print(f"\n| placement | {heading} |\n|{'---|' * (1 + len(options.k))}")
        for placement in options.placements:
            lags = (known[placement, k][1][computing] for k in options.k)
            print(f"| {placement} | {' | '.join(' / '.join(f'{lag[name]:.2f}' for name in ('al', 'laal', 'dal')) for lag in lags)} |")


if __name__ == "__main__":
    main()
