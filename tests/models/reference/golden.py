"""Writes samples/models/numbers-en-de/expected/samples.json: a few inputs with encoder rows, logits and greedy
outputs, to find where another program departs.

Values are float32, rounded to five decimals. The decoder is fed <s> and the reference; the last row of each depends
on everything before it.
"""
import argparse
import json
from pathlib import Path

import torch

from samples import TEXT
from batches import Batch
from generate import read_tsv
from greedy import Encoded, decode
from model import MECHANISMS, ROLES, per_role
from vocabulary import Tokenizer, load
from weights import load_model, manifest_alpha, sha256

LISTS = (0, 1, 7, 40, 400, 403, 800, 950, 1200, 1301, 1600, 1999)
PLACEMENTS = [(m, m, m) for m in MECHANISMS] + [("cosformer", "relu", "leap")]


def rounded(row):
    return [round(value, 5) for value in row.tolist()]


@torch.no_grad()
def case(model, pair, row, alpha):
    placement, batch = per_role(*row), Batch([pair])
    encoded = model.encode(batch.source, batch.lengths, placement)
    logits = model.decode(batch.entered, encoded, batch.lengths, alpha * batch.lengths, placement)
    output = decode(model, [pair], Encoded(model, [pair], placement), placement, alpha)[0]
    return {"encoder_last": rounded(encoded[0, -1]), "logits_last": rounded(logits[0, -1]), "greedy": output.ids}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TEXT / "expected" / "samples.json")
    options = parser.parse_args()
    model, tokenizer, alpha = load_model(), Tokenizer(load()), manifest_alpha()
    lines, samples = read_tsv(TEXT / "test.tsv"), []
    for index in LISTS:
        english, german = lines[index]
        pair = tokenizer.encode(english), tokenizer.encode(german)
        outputs = {"/".join(row): case(model, pair, row, alpha) for row in PLACEMENTS}
        samples.append({"test_list": index, "text": english, "source": Batch([pair]).source[0].tolist(),
                        "entered": Batch([pair]).entered[0].tolist(), "outputs": outputs})
    options.out.parent.mkdir(exist_ok=True)
    content = {"weights": sha256(), "alpha": alpha, "order": ROLES,
               "samples": samples}
    options.out.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
