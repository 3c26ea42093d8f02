"""The error of predicted target lengths, and its effect on all-cosformer: the tables of docs/benchmarks/length.md.

measure_length.py ATTNKIT [--splits dev,test] [--encoders]
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUCKETS = [(1, 2), (3, 4), (5, 8), (9, 12), (13, 16)]
LENGTHS = {"ratio": None, "lut": 'predict = "lut"\nlut = "lengths.tsv"\ndampening = 1.0\n',
           "network": 'predict = "network"\nfile = "length.safetensors"\n', "reference": 'predict = "reference"\n'}


def manifest(encoder, length):
    """The shipped one with cosformer in the decoder, from any folder."""
    text = (HERE / "model.toml").read_text(encoding="utf-8")
    for role, mechanism in (("encoder.self", encoder), ("decoder.self", "cosformer"), ("decoder.cross", "cosformer")):
        text = re.sub(f'"{role}" = "[a-z]+"', f'"{role}" = "{mechanism}"', text, count=1)
    if LENGTHS[length]:
        text = re.sub(r"\[length\]\n(.*\n)*?\n", lambda _: f"[length]\n{LENGTHS[length]}\n", text)
    for name in ("vocab.txt", "numbers-en-de.safetensors", "lengths.tsv", "length.safetensors"):
        text = text.replace(f'"{name}"', f'"{HERE / name}"')
    return text


def run(attnkit, split, encoder, length):
    """The results of attnkit run on a split."""
    pairs = [line.split("\t") for line in (HERE / f"{split}.tsv").read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        for name, column in (("en.txt", 0), ("de.txt", 1)):
            (Path(folder) / name).write_text("".join(pair[column] + "\n" for pair in pairs), encoding="utf-8")
        path = Path(folder) / "model.toml"
        path.write_text(manifest(encoder, length), encoding="utf-8")
        done = subprocess.run([attnkit, "run", str(path), "--file", f"{folder}/en.txt", "--target-file",
                               f"{folder}/de.txt", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["results"]


def bucket(result):
    phrases = result["input"].count(";") + 1
    return next(i for i, (low, high) in enumerate(BUCKETS) if low <= phrases <= high)


def by_bucket(results, value):
    """Means by bucket, then of all."""
    groups = [[value(r) for r in results if bucket(r) == b] for b in range(len(BUCKETS))]
    groups.append([value(r) for r in results])
    return [sum(group) / len(group) for group in groups]


def error(result):
    return abs(result["target_length"] - result["reference_tokens"]) / result["reference_tokens"]


def row(split, name, results):
    errors = " | ".join(f"{100 * e:.2f}" for e in by_bucket(results, error))
    exact = by_bucket(results, lambda r: r["exact"])[len(BUCKETS) - 1]
    whole = sum(abs(r["target_length"] - r["reference_tokens"]) < 0.5 for r in results) / len(results)
    beyond = sum(r["beyond_target_length"] for r in results)
    print(f"| {split} | {name} | {errors} | {100 * whole:.1f} | {100 * exact:.1f} | {beyond} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit")
    parser.add_argument("--splits", default="dev,test")
    parser.add_argument("--encoders", action="store_true", help="the network behind each mechanism in encoder.self")
    options = parser.parse_args()
    names = " | ".join([f"{low}-{high}" for low, high in BUCKETS] + ["all"])
    print(f"| set | {'encoder.self' if options.encoders else 'lengths'} | {names} | right | exact 13-16 | beyond |")
    print("|---" * (5 + len(BUCKETS) + 1) + "|")
    for split in options.splits.split(","):
        if options.encoders:
            for encoder in ("softmax", "relu", "cosformer", "leap"):
                row(split, encoder, run(options.attnkit, split, encoder, "network"))
        else:
            for length in LENGTHS:
                row(split, length, run(options.attnkit, split, "cosformer", length))


if __name__ == "__main__":
    main()
