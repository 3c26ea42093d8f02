"""Trains one set of weights for every placement and every lag; stops and continues at any point from its checkpoint.

The budget is wall-clock time: the schedule follows the fraction of it that is used up, so it always ends properly.
"""
import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import utterances
from features import frames
from paths import HERE
from speech_data import LONGEST, Batch, TrainingData, by_rows
from speech_model import MECHANISMS, ROLES, SpeechModel, layers_of, per_role, seen_rows
from model import WIDTH
from muon import Muon
from sharing import SharedCores
from vocabulary import PAD

PRE_DECISION = 8  # rows of the encoder, 40 ms each: about what a token of German takes to say
LAGS = (1, 2, 3, 4, 5, 6, 8)
WATCHED = {m: per_role(m, m, m) for m in MECHANISMS}
WATCHED_LAGS = (None, 3)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "run", help="folder of checkpoint and log")
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rows", type=int, default=3000, help="rows of the encoder per batch")
    parser.add_argument("--bf16", type=float, default=0.92, help="fraction of the budget with bfloat16 products")
    parser.add_argument("--evaluate-every", type=float, default=6, help="minutes")
    parser.add_argument("--checkpoint-every", type=float, default=2, help="minutes")
    return parser.parse_args()


def draw_placement(rng):
    """A quarter all softmax; of the rest half one mechanism per role, half one per layer."""
    def draw():
        return rng.choices(MECHANISMS, (0.4, 0.3, 0.3))[0]
    kind = rng.random()
    if kind < 0.25:
        return WATCHED["softmax"]
    if kind < 0.625:
        return per_role(draw(), draw(), draw())
    return {(role, layer): draw() for role in ROLES for layer in layers_of(role)}


def draw_lag(rng):
    return None if rng.random() < 0.3 else rng.choice(LAGS)


def longest_list(progress):
    """Short lists first: alignment is learned there and carries over."""
    return min(LONGEST, 1 + int(LONGEST * progress / 0.2))


def rate(step, progress):
    """Warm-up, constant, then linear to zero over the last two thirds: batches are small, so their noise needs it."""
    return min(1.0, step / 300) * min(1.0, 1.5 * (1 - progress))


def words_weight(progress):
    """The encoder learns to hear from the words first."""
    return 1.0 if progress < 0.25 else 0.3


class Trainer:
    def __init__(self, options):
        self.cores = SharedCores(options.threads)
        torch.manual_seed(options.seed)
        self.options, self.data = options, TrainingData(options.seed)
        vocabulary = len(self.data.tokenizer.tokens)
        self.model, self.average = SpeechModel(vocabulary), SpeechModel(vocabulary)
        self.model.encoder.features.mean, self.model.encoder.features.scale = self.data.normalisation()
        self.average.load_state_dict(self.model.state_dict())
        self.words = torch.nn.Linear(WIDTH, len(self.data.pool.words) + 1)
        hidden = [p for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n and "leap" not in n]
        chosen = set(map(id, hidden))
        other = [p for p in self.model.parameters() if id(p) not in chosen] + list(self.words.parameters())
        self.optimizers = [Muon(hidden, lr=0.02, weight_decay=0.02),
                           torch.optim.Adam(other, lr=2e-3, betas=(0.9, 0.98))]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        self.step = self.chunk = 0
        self.seconds = 0.0
        options.out.mkdir(parents=True, exist_ok=True)
        self.file = options.out / "checkpoint.pt"
        if self.file.exists():
            self._resume()
        self.dev = self._dev()

    def _dev(self):
        items = [(frames(utterances.read_wav(HERE / "audio" / "dev" / f"{i:03}.wav")).numpy(), [],
                  self.data.tokenizer.encode(entry["german"]))
                 for i, entry in enumerate(utterances.load("dev")) if i % 2 == 0]
        return [Batch([items[i] for i in group]) for group in by_rows(items, 6000)]

    def _resume(self):
        saved = torch.load(self.file, weights_only=True)
        for name in ("model", "average", "words"):
            getattr(self, name).load_state_dict(saved[name])
        for optimizer, state in zip(self.optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        self.step, self.chunk, self.seconds = saved["step"], saved["chunk"], saved["seconds"]

    def save(self):
        part = self.file.with_suffix(".part")
        torch.save({"model": self.model.state_dict(), "average": self.average.state_dict(),
                    "words": self.words.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers],
                    "step": self.step, "chunk": self.chunk, "seconds": self.seconds, "seed": self.options.seed}, part)
        os.replace(part, self.file)

    def log(self, **entry):
        entry = {"step": self.step, "minutes": round(self.seconds / 60, 2), **entry}
        with open(self.options.out / "training.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        print(entry, flush=True)

    def progress(self):
        return min(1.0, self.seconds / 60 / self.options.minutes)

    def heard(self, encoded, batch):
        """Connectionist temporal classification of the English words, from the encoder's rows."""
        targets = torch.tensor([word for words in batch.words for word in words])
        lengths = torch.tensor([len(words) for words in batch.words])
        scores = self.words(encoded.float()).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, targets, batch.rows, lengths, zero_infinity=True)

    def train_step(self, batch, rng):
        placement, lag = draw_placement(rng), draw_lag(rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.progress() < self.options.bf16):
            encoded = self.model.encode(batch.frames, placement)
            seen = seen_rows(batch.rows, batch.entered.shape[1], lag, PRE_DECISION)
            logits = self.model.decode(batch.entered, encoded, seen, placement)
        written = F.cross_entropy(logits.flatten(0, 1).float(), batch.expected.flatten(), ignore_index=PAD)
        heard = self.heard(encoded, batch)
        (written + words_weight(self.progress()) * heard).backward()
        torch.nn.utils.clip_grad_norm_([*self.model.parameters(), *self.words.parameters()], 1.0)
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
        return torch.stack([written.detach(), heard.detach()])

    @torch.no_grad()
    def evaluate(self):
        """Percent of dev lists with every token right after its right predecessors."""
        for name, placement in WATCHED.items():
            right = {lag: 0 for lag in WATCHED_LAGS}
            for batch in self.dev:
                encoded = self.average.encode(batch.frames, placement)
                for lag in WATCHED_LAGS:
                    seen = seen_rows(batch.rows, batch.entered.shape[1], lag, PRE_DECISION)
                    top = self.average.decode(batch.entered, encoded, seen, placement).argmax(-1)
                    right[lag] += int(((top == batch.expected) | (batch.expected == PAD)).all(-1).sum())
            total = sum(len(batch.rows) for batch in self.dev)
            self.log(placement=name, exact={str(lag): round(100 * n / total, 1) for lag, n in right.items()})

    def run(self):
        clock = saved = evaluated = time.monotonic()
        losses = []
        while self.progress() < 1:
            rng = random.Random(f"{self.options.seed}:{self.chunk}:placements")
            for batch in self.data.chunk(self.chunk, longest_list(self.progress()), self.options.rows):
                losses.append(self.train_step(batch, rng))
                now = time.monotonic()
                self.seconds, clock = self.seconds + now - clock, now
                self.cores.stepped(int(batch.rows.sum()))
                if self.step % 50 == 0:
                    written, heard = torch.stack(losses).mean(0).tolist()
                    self.log(written=round(written, 4), heard=round(heard, 4), threads=torch.get_num_threads())
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
