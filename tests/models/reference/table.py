"""Writes results.json as docs/benchmarks/numbers-en-de.md: exact match of all placements by bucket."""
import json

from samples import MODELS, TEXT

OUT = MODELS.parents[1] / "docs" / "benchmarks" / "numbers-en-de.md"


def main():
    results = json.loads((TEXT / "results.json").read_text())
    roles = ["encoder.self", "decoder.self", "decoder.cross"]
    lines = ["# numbers-en-de: all 64 placements", "",
             "Greedy exact match in percent on test (dev in brackets) by the number of phrases in a list, 400 lists a bucket,",
             "one set of weights. Made by `evaluate.py` and `table.py` in `tests/models/reference`.", "",
             f"Machine: {results['machine']}. Weights: sha256 {results['weights'][:16]}..., "
             f"{results['training']['steps']} steps, seed {results['training']['seed']}.", "",
             "| " + " | ".join(roles + results["buckets"]) + " |", "|---" * (3 + len(results["buckets"])) + "|"]
    for row in sorted(results["placements"], key=lambda row: (-row["dev"][-2], -row["test"][-2])):
        cells = [f"{test:.2f} ({dev:.2f})" for test, dev in zip(row["test"], row["dev"])]
        lines.append("| " + " | ".join([row[role] for role in roles] + cells) + " |")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
