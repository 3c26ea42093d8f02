"""Greedy exact match of all 64 placements by bucket, and the expected outputs for tests of other programs.

Writes results.json of samples/models/numbers-en-de, and into its expected/: test-crc32.bin (little-endian uint32,
[placement][test list], CRC-32 of the output ids as little-endian int32, without <s>, with </s>) and test-crc32.json,
which names its rows and lists the test lists whose smallest top-1 to top-2 logit distance is below 1e-5 (ties) and 1e-4 (near).
"""
import argparse
import itertools
import json
import multiprocessing
import os
import platform
import struct
import time
import zlib
from pathlib import Path

import torch

from samples import TEXT
from generate import BUCKETS, SEED, bucket_of, read_tsv
from greedy import Encoded, decode
from model import MECHANISMS, ROLES, per_role
from vocabulary import EOS, Tokenizer, load
from weights import load_model, manifest_alpha, sha256

SPLITS = ("dev", "test")


class Split:
    def __init__(self, name, tokenizer, limit):
        lines = read_tsv(TEXT / f"{name}.tsv")
        lines = lines[:: -(-len(lines) // limit)] if limit else lines
        self.pairs = [(tokenizer.encode(en), tokenizer.encode(de)) for en, de in lines]
        self.buckets = [bucket_of(en) for en, _ in lines]

    def shares(self, outputs):
        """Percent exact by bucket, then over all."""
        right = [o.ids == target + [EOS] for o, (_, target) in zip(outputs, self.pairs)]
        by_bucket = [[r for r, b in zip(right, self.buckets) if b == bucket] for bucket in range(len(BUCKETS))]
        return [round(100 * sum(rows) / len(rows), 2) for rows in by_bucket + [right]]


def crc32(ids):
    return zlib.crc32(struct.pack(f"<{len(ids)}i", *ids))


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return f"{cpu}, {os.cpu_count()} cores, PyTorch {torch.__version__}, Python {platform.python_version()}"


@torch.no_grad()
def evaluate(encoder, limit):
    """Of the 16 placements that share an encoder: [(mechanisms, {split: [Greedy]}, {split: percentages})]."""
    torch.set_num_threads(1)
    model, tokenizer, alpha, found = load_model(), Tokenizer(load()), manifest_alpha(), []
    splits = {name: Split(name, tokenizer, limit) for name in SPLITS}
    encoded = {name: Encoded(model, split.pairs, per_role(encoder, encoder, encoder))
               for name, split in splits.items()}
    for decoder, cross in itertools.product(MECHANISMS, repeat=2):
        row, start = (encoder, decoder, cross), time.monotonic()
        outputs = {name: decode(model, split.pairs, encoded[name], per_role(*row), alpha)
                   for name, split in splits.items()}
        shares = {name: split.shares(outputs[name]) for name, split in splits.items()}
        print(*row, *shares.values(), f"{time.monotonic() - start:.0f} s", flush=True)
        found.append((row, outputs, shares))
    return found


def write_expected(rows, checksums, margins):
    folder = TEXT / "expected"
    folder.mkdir(exist_ok=True)
    (folder / "test-crc32.bin").write_bytes(b"".join(struct.pack(f"<{len(c)}I", *c) for c in checksums))

    def below(bound):
        found = {"/".join(row): [i for i, m in enumerate(ms) if m < bound] for row, ms in zip(rows, margins)}
        return {row: lists for row, lists in found.items() if lists}
    index = {"weights": sha256(), "order": ROLES,
             "placements": ["/".join(row) for row in rows], "lists": len(checksums[0]),
             "ties": below(1e-5), "near": below(1e-4)}
    (folder / "test-crc32.json").write_text(json.dumps(index, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, help="about this many lists of each split; writes nothing")
    parser.add_argument("--training", type=Path, help="checkpoint whose steps, minutes and seed go into results.json")
    options = parser.parse_args()
    results = {"weights": sha256(), "alpha": manifest_alpha(), "machine": machine(), "data_seed": SEED,
               "buckets": [f"{low}-{high}" for low, high in BUCKETS] + ["all"], "placements": []}
    if options.training:
        saved = torch.load(options.training, weights_only=True)
        results["training"] = {"steps": saved["step"], "minutes": round(saved["seconds"] / 60, 1),
                               "seed": saved["seed"]}
    rows, checksums, margins = [], [], []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        found = pool.starmap(evaluate, [(encoder, options.limit) for encoder in MECHANISMS], chunksize=1)
    for row, outputs, shares in itertools.chain(*found):
        results["placements"].append(dict(zip(ROLES, row)) | shares)
        rows.append(row)
        checksums.append([crc32(o.ids) for o in outputs["test"]])
        margins.append([o.margin for o in outputs["test"]])
    if not options.limit:
        (TEXT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        write_expected(rows, checksums, margins)


if __name__ == "__main__":
    main()
