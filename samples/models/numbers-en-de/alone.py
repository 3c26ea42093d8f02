"""How well shared weights rank placements: exact match of placements trained alone beside the shared estimate.

    for p in softmax/softmax/softmax leap/leap/leap ...; do
      python train.py --placement $p --steps 2400 --out alone/${p//\//-}
    done
    python alone.py alone

Reads the checkpoints in the folder, writes alone.json and prints the table and Kendall's tau-b (SciPy).
"""
import argparse
import json
from pathlib import Path

import torch
from scipy.stats import kendalltau

from generate import BUCKETS, bucket_of, read_tsv
from model import Model, per_role
from scoring import evaluation_batches, exact
from vocabulary import Tokenizer, load
from weights import HERE, load_model, manifest_alpha

SPLITS = ("dev", "test")


def pairs_of(split, tokenizer):
    return [(tokenizer.encode(en), tokenizer.encode(de)) for en, de in read_tsv(HERE / f"{split}.tsv")]


def shares(model, batches, buckets, placement, alpha):
    """Percent exact on the longest bucket and on all lists."""
    right = exact(model, batches, placement, alpha)
    longest = [r for i, r in right.items() if buckets[i] == len(BUCKETS) - 1]
    return {"longest": round(100 * sum(longest) / len(longest), 2),
            "all": round(100 * sum(right.values()) / len(right), 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folders = sorted(f for f in parser.parse_args().folder.iterdir() if (f / "checkpoint.pt").exists())
    tokenizer, shared, alpha = Tokenizer(load()), load_model(), manifest_alpha()
    splits = {s: (evaluation_batches(pairs_of(s, tokenizer)), [bucket_of(en) for en, _ in read_tsv(HERE / f"{s}.tsv")])
              for s in SPLITS}
    rows = []
    for folder in folders:
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        alone = Model(len(tokenizer.tokens))
        alone.load_state_dict(saved["average"])
        names = folder.name.split("-")
        row = {"placement": "/".join(names), "steps": saved["step"], "seed": saved["seed"]}
        for split, (batches, buckets) in splits.items():
            row[split] = {"alone": shares(alone, batches, buckets, per_role(*names), saved["alpha"]),
                          "shared": shares(shared, batches, buckets, per_role(*names), alpha)}
        rows.append(row)
        print(row, flush=True)
    taus = {}
    for split in SPLITS:
        for part in ("longest", "all"):
            tau = kendalltau(*([r[split][kind][part] for r in rows] for kind in ("shared", "alone")))
            taus[f"{split} {part}"] = {"tau": round(tau.statistic, 3), "p": round(tau.pvalue, 3)}
    (HERE / "alone.json").write_text(json.dumps({"placements": rows, "kendall": taus}, indent=1) + "\n")
    print(json.dumps(taus, indent=1))


if __name__ == "__main__":
    main()
