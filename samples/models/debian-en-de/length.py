"""Trains a network that predicts the target's length from the encoder's rows: python length.py FOLDER OUT

FOLDER is what corpus.py made.  OUT/length.safetensors is what lengths.py reads.  Nobody knows which piece makes which of the target, so the sum over a
source's rows, rounded as the model rounds them, is what is trained: the loss is |N - true| / true, and rounding passes gradients as they are.  The network
sees the frozen encoder under placements drawn at random, so that one predictor serves all of them.  PYTHONPATH has the attnkit package.
"""
import argparse
import pathlib
import random
import sys
import time

import sentencepiece
import torch
from torch import nn

from attnkit.torch import Supernet
from attnkit.train.examples import by_length

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from durations import Network  # noqa: E402

RATE, WARMUP = 1e-3, 50


def pairs(path, processor):
    """Sources with </s>, and the lengths of their targets."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    sources, targets = (processor.encode([line[side] for line in lines]) for side in (0, 1))
    return [([*source, processor.eos_id()], len(target) + 1) for source, target in zip(sources, targets)]


def batch(group):
    """Ids, their lengths, those of the targets."""
    source = [torch.tensor(ids) for ids, _ in group]
    return (nn.utils.rnn.pad_sequence(source, batch_first=True), torch.tensor([len(ids) for ids in source]),
            torch.tensor([float(length) for _, length in group]))


def batches(rows, tokens, rng):
    """For ever."""
    while True:
        groups = by_length(rng.sample(rows, min(len(rows), 20_000)), tokens)
        rng.shuffle(groups)
        yield from map(batch, groups)


def predicted(network, rows, lengths):
    """The lengths of targets."""
    durations = network(rows, lengths).exp() - 1
    whole = durations + (durations.round().clamp(min=0) - durations).detach()
    return (whole * (torch.arange(rows.shape[1]) < lengths[:, None])).sum(1)


def error(model, network, rows, options):
    """The mean of |N - true| / true in percent, of the manifest's own placement."""
    model.place(model.baseline)
    network.eval()
    with torch.no_grad():
        off = [(predicted(network, model.encode(source, lengths)[0], lengths) / true - 1).abs()
               for source, lengths, true in map(batch, by_length(rows, options.tokens))]
    network.train()
    return 100 * float(torch.cat(off).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="what corpus.py made")
    parser.add_argument("out", type=pathlib.Path, help="where the network goes")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=3000, help="source pieces of a batch (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "pieces.model"))
    model = Supernet.from_manifest(HERE / "model.toml").eval()
    network = Network(model.description["d_model"])
    nn.init.constant_(network.out.bias, 0.7)  # one piece makes about one
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, betas=(0.9, 0.98))
    train, dev = (pairs(options.folder / name, processor) for name in ("train.tsv", "dev.tsv"))
    start, sums = time.monotonic(), []
    for step, (source, lengths, true) in enumerate(batches(train, options.tokens, rng), 1):
        with torch.no_grad():
            model.place(model.draw(rng))
            rows = model.encode(source, lengths)[0]
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, step / WARMUP, 2 * (1 - (step - 1) / options.steps))
        loss = (predicted(network, rows, lengths) / true - 1).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums.append(float(loss.detach()))
        if step % 100 == 0:
            print(f"step {step}, {time.monotonic() - start:.0f} s, error {100 * sum(sums) / len(sums):.2f} %", flush=True)
            sums = []
        if step == options.steps:
            break
    print(f"dev {error(model, network, dev, options):.2f} %")
    print(f"sha256 {network.save(options.out / 'length.safetensors')}")


if __name__ == "__main__":
    main()
