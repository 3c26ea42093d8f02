"""What trainings share: optimizers, a running average, checkpoints, a log and the loop.

The budget is wall-clock time or steps: the schedule follows the fraction of it that is used up, so it always ends
properly. A training stops and continues at any point from its checkpoint.
"""
import json
import os
import random
import time

import torch

from muon import Muon
from sharing import SharedCores


def add_arguments(parser, out, minutes):
    parser.add_argument("--out", type=type(out), default=out, help="folder of checkpoint and log")
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--steps", type=int, help="the budget in steps, in place of --minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--bf16", type=float, default=0.92, help="fraction of the budget with bfloat16 products")
    parser.add_argument("--evaluate-every", type=float, default=4, help="minutes")
    parser.add_argument("--checkpoint-every", type=float, default=2, help="minutes")


class Training:
    """A subclass says what a step is: batches(), size(batch), losses(batch, rng) with the one to minimise first,
    rate(step, progress) and evaluate()."""

    names = ("loss",)  # of the losses, in the log
    log_every = 100    # steps

    def __init__(self, options, modules, **facts):
        """modules: "model", "average" and others to train; facts: numbers that the checkpoint should have."""
        self.cores = SharedCores(options.threads)
        self.options, self.modules, self.facts = options, modules, facts
        self.model, self.average = modules["model"], modules["average"]
        self.average.load_state_dict(self.model.state_dict())
        self.trained = [p for name, module in modules.items() if name != "average" for p in module.parameters()]
        hidden = [p for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n and "leap" not in n]
        chosen = set(map(id, hidden))
        self.optimizers = [Muon(hidden, lr=0.02, weight_decay=0.02),
                           torch.optim.Adam([p for p in self.trained if id(p) not in chosen], lr=2e-3, betas=(0.9, 0.98))]
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        self.step = self.chunk = 0
        self.seconds = 0.0
        options.out.mkdir(parents=True, exist_ok=True)
        self.file = options.out / "checkpoint.pt"
        if self.file.exists():
            self._resume()

    def _resume(self):
        saved = torch.load(self.file, weights_only=True)
        for name, module in self.modules.items():
            module.load_state_dict(saved[name])
        for optimizer, state in zip(self.optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        self.step, self.chunk, self.seconds = saved["step"], saved["chunk"], saved["seconds"]

    def save(self):
        part = self.file.with_suffix(".part")
        torch.save({**{name: module.state_dict() for name, module in self.modules.items()}, **self.facts,
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
        """Returns the losses as a tensor, so that nothing waits for them."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.progress() < self.options.bf16):
            losses = self.losses(batch, rng)
        losses[0].backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        factor = self.rate(self.step + 1, self.progress())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            keep = min(0.998, self.step / (self.step + 10))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - keep)
        self.step += 1
        return torch.stack([loss.detach() for loss in losses])

    def run(self):
        clock = saved = evaluated = time.monotonic()
        losses = []
        while self.progress() < 1:
            rng = random.Random(f"{self.options.seed}:{self.chunk}:placements")
            for batch in self.batches():
                losses.append(self.train_step(batch, rng))
                now = time.monotonic()
                self.seconds, clock = self.seconds + now - clock, now
                self.cores.stepped(self.size(batch))
                if self.step % self.log_every == 0:
                    means = dict(zip(self.names, torch.stack(losses).mean(0).tolist()))
                    self.log(**{name: round(mean, 5) for name, mean in means.items()}, threads=torch.get_num_threads())
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
