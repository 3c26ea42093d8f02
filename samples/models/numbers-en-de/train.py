"""Trains one set of weights for every placement, or for one; stops and continues at any point from its checkpoint."""
import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

from batches import TrainingData
from generate import bucket_of, read_tsv
from model import LAYERS, MECHANISMS, ROLES, Model, per_role
from scoring import evaluation_batches, exact
from training import Training, add_arguments
from vocabulary import Tokenizer, load

HERE = Path(__file__).resolve().parent
WATCHED = {"softmax": per_role("softmax", "softmax", "softmax"), "relu": per_role("relu", "relu", "relu"),
           "cosformer": per_role("cosformer", "cosformer", "cosformer"), "leap": per_role("leap", "leap", "leap"),
           **{f"softmax, cross {m}": per_role("softmax", "softmax", m) for m in MECHANISMS[1:]}}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, HERE / "run", minutes=60)
    parser.add_argument("--placement", type=lambda text: per_role(*text.split("/")),
                        help="train this one alone: the mechanisms of encoder.self/decoder.self/decoder.cross")
    parser.add_argument("--tokens", type=int, default=3800, help="target tokens per batch")
    return parser.parse_args()


def draw_placement(rng):
    """A fifth all softmax; of the rest half one mechanism per role, half one per layer."""
    def draw():
        return rng.choices(MECHANISMS, (0.4, 0.2, 0.2, 0.2))[0]
    kind = rng.random()
    if kind < 0.2:
        return WATCHED["softmax"]
    if kind < 0.6:
        return per_role(draw(), draw(), draw())
    return {(role, layer): draw() for role in ROLES for layer in range(1, LAYERS + 1)}


def target_lengths(batch, alpha, rng):
    """What cosformer is told: the prediction from the source, or the truth off by up to a fifth."""
    if rng.random() < 0.6:
        return alpha * batch.lengths
    return batch.target_lengths * torch.empty(len(batch.lengths)).uniform_(0.8, 1.2)


def longest_list(progress):
    """Short lists first: alignment is learned there and carries over."""
    return min(16, 2 + int(14 * progress / 0.12))


class Trainer(Training):
    def __init__(self, options):
        torch.manual_seed(options.seed)
        self.watched = {"alone": options.placement} if options.placement else WATCHED
        tokenizer = Tokenizer(load())
        self.data = TrainingData(tokenizer, options.seed)
        self.alpha = self.data.ratio()
        model, average = Model(len(tokenizer.tokens)), Model(len(tokenizer.tokens))
        super().__init__(options, {"model": model, "average": average}, alpha=self.alpha)
        encode = tokenizer.encode
        dev = [(encode(en), encode(de)) for en, de in read_tsv(HERE / "dev.tsv") if bucket_of(en) == 4]
        self.dev = evaluation_batches(dev)

    def batches(self):
        return self.data.chunk(self.chunk, longest_list(self.progress()), self.options.tokens)

    def size(self, batch):
        return batch.entered.numel()

    def rate(self, step, progress):
        """Warm-up, constant, then linear to zero over the second half."""
        return min(1.0, step / 400) * min(1.0, 2 * (1 - progress))

    def losses(self, batch, rng):
        lengths = target_lengths(batch, self.alpha, rng)
        placement = self.options.placement or draw_placement(rng)
        logits = self.model(batch.source, batch.lengths, batch.entered, lengths, placement)
        return [F.cross_entropy(logits.flatten(0, 1).float(), batch.expected.flatten(), ignore_index=0)]

    def evaluate(self):
        shares = {}
        for name, placement in self.watched.items():
            right = exact(self.average, self.dev, placement, self.alpha).values()
            shares[name] = round(100 * sum(right) / len(right), 1)
        self.log(exact=shares)


if __name__ == "__main__":
    Trainer(arguments()).run()
