"""Estimates lengths.tsv and trains length.safetensors: what predicts the target's length where a ratio is too coarse.

Phrases are apportioned to their tokens: least squares over single phrases gives every source token the mean number of
target tokens it makes (lengths.tsv); a phrase's true length is then given out in whole numbers by largest remainder
over these means. The sums are exact, and the same word gets the same number in the same surroundings, which is all the
network needs; no alignment is claimed. Separators and </s> make one target token each.

The network sees the frozen encoder under placements drawn at random, so that one predictor serves all of them.
"""
import argparse
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from attnkit.torch import Supernet
from attnkit.train.examples import by_length
from generate import PhraseSource
from vocabulary import EOS, PAD, WORD, Tokenizer, load

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from durations import Network  # noqa: E402

TABLE, NETWORK = HERE / "lengths.tsv", HERE / "length.safetensors"
WIDTH = 128
RIDGE = 1e-6  # a phrase: some words only come together, so their means are no more than shares


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


def padded(rows):
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def batches(pool, separator, seed, index, tokens):
    """Lists of 1 to 16 phrases with the duration of every source token, </s> included."""
    rng, pairs = random.Random(f"{seed}:length:{index}"), []
    for _ in range(2048):
        source, durations = [], []
        for ids, own in rng.choices(pool, k=rng.randint(1, 16)):
            source += ids + [separator]
            durations += own + [1]
        pairs.append((source[:-1] + [EOS], durations))
    groups = by_length(pairs, tokens)
    rng.shuffle(groups)
    for group in groups:
        source, durations = (padded(rows) for rows in zip(*group))
        yield source, (source != PAD).sum(1), durations


def draw_encoder(model, rng):
    """Half of them one mechanism, half one per layer."""
    blocks = {name: mechanisms for name, mechanisms in model.candidates.items() if name.startswith("encoder.")}
    if rng.random() < 0.5:
        return {"encoder.self": rng.choice(blocks["encoder.self.1"])}
    return {name: rng.choice(mechanisms) for name, mechanisms in blocks.items()}


def train(pool, separator, steps, tokens, seed):
    """pool: phrases with the durations of their tokens."""
    torch.manual_seed(seed)
    model, network = Supernet.from_manifest(HERE / "model.toml"), Network(WIDTH)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, betas=(0.9, 0.98))
    rng, step, index, start, sums = random.Random(f"{seed}:encoders"), 0, 0, time.monotonic(), [0.0, 0]
    while step < steps:
        for source, lengths, durations in batches(pool, separator, seed, index, tokens):
            with torch.no_grad():
                model.place(draw_encoder(model, rng))
                rows = model.encode(source, lengths)[0]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=3800, help="source tokens a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", type=int, default=60_000, help="phrases of the training data")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens, source = load(), PhraseSource("train", options.seed)
    tokenizer = Tokenizer(tokens)
    phrases = [tuple(map(tokenizer.encode, source.phrase())) for _ in range(options.pool)]
    means, separator = estimate(phrases, tokens), tokenizer.ids[WORD + ";"]
    lines = {**means, separator: 1.0, EOS: 1.0}
    text = "".join(f"{tokens[i]}\t{lines[i]:.4f}\n" for i in sorted(lines))
    (options.out / TABLE.name).write_text(text, encoding="utf-8")
    pool = [(ids, apportion(ids, len(target), means)) for ids, target in phrases]
    network = train(pool, separator, options.steps, options.tokens, options.seed)
    print(f"sha256 {network.save(options.out / NETWORK.name)}")


if __name__ == "__main__":
    main()
