"""Estimates lengths.tsv and trains length.safetensors: what predicts the target's length where a ratio is too coarse.

Phrases are apportioned to their tokens: least squares over single phrases gives every source token the mean number of
target tokens it makes (lengths.tsv); a phrase's true length is then given out in whole numbers by largest remainder
over these means. The sums are exact, and the same word gets the same number in the same surroundings, which is all the
network needs; no alignment is claimed. Separators and </s> make one target token each.

The network sees the frozen encoder under placements drawn at random, so that one predictor serves all of them.
"""
import argparse
import json
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from batches import Batch, TrainingData, by_length, padded
from generate import read_tsv
from model import LAYERS, MECHANISMS, WIDTH, per_role
from vocabulary import EOS, PAD, Tokenizer, load
from weights import HERE, load_model, sha256

TABLE, NETWORK = HERE / "lengths.tsv", HERE / "length.safetensors"
CHANNELS, KERNEL, DROPOUT = 128, 3, 0.1
GOLDEN = HERE / "expected" / "length.json"
RIDGE = 1e-6  # a phrase: some words only come together, so their means are no more than shares


class Network(nn.Module):
    """Encoder rows to log(duration + 1): two convolutions, each with ReLU, layer norm and dropout, then a line."""

    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleDict({"1": _convolution(WIDTH), "2": _convolution(CHANNELS)})
        self.out = nn.Linear(CHANNELS, 1)

    def forward(self, rows, lengths):
        """rows [B,M,D]; padding counts as zeros, as what lies before the first row does."""
        real = (torch.arange(rows.shape[1]) < lengths[:, None])[..., None]
        for layer in self.conv.values():
            x = F.relu(layer((rows * real).transpose(1, 2)).transpose(1, 2))
            rows = F.dropout(layer.norm(x), DROPOUT, self.training)
        return self.out(rows).squeeze(-1)

    def durations(self, rows, lengths):
        """Whole numbers, zero on padding."""
        real = torch.arange(rows.shape[1]) < lengths[:, None]
        return ((self(rows, lengths).exp() - 1).round().clamp(min=0) * real).long()


def _convolution(inputs):
    layer = nn.Conv1d(inputs, CHANNELS, KERNEL, padding=KERNEL // 2)
    layer.norm = nn.LayerNorm(CHANNELS)
    return layer


def load_network(path=NETWORK):
    network = Network()
    network.load_state_dict({name.removeprefix("length."): value.float() for name, value in load_file(path).items()})
    return network.eval()


def read_table(tokens, path=TABLE):
    """[vocabulary] means by id; tokens that the table lacks count with its mean."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    mean = sum(float(value) for _, value in lines) / len(lines)
    means = {token: float(value) for token, value in lines}
    return [means.get(token, mean) for token in tokens]


def estimate(pool, tokens):
    """{id: mean}, by ridge regression of phrase lengths on token counts; negative means are left at 0."""
    seen = sorted({i for source, _ in pool for i in source})
    column = {token: c for c, token in enumerate(seen)}
    counts = torch.zeros(len(pool), len(seen), dtype=torch.float64)
    for row, (source, _) in enumerate(pool):
        for i in source:
            counts[row, column[i]] += 1
    lengths = torch.tensor([len(target) for _, target in pool], dtype=torch.float64)
    active = torch.ones(len(seen), dtype=torch.bool)
    while True:  # tokens whose mean comes out negative are taken out one by one
        a = counts[:, active]
        solved = torch.linalg.solve(a.T @ a + RIDGE * len(pool) * torch.eye(a.shape[1], dtype=a.dtype), a.T @ lengths)
        if solved.min() >= 0:
            break
        active[active.nonzero()[solved.argmin()]] = False
    means = torch.zeros(len(seen), dtype=torch.float64)
    means[active] = solved
    return {token: float(means[column[token]]) for token in seen}


def apportion(source, length, means):
    """Whole numbers for the tokens of a phrase that sum to its length, by largest remainder."""
    expected = [means[i] for i in source]
    given = [int(e) for e in expected]
    order = sorted(range(len(source)), key=lambda i: given[i] - expected[i])
    rest, at = length - sum(given), 0
    while rest > 0:
        given[order[at % len(order)]] += 1
        rest, at = rest - 1, at + 1
    at = 0
    while rest < 0:
        i = order[-1 - at % len(order)]
        if given[i] > 0:
            given[i] -= 1
            rest += 1
        at += 1
    return given


class Lists:
    """Batches of lists with the duration of every source token, </s> included."""

    def __init__(self, data, means, seed):
        self.pool = [(source, apportion(source, len(target), means)) for source, target in data.pool]
        self.separator, self.seed = data.separator, seed

    def batches(self, index, tokens):
        rng = random.Random(f"{self.seed}:length:{index}")
        pairs = []
        for _ in range(2048):
            source, durations = [], []
            for ids, own in rng.choices(self.pool, k=rng.randint(1, 16)):
                source += ids + [self.separator]
                durations += own + [1]
            pairs.append((source[:-1] + [EOS], durations))
        groups = by_length([(pair[0], pair[0]) for pair in pairs], tokens)
        rng.shuffle(groups)
        for group in groups:
            source = padded([pairs[i][0] for i in group])
            yield source, (source != PAD).sum(1), padded([pairs[i][1] for i in group])


def draw_encoder(rng):
    """Half of them one mechanism, half one per layer."""
    drawn = [rng.choice(MECHANISMS)] * LAYERS if rng.random() < 0.5 else rng.choices(MECHANISMS, k=LAYERS)
    return {("encoder.self", layer + 1): mechanism for layer, mechanism in enumerate(drawn)}


def train(data, means, steps, tokens, seed):
    torch.manual_seed(seed)
    model, network, lists = load_model(), Network(), Lists(data, means, seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, betas=(0.9, 0.98))
    rng, step, index, start, sums = random.Random(f"{seed}:encoders"), 0, 0, time.monotonic(), [0.0, 0]
    while step < steps:
        for source, lengths, durations in lists.batches(index, tokens):
            with torch.no_grad():
                rows = model.encode(source, lengths, draw_encoder(rng))
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1.0, (step + 1) / 50, 2 * (1 - step / steps))
            real = source != PAD
            found, wanted = network(rows, lengths)[real], (durations[real] + 1.0).log()
            loss = F.l1_loss(found, wanted) + F.mse_loss(found, wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step, sums = step + 1, [sums[0] + float(loss.detach()), sums[1] + 1]
            if step % 50 == 0 or step == steps:
                print(f"step {step}, {time.monotonic() - start:.0f} s, loss {sums[0] / sums[1]:.4f}", flush=True)
                sums = [0.0, 0]
            if step == steps:
                break
        index += 1
    return network.eval()


@torch.no_grad()
def write_golden(count=24):
    """What the shipped files predict for some lists, behind every mechanism in the encoder."""
    model, network, tokenizer, samples = load_model(), load_network(), Tokenizer(load()), []
    means = read_table(tokenizer.tokens)
    lines = read_tsv(HERE / "test.tsv")
    for english, _ in lines[::len(lines) // count]:
        ids = tokenizer.encode(english)
        batch, found, nearest = Batch([(ids, [])]), {}, 1.0
        for mechanism in MECHANISMS:
            rows = model.encode(batch.source, batch.lengths, per_role(mechanism, mechanism, mechanism))
            exact = network(rows, batch.lengths).exp() - 1
            nearest = min(nearest, float((exact - exact.floor() - 0.5).abs().min()))
            found[mechanism] = int(network.durations(rows, batch.lengths).sum())
        # Where a duration is a half but for rounding, other programs may round it the other way.
        if nearest > 1e-3:
            samples.append({"text": english, "lut": sum(means[i] for i in ids + [EOS]), "network": found})
    content = {"network": sha256(NETWORK), "samples": samples}
    GOLDEN.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=3800, help="source tokens a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", type=int, default=60_000, help="phrases of the training data")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--golden", action="store_true", help="write expected/length.json of the shipped files instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.golden:
        return write_golden()
    tokens = load()
    data = TrainingData(Tokenizer(tokens), options.seed, options.pool)
    means = estimate(data.pool, tokens)
    lines = {**means, data.separator: 1.0, EOS: 1.0}
    text = "".join(f"{tokens[i]}\t{lines[i]:.4f}\n" for i in sorted(lines))
    (options.out / TABLE.name).write_text(text, encoding="utf-8")
    network = train(data, means, options.steps, options.tokens, options.seed)
    state = {f"length.{name}": value.half().contiguous() for name, value in network.state_dict().items()}
    save_file(state, options.out / NETWORK.name)
    (options.out / NETWORK.name).chmod(0o644)
    print(f"sha256 {sha256(options.out / NETWORK.name)}")


if __name__ == "__main__":
    main()
