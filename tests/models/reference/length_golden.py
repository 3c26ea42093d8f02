"""Writes samples/models/numbers-en-de/expected/length.json: what the shipped table and network predict for some lists,
the network behind every mechanism in the encoder. Needs the attnkit package on PYTHONPATH, for the network's class.
"""
import json

import torch
from safetensors.torch import load_file

from samples import TEXT
from batches import Batch
from generate import read_tsv
from length import NETWORK, TABLE, WIDTH, Network
from model import MECHANISMS, per_role
from vocabulary import EOS, Tokenizer, load
from weights import load_model, sha256

COUNT = 24
GOLDEN = TEXT / "expected" / "length.json"


def load_network(path=NETWORK):
    network = Network(WIDTH)
    network.load_state_dict({name.removeprefix("length."): value.float() for name, value in load_file(path).items()})
    return network.eval()


def read_table(tokens, path=TABLE):
    """[vocabulary] means by id; tokens that the table lacks count with its mean."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    mean = sum(float(value) for _, value in lines) / len(lines)
    means = {token: float(value) for token, value in lines}
    return [means.get(token, mean) for token in tokens]


@torch.no_grad()
def main():
    model, network, tokenizer, samples = load_model(), load_network(), Tokenizer(load()), []
    means = read_table(tokenizer.tokens)
    lines = read_tsv(TEXT / "test.tsv")
    for english, _ in lines[::len(lines) // COUNT]:
        ids = tokenizer.encode(english)
        batch, found, nearest = Batch([(ids, [])]), {}, 1.0
        for mechanism in MECHANISMS:
            rows = model.encode(batch.source, batch.lengths, per_role(mechanism, mechanism, mechanism))
            exact = network(rows, batch.lengths).exp() - 1
            nearest = min(nearest, float((exact - exact.floor() - 0.5).abs().min()))
            found[mechanism] = int(network.durations(rows, batch.lengths).sum())
        # Other programs may round a duration that is a half but for rounding the other way.
        if nearest > 1e-3:
            samples.append({"text": english, "lut": sum(means[i] for i in ids + [EOS]), "network": found})
    content = {"network": sha256(NETWORK), "samples": samples}
    GOLDEN.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
