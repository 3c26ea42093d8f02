"""Trains one set of weights for every placement, or for one; stops and continues at any point from its checkpoint.

The budget is wall-clock time or steps: the schedule follows the fraction of it that is used up, so it always ends
properly.
"""
import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from batches import TrainingData
from generate import bucket_of, read_tsv
from model import LAYERS, MECHANISMS, ROLES, Model, per_role
from muon import Muon
from scoring import evaluation_batches, exact
from sharing import SharedCores
from vocabulary import Tokenizer, load

HERE = Path(__file__).resolve().parent
WATCHED = {"softmax": per_role("softmax", "softmax", "softmax"), "relu": per_role("relu", "relu", "relu"),
           "cosformer": per_role("cosformer", "cosformer", "cosformer"), "leap": per_role("leap", "leap", "leap"),
           **{f"softmax, cross {m}": per_role("softmax", "softmax", m) for m in MECHANISMS[1:]}}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "run", help="folder of checkpoint and log")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int, help="the budget in steps, in place of --minutes")
    parser.add_argument("--placement", type=lambda text: per_role(*text.split("/")),
                        help="train this one alone: the mechanisms of encoder.self/decoder.self/decoder.cross")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=3800, help="target tokens per batch")
    parser.add_argument("--bf16", type=float, default=0.92, help="fraction of the budget with bfloat16 products")
    parser.add_argument("--evaluate-every", type=float, default=4, help="minutes")
    parser.add_argument("--checkpoint-every", type=float, default=2, help="minutes")
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


def rate(step, progress):
    """Warm-up, constant, then linear to zero over the second half."""
    return min(1.0, step / 400) * min(1.0, 2 * (1 - progress))


class Trainer:
    def __init__(self, options):
        self.cores = SharedCores(options.threads)
        torch.manual_seed(options.seed)
        self.options = options
        self.watched = {"alone": options.placement} if options.placement else WATCHED
        self.tokenizer = Tokenizer(load())
        self.model, self.average = Model(len(self.tokenizer.tokens)), Model(len(self.tokenizer.tokens))
        self.average.load_state_dict(self.model.state_dict())
        hidden = [p for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n and "leap" not in n]
        chosen = set(map(id, hidden))
        other = [p for p in self.model.parameters() if id(p) not in chosen]
        self.optimizers = [Muon(hidden, lr=0.02, weight_decay=0.02),
                           torch.optim.Adam(other, lr=2e-3, betas=(0.9, 0.98))]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        self.data = TrainingData(self.tokenizer, options.seed)
        self.alpha = self.data.ratio()
        self.step = self.chunk = 0
        self.seconds = 0.0
        options.out.mkdir(parents=True, exist_ok=True)
        self.file = options.out / "checkpoint.pt"
        if self.file.exists():
            self._resume()
        encode = self.tokenizer.encode
        dev = [(encode(en), encode(de)) for en, de in read_tsv(HERE / "dev.tsv") if bucket_of(en) == 4]
        self.dev = evaluation_batches(dev)

    def _resume(self):
        saved = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.average.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        self.step, self.chunk, self.seconds = saved["step"], saved["chunk"], saved["seconds"]

    def save(self):
        part = self.file.with_suffix(".part")
        torch.save({"model": self.model.state_dict(), "average": self.average.state_dict(), "alpha": self.alpha,
                    "optimizers": [o.state_dict() for o in self.optimizers], "step": self.step, "chunk": self.chunk,
                    "seconds": self.seconds, "seed": self.options.seed}, part)
        os.replace(part, self.file)

    def log(self, **entry):
        entry = {"step": self.step, "minutes": round(self.seconds / 60, 2), **entry}
        with open(self.options.out / "log.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")
        print(entry, flush=True)

    def progress(self):
        if self.options.steps:
            return min(1.0, self.step / self.options.steps)
        return min(1.0, self.seconds / (60 * self.options.minutes))

    def train_step(self, batch, rng):
        """Returns the loss as a tensor, so that nothing waits for it."""
        lengths = target_lengths(batch, self.alpha, rng)
        placement = self.options.placement or draw_placement(rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.progress() < self.options.bf16):
            logits = self.model(batch.source, batch.lengths, batch.entered, lengths, placement)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.expected.flatten(), ignore_index=0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = rate(self.step + 1, self.progress())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            keep = min(0.998, self.step / (self.step + 10))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)
        self.step += 1
        return loss.detach()

    def evaluate(self):
        shares = {}
        for name, placement in self.watched.items():
            right = exact(self.average, self.dev, placement, self.alpha).values()
            shares[name] = round(100 * sum(right) / len(right), 1)
        self.log(exact=shares)

    def run(self):
        clock = saved = evaluated = time.monotonic()
        losses = []
        while self.progress() < 1:
            rng = random.Random(f"{self.options.seed}:{self.chunk}:placements")
            for batch in self.data.chunk(self.chunk, longest_list(self.progress()), self.options.tokens):
                losses.append(self.train_step(batch, rng))
                now = time.monotonic()
                self.seconds, clock = self.seconds + now - clock, now
                self.cores.stepped(batch.entered.numel())
                if self.step % 100 == 0:
                    self.log(loss=round(float(torch.stack(losses).mean()), 5), threads=torch.get_num_threads())
                    losses = []
                if now - evaluated > 60 * self.options.evaluate_every:
                    self.evaluate()
                    evaluated = now
                if self.progress() == 1:
                    break
            self.chunk += 1
            if now - saved > 60 * self.options.checkpoint_every:
                self.save()
                saved = now
        self.save()
        self.evaluate()


if __name__ == "__main__":
    Trainer(arguments()).run()
