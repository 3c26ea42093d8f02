"""How well target lengths are predicted by a ratio, a table and a network, and what that does to cosformer everywhere: python lengths.py ATTNKIT FOLDER OUT

FOLDER is what corpus.py made.  OUT/lengths.tsv gets how many pieces of the target each piece of the source makes on average, estimated on train.tsv: the
lengths of Poisson variables whose means add up, by expectation and maximisation, a rare piece drawn to the mean of all.  OUT/length.safetensors
is length.py's.  The rows are of test.tsv.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import sentencepiece
from digests import hashes
from evaluate import interval, resampled, written
from placements import ROLES, placed
from sacrebleu.metrics import BLEU

MODEL = pathlib.Path(__file__).resolve().parent / "model.toml"
ROUNDS, PRIOR = 60, 5.0  # of the estimate; a piece counts as seen so many times more, with the mean
BUCKETS = ((1, 10), (11, 20), (21, 40), (41, 2048))  # pieces of the reference


def estimated(rows, processor):
    """The mean of each piece's share of the target."""
    sources, targets = (processor.encode([row[side] for row in rows]) for side in (0, 1))
    end, lengths = processor.eos_id(), np.array([len(target) + 1 for target in targets], float)
    pieces = np.concatenate([[*source, end] for source in sources])
    of = np.repeat(np.arange(len(rows)), [len(source) + 1 for source in sources])
    counts, mean = np.bincount(pieces, minlength=len(processor)), lengths.sum() / len(pieces)
    made = np.full(len(processor), mean)
    for _ in range(ROUNDS):
        expected = np.bincount(of, made[pieces])
        made = (PRIOR * mean + made * np.bincount(pieces, (lengths / expected)[of], len(processor))) / (PRIOR + counts)
    return made


def results(attnkit, manifest, sources, references):
    with tempfile.TemporaryDirectory() as folder:
        inputs, targets = written(pathlib.Path(folder) / "inputs", sources), written(pathlib.Path(folder) / "targets", references)
        said = subprocess.run([attnkit, "run", manifest, "--file", inputs, "--target-file", targets, "--json", "--progress", "none"], check=True,
                              stdout=subprocess.PIPE).stdout
    return json.loads(said)["results"]


def row(name, found, references, base, seed):
    """A line of the table; base: BLEU of the samples of the first one."""
    true = np.array([r["reference_tokens"] for r in found])
    errors = 100 * abs(np.array([r["target_length"] for r in found]) - true) / true
    cells = [f"{errors[(true >= low) & (true <= high)].mean():.1f}" for low, high in BUCKETS]
    low, high = interval(errors[np.random.default_rng(seed).integers(0, len(errors), (1000, len(errors)))].mean(1))
    score, sampled = resampled(BLEU(), [r["output"] for r in found], references, seed)
    whole, samples = base.setdefault("BLEU", (score.score, sampled))
    d = interval(sampled - samples)
    beyond = sum(r["beyond_target_length"] for r in found)
    print(f"| {name} | {' | '.join(cells)} | {errors.mean():.2f} ({low:.2f} to {high:.2f}) | {score.score:.2f} | "
          f"{score.score - whole:+.2f} ({d[0]:+.2f} to {d[1]:+.2f}) | {beyond} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("folder", type=pathlib.Path, help="what corpus.py made")
    parser.add_argument("out", type=pathlib.Path, help="where the table goes and the network is")
    parser.add_argument("--lines", type=int, help="only so many of test.tsv, from its beginning")
    parser.add_argument("--seed", type=int, default=1, help="of the samples (%(default)s)")
    options = parser.parse_args()
    read = {name: [line.split("\t") for line in (options.folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()] for name in ("train", "test")}
    processor = sentencepiece.SentencePieceProcessor(model_file=str(options.folder / "pieces.model"))
    table = (options.out / "lengths.tsv").resolve()
    table.write_text("".join(f"{processor.id_to_piece(i)}\t{mean:.4f}\n" for i, mean in enumerate(estimated(read["train"], processor))), encoding="utf-8")
    text = re.sub(r'(?m)^"(encoder|decoder)\.(self|cross)" = ".*\n', "", MODEL.read_text(encoding="utf-8"))
    sources, references = map(list, zip(*read["test"][:options.lines]))
    names = " | ".join(f"{low}-{high}" for low, high in BUCKETS)
    hashes(MODEL, options.folder / "test.tsv", table, table.with_name("length.safetensors"))
    print(f"{len(sources)} lines\n\n| lengths | {names} | all (95 %) | BLEU | to ratio (95 %) | beyond |\n|{'---|' * (5 + len(BUCKETS))}")
    base = {}
    for name, says in {"ratio": None, "lut": f'predict = "lut"\nlut = "{table}"',
                       "network": f'predict = "network"\nfile = "{table.with_name("length.safetensors")}"', "reference": 'predict = "reference"'}.items():
        said = re.sub(r'predict = "ratio"\nalpha = .*', says, text) if says else text
        with placed(MODEL, said, dict.fromkeys(ROLES, "cosformer")) as manifest:
            row(name, results(options.attnkit, manifest, sources, references), references, base, options.seed)


if __name__ == "__main__":
    main()
