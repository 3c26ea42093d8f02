"""The loop: batches, losses, steps, a running average, checkpoints, a log."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import fcntl
import hashlib
import json
import math
import os
import pathlib
import random
import re
import signal
import sys
import time
import zlib
from typing import IO, TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Protocol, Sequence, cast

import torch
import torch.distributed
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import attnkit

from .._toml import tables_of
from ..error import INVALID, UNSUPPORTED, Error
from ..torch import Attention, Model, Supernet, runtime
from ..torch._bound import CUDA, bound
from ..torch.attention import Mechanism
from ..torch.export import named_files
from ..torch.loss import IGNORED
from .examples import Batch, Examples
from .muon import Muon
from .processes import Processes

if TYPE_CHECKING:
    import argparse
    from types import FrameType

FORMAT = "attnkit.checkpoint/1"
_KEPT = ("seed", "optimizer", "supernet")  # options that a checkpoint goes on with
_STATE = ("average", "best_average", "step", "chunk", "place_in_chunk", "seconds", "best", "worse", "evaluated")
_OWN = ("manifest", "dir", "data", "dev", "teacher", "out", "threads")  # options that each process may have its own way


class Data(Protocol):
    """The data that a model is trained on."""

    def chunk(self, seed: int, number: int, progress: float, tokens: int) -> Sequence[Batch]:
        """As Examples.chunk."""


class Trainer:
    """Trainer(manifest, data=..., out=...).run(): options are those of the command line, see __main__.py.

    out gets checkpoint.pt, log.jsonl and, at the end, model/, which libattnkit loads.  With checkpoint.pt there it goes on from it, at
    the very step, as if it had never stopped.  Of several processes the first has all this, and the others go on from what it sends.

    A subclass trains other models and data: make_model, make_beside, examples, loss, total and visible are for it to replace.
    """

    held: IO[bytes] | None = None  # the log, which is locked

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, pathlib.Path(options.out)
        self.file = self.out / "checkpoint.pt"
        self.processes = Processes(options.timeout)
        self.rank, self.world = self.processes.rank, self.processes.world
        self.saved = -1  # the checkpoint's step
        try:
            with self.processes.heard(lambda: "nothing was changed"):
                self._begin()
        except BaseException:
            self._let_go()
            raise

    def _begin(self) -> None:
        options = self.options
        torch.manual_seed(options.seed)
        if options.threads:
            torch.set_num_threads(options.threads)
        with self.processes.together():
            manifest = pathlib.Path(options.manifest)
            folder = pathlib.Path(options.dir or manifest.parent)
            self.toml = _text(manifest)
            self.model = self.make_model(folder)
            tables_of(self.toml)  # what cannot be exported at the end is not begun
            self.teacher = self._teacher()
            self._check_options()
            self.device = _device(options.device)
            self._check_device()
            for name in ("encoder", "decoder"):
                if options.dropout and hasattr(self.model, name):
                    getattr(self.model, name).dropout = options.dropout
            self.data, self.dev = self.examples(folder)
            self.beside = self.make_beside()
            common = self._common() if self.world > 1 else {}
        self.processes.same(common)
        for module in (self.model, self.beside, self.teacher):
            if module is not None:
                module.to(self.device)
        self.has_bf16 = all(self.processes.all(_has_bf16(self.device)))
        named = [*self.model.named_parameters(), *self.beside.named_parameters(prefix="beside")]
        self.named = {name: p for name, p in named if p.requires_grad}
        self.average = [p.detach().clone() for p in self.named.values()]
        self.optimizers = self._optimizers()
        self.step = self.chunk = self.place_in_chunk = self.worse = 0
        self.evaluated = -1  # the step that dev judged last
        # A place in a chunk is counted in these.
        self.batches = f"{options.tokens * self.world} tokens of {_contents(options.data)}"
        self.judged_by = f"{options.dev_examples} examples of {_contents(options.dev)}"
        self.seconds, self.best, self.chunk_began = 0.0, math.inf, 0.0
        self.best_average: list[torch.Tensor] | None = None
        # The vocabularies and lengths that training began with.
        self.files = [hashlib.sha256(file.read_bytes()).hexdigest() for file in named_files(self.toml, self.model.folder)]
        self.bf16 = options.bf16 and self.has_bf16
        with self.processes.together():
            self._resume()
        if self.world > 1:
            self._go_on_with_the_first()
        self.run_model = self._compiled() if options.compile else self.model
        if self.world > 1:
            parts = options.supernet or getattr(self.model.head, "of", None) is not None  # of which a step may use some alone
            self.run_model = DistributedDataParallel(self.run_model, broadcast_buffers=False, find_unused_parameters=parts)

    def _common(self) -> dict[str, object]:
        """All that processes must have in common, by the words of a refusal."""
        options = {f"--{name.replace('_', '-')}": value for name, value in vars(self.options).items() if name not in _OWN}
        files = {f"--{name} of sha256": _contents(getattr(self.options, name)) for name in ("data", "dev")}
        teacher = hashlib.sha256()
        for tensor in self.teacher.state_dict().values() if self.teacher else ():
            tensor = tensor.contiguous()
            teacher.update((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))
        return {"attnkit": attnkit.version(), "torch": torch.__version__.partition("+")[0], "a manifest of sha256": _digest(self.toml), **options,
                **files, "a --teacher of sha256": teacher.hexdigest()}

    def _compiled(self) -> torch.nn.Module:
        # The size of what a mechanism saves is known to it alone, for each shape: left between compiled parts, it
        # has no shape compiled anew.
        for module in self.model.modules():
            if isinstance(module, Attention):
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
        return cast(torch.nn.Module, torch.compile(self.model, dynamic=True))

    def make_model(self, folder: pathlib.Path) -> Model:
        """The model that is trained; folder: what paths in the manifest are relative to."""
        return (Supernet if self.options.supernet else Model)(self.toml, folder)

    def make_beside(self) -> torch.nn.Module:
        """The modules that are trained with the model and not exported."""
        return torch.nn.ModuleDict()

    def examples(self, folder: pathlib.Path) -> tuple[Data, Sequence[Batch]]:
        """(what gives batches of training by chunk, the batches to judge by)"""
        o, core = self.options, attnkit.Model.from_text(runtime(), self.toml, folder)
        data = Examples(core, o.data)
        if self.teacher is not None:
            with attnkit.Model.from_text(runtime(), self.teacher.toml, self.teacher.folder) as teacher:
                data.compare(teacher, f"--teacher {o.teacher}", o.seed)
        return data, Examples(core, o.dev).all(2 * o.tokens, o.dev_examples) if o.dev else []

    @property
    def supernet(self) -> Supernet:
        """The model that --supernet makes."""
        return cast(Supernet, self.model)

    def run(self) -> pathlib.Path | None:
        """Trains to the end of the budget, or to where dev no longer improves; returns the exported manifest's path."""
        try:
            with self.processes.heard(self._kept):
                self._train()
                self._save()
                manifest = self._export()
                self.processes.close()
        finally:
            self._let_go()
        return manifest

    def _train(self) -> None:
        clock = saved = logged = shown = time.monotonic()
        losses: list[torch.Tensor] = []
        tokens, done, evaluated, sorts = 0, self._is_worse(), self.seconds, self.world > 1
        with _Interrupt() as interrupt:
            while not done and self.progress() < 1:
                if not self.place_in_chunk:
                    self.chunk_began = self.progress()
                with self.processes.together():
                    batches = self.data.chunk(self.options.seed, self.chunk, self.chunk_began, self.options.tokens * self.world)
                while self.place_in_chunk < len(batches) and not done and self.progress() < 1:
                    taken = batches[self.place_in_chunk:self.place_in_chunk + self.options.accumulate]
                    if sorts:
                        self._sort_gradients(taken)
                        sorts = False
                    losses.append(self.train_step(taken))
                    self.place_in_chunk += len(taken)
                    tokens += sum(batch.tokens for batch in taken)
                    now = time.monotonic()
                    (self.seconds, stop), clock = self._everywhere(self.seconds + now - clock, interrupt.seen, batches, taken), now
                    if self.step % self.options.log_every == 0:
                        self._log(loss=round(float(torch.stack(losses).mean()), 5), tokens_per_second=round(tokens / (now - logged)),
                                  minutes_left=round(self._left() / 60, 1))
                        losses, tokens, logged = [], 0, now
                    if now - shown > 1:
                        shown = now
                        self._show()
                    if self.dev and self._due(self.seconds - evaluated):
                        done, evaluated = self._evaluate(), self.seconds
                        clock = time.monotonic()
                    if now - saved > 60 * self.options.checkpoint_every:
                        self._save()
                        _give_back()
                        saved = now
                    if stop or self.world == 1 and interrupt.seen:
                        self._save()
                        self.processes.all(None)  # torchrun kills the one that saves when another has ended
                        raise KeyboardInterrupt(f"stopped after step {self.step}; the same command goes on from {self._where()}")
                if self.place_in_chunk >= len(batches):
                    self.chunk, self.place_in_chunk = self.chunk + 1, 0
        if self.dev and self.evaluated != self.step:
            self._evaluate()

    def _is_worse(self) -> bool:
        """Whether training stops early."""
        return bool(self.options.patience) and self.worse >= self.options.patience

    def _due(self, seconds: float) -> bool:
        every = self.options.evaluate_steps
        return self.step % every == 0 if every else seconds > 60 * self.options.evaluate_every

    def progress(self) -> float:
        """Of the budget; the same in all processes."""
        if self.options.steps:
            return min(1.0, self.step / self.options.steps)
        return min(1.0, self.seconds / (60 * self.options.minutes))

    def _sort_gradients(self, batches: Sequence[Batch]) -> None:
        """A backward pass for nothing: after the first one torch puts gradients together in another way, which adds those of three processes
        in another order, and after a restart the first one is in the midst of training."""
        for _, loss in self._losses(batches):
            loss.backward()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _everywhere(self, seconds: float, stop: bool, batches: Sequence[Batch], taken: Sequence[Batch]) -> tuple[float, bool]:
        """(the first process's seconds, whether any is to stop); refuses processes that made the step of other examples."""
        if self.world == 1:
            return seconds, stop
        tensors = [value.tolist() for batch in taken for value in vars(batch).values() if torch.is_tensor(value)]
        first, *others = every = self.processes.numbers(seconds, stop, zlib.crc32(repr((len(batches), tensors)).encode()), self.saved)
        self.saved = int(first[3])
        for name, theirs in zip(self.processes.names[1:], others):
            if theirs[2] != first[2]:
                raise Error(INVALID, f"step {self.step}: --data gives other examples to {name} than to {self.processes.names[0]}: give all processes "
                                     f"the same, in the same order; {self._kept()}")
        return first[0], any(row[1] for row in every)

    def train_step(self, batches: Sequence[Batch]) -> torch.Tensor:
        """One step of the optimizers over these batches together; returns the loss per token."""
        o = self.options
        placements: list[dict[str, str] | None] = []
        total = torch.zeros((), device=self.device)
        for placement, loss in self._losses(batches):
            loss.backward()
            placements.append(placement)
            total = total + loss.detach()
        if self.world > 1:
            torch.distributed.all_reduce(total)
            total = total / self.world
            for p in self.beside.parameters():  # of which DistributedDataParallel knows nothing
                if p.requires_grad:
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                    torch.distributed.all_reduce(p.grad)
                    p.grad /= self.world
        self._check(total, placements, batches)
        progress = self.progress()
        factor = min(1.0, (self.step + 1) / max(1, o.warmup)) * _decay(o.schedule, o.decay, progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            keep = min(o.average, self.step / (self.step + 10))
            torch._foreach_lerp_(self.average, [p.detach() for p in self.named.values()], 1 - keep)
        self.step += 1
        return total

    def _losses(self, batches: Sequence[Batch]) -> Iterator[tuple[dict[str, str] | None, torch.Tensor]]:
        """(placement, its part of the step's loss in this process), the same each time: what is drawn depends on the step alone."""
        o, drawn = self.options, random.Random(f"{self.options.seed}:{self.step}")
        batches = [self.cut(batch, drawn) for batch in batches]
        if o.dropout:
            torch.manual_seed(drawn.getrandbits(62) + self.rank)
        every, placements = sum(batch.tokens for batch in batches), cast("Sequence[dict[str, str] | None]", [None])
        if o.supernet:
            placements = [self.supernet.draw(drawn, o.weights, o.baseline_share, o.per_layer_share)]
            if o.sandwich:
                placements = [self.supernet.baseline, *(self.supernet.draw(drawn, o.weights, 0, o.per_layer_share) for _ in range(o.sandwich))]
        for placement in placements:
            if placement:
                self.supernet.place(placement)
            for number, batch in enumerate(batches):
                part, last = batch.share(self.rank, self.world).to(self.device), placement is placements[-1] and number == len(batches) - 1
                # Gradients are averaged over processes: each counts its own tokens as a part of all.
                with contextlib.nullcontext() if last or not isinstance(self.run_model, DistributedDataParallel) else self.run_model.no_sync():
                    yield placement, self.loss(part, drawn) * (self.world / (every * len(placements)))

    def loss(self, batch: Batch, drawn: random.Random) -> torch.Tensor:
        """The sum over the tokens of a batch."""
        loss: dict[str, Any] = {"expected": batch.expected, "label_smoothing": self.options.label_smoothing}
        with self.autocast():
            if self.teacher is not None:
                with torch.no_grad():
                    loss["teacher"] = self.teacher(batch.source, batch.source_lengths, batch.entered, batch.lengths, layer=True)
            return self.outputs(self.run_model, batch, drawn, **loss)

    def autocast(self) -> torch.autocast:
        """Whether this step computes in bfloat16, as a context."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16 and self.progress() < self.options.bf16_until)

    def outputs(self, model: Callable[..., Any], batch: Batch, drawn: random.Random | None = None, **loss: Any) -> torch.Tensor:
        """The logits, or the loss that Model.forward is asked for.  drawn: draws what training varies; None: as the model is used."""
        read = batch.source_lengths if batch.read is None else batch.read
        return model(batch.source, read, batch.entered, batch.lengths, total=self.total(batch, drawn), visible=self.visible(batch, drawn), **loss)

    def total(self, batch: Batch, drawn: random.Random | None) -> torch.Tensor | None:
        """The target's length as mechanisms know it: None is the manifest's prediction; in training now and then the truth,
        off by up to a fifth."""
        if drawn is None or self.model.predict is None or batch.lengths is None or drawn.random() < self.options.predicted_lengths:
            return None
        noise = torch.tensor([drawn.uniform(0.8, 1.2) for _ in range(batch.all_rows)], dtype=torch.float64)
        return batch.lengths * noise[batch.part].to(batch.lengths.device)

    def visible(self, batch: Batch, drawn: random.Random | None) -> torch.Tensor | None:
        """wait-k: before token t, from 0, k + t tokens of the source were read, and with its last one </s>.  Several k: each row draws its
        own."""
        if batch.visible is not None or not self.options.wait_k or batch.entered is None or batch.source_lengths is None:
            return batch.visible
        k = torch.tensor([drawn.choice(self.options.wait_k) if drawn else self.options.wait_k[0] for _ in range(batch.all_rows)])
        written = (torch.arange(batch.entered.shape[1]) - batch.forced).clamp(min=0)
        seen = (k[batch.part, None] + written).to(batch.source_lengths.device)
        return torch.where(seen < batch.source_lengths[:, None] - 1, seen, batch.source_lengths[:, None])

    def cut(self, batch: Batch, drawn: random.Random | None = None) -> Batch:
        """--prefixes: a batch whose sources end at a row drawn at random, and which expects the tokens that are written when so many are
        read.  Each token of the target is as likely."""
        if not self.options.prefixes:
            return batch
        visible, lengths, whole = self.visible(batch, drawn), batch.lengths, batch.source_lengths
        assert visible is not None and lengths is not None and whole is not None
        cut, drawn = copy.copy(batch), drawn or random.Random(self.options.seed)
        # All counts that tokens see are as likely; that of all but </s> is none.
        last = visible.gather(1, lengths[:, None] - 1)[:, 0].minimum(visible[:, 0].maximum(whole - 1))
        read = torch.tensor([drawn.randint(*ends) for ends in zip(visible[:, 0].tolist(), last.tolist())])
        cut.read = torch.where(read < whole - 1, read, whole)
        cut.visible = visible.minimum(cut.read[:, None])
        cut.expected = torch.where(visible == cut.read[:, None], batch.expected, IGNORED)
        cut.tokens = int((cut.expected != IGNORED).sum())
        return cut

    def _teacher(self) -> Model | None:
        """The model that --teacher names, which is not trained."""
        if self.options.teacher is None:
            return None
        manifest = pathlib.Path(self.options.teacher)
        made, mine = Model(_text(manifest), manifest.parent).eval().requires_grad_(False), self.model.info
        for name in ("kind", "source_vocab", "target_vocab", "outputs", "begin_id", "end_id"):
            theirs, ours = getattr(made.info, name), getattr(mine, name)
            if theirs != ours or made.head.type != "lm" or self.model.head.type != "lm":
                raise Error(INVALID, f"--teacher {self.options.teacher}: a teacher writes the same text as the model; its {name} is {theirs} with "
                                     f"a head of type {made.head.type}, the model's {ours} with one of type {self.model.head.type}")
        for name in ("max_length", "max_target"):
            theirs, ours = made.description[name], self.model.description[name]
            if theirs < ours:
                raise Error(INVALID, f"--teacher {self.options.teacher}: its {name} is {theirs}, the model's {ours}: give the model a shorter one")
        return made

    def _check_options(self) -> None:
        """Refuses those that would do nothing, and warns of what a model would learn to see."""
        o, both = self.options, hasattr(self.model, "encoder") and hasattr(self.model, "decoder")
        if o.wait_k and not both:
            raise Error(INVALID, "--wait-k is of models with an encoder and a decoder: leave it out")
        if o.wait_k and not self.model.description["source_ends"]:
            raise Error(UNSUPPORTED, "--wait-k is of sources that end with a token, which is read last, and [model.encoder] has end = false: leave it out")
        if o.prefixes and not o.wait_k:
            raise Error(INVALID, "--prefixes is of --wait-k: give that, or leave it out")
        if o.patience and not o.dev:
            raise Error(INVALID, "--patience stops when dev no longer improves: give --dev, or leave it out")
        if o.wait_k and not o.prefixes and not self.rank and any(not b.causal for b in self.model.encoder.modules() if isinstance(b, Attention)):
            print("attnkit.train: warning: with --wait-k alone an encoder that is not causal sees what was not read: give --prefixes, or make it causal",
                  file=sys.stderr)
        if not o.supernet and (o.weights or o.sandwich):
            raise Error(INVALID, "--weights and --sandwich are of --supernet: give it, or leave them out")
        for name in o.weights or ():
            if name not in self.supernet.mechanisms:
                raise Error(INVALID, f"--weights names {name}, and the supernet has {', '.join(self.supernet.mechanisms)}")

    def _check_device(self) -> None:
        """Refuses mechanisms that have no gradient on a GPU; the teacher needs none."""
        if self.device.type != "cuda":
            return
        for whose, model, trains in (("", self.model, True), ("the teacher's ", self.teacher, False)):
            for name, module in model.named_modules() if model else ():
                if isinstance(module, Mechanism) and not bound(module._key, CUDA).takes(2, 32, trains):
                    raise Error(UNSUPPORTED, f"--device {self.options.device}: {whose}{name} has no {'gradient' if trains else 'run'} on CUDA: place another "
                                             "mechanism there, or train on the CPU")

    def _check(self, loss: torch.Tensor, placements: Sequence[Mapping[str, str] | None], batches: Sequence[Batch]) -> None:
        """Clips the gradients, or says which block made the first number that is none."""
        with contextlib.suppress(RuntimeError):
            torch.nn.utils.clip_grad_norm_([p for p in self.named.values() if p.grad is not None], self.options.clip, error_if_nonfinite=True)
            return
        if torch.isfinite(loss):
            # A backward pass goes from the last block to the first, and every one before the bad one is bad as well.
            bad = [n for n, p in self.named.items() if p.grad is not None and not torch.isfinite(p.grad).all()]
            what = f"the gradient of {_block(max(bad, key=_place))}" if bad else "the sum of squares of the gradient"
        else:
            name = self._first_bad(batches)
            what = f"the output of {name}" if name else "the loss"
        placed = "".join(dict.fromkeys(f" ({'/'.join(dict.fromkeys(placement.values()))})" for placement in placements if placement))
        raise Error(INVALID, f"step {self.step + 1}{placed}: {what} is not finite; {self._kept()}: lower --lr or raise --warmup")

    def _first_bad(self, batches: Sequence[Batch]) -> str | None:
        """The first module whose output is not finite when the step is made again."""
        found: list[str] = []

        def look(name: str) -> Callable[..., None]:
            def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
                if torch.is_tensor(output) and not torch.isfinite(output).all():
                    found.append(name)
            return hook

        hooks = [module.register_forward_hook(look(name)) for name, module in self.model.named_modules() if name]
        kept, self.run_model = self.run_model, self.model
        with torch.no_grad():
            for _ in self._losses(batches):
                if found:
                    break
        self.run_model = kept
        for handle in hooks:
            handle.remove()
        return found[0] if found else None

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of linear layers, if asked; AdamW for all else."""
        o = self.options
        linear = {id(m.weight) for m in self.model.modules() if isinstance(m, torch.nn.Linear)}
        hidden = [p for p in self.named.values() if id(p) in linear and o.optimizer == "muon"]
        chosen = {id(p) for p in hidden}
        rest = [p for p in self.named.values() if id(p) not in chosen]
        decayed, plain = [p for p in rest if p.dim() > 1], [p for p in rest if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": o.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        made: list[torch.optim.Optimizer] = [torch.optim.AdamW([g for g in groups if g["params"]], lr=o.lr, betas=(0.9, 0.98), fused=True)]
        if hidden:
            made.insert(0, Muon(hidden, lr=o.muon_lr, weight_decay=0.02, products=torch.bfloat16 if self.has_bf16 and o.bf16 else torch.float32))
        for optimizer in made:
            for group in optimizer.param_groups:
                group["peak"] = group["lr"]
        return made

    @contextlib.contextmanager
    def _averaged(self, values: Iterable[torch.Tensor]) -> Iterator[None]:
        """The model with the running average, or another one, in place of its parameters."""
        kept = [p.detach().clone() for p in self.named.values()]
        with torch.no_grad():
            for p, value in zip(self.named.values(), values):
                p.copy_(value)
            yield
            for p, value in zip(self.named.values(), kept):
                p.copy_(value)

    def _evaluate(self) -> bool:
        """Logs what the average is worth on dev; returns whether to stop early."""
        watched: dict[str, dict[str, str] | None] = {"": None}
        if self.options.supernet:
            watched = {"baseline": self.supernet.baseline, **{m: self.supernet.uniform(m) for m in self.supernet.mechanisms}}
        results = {}
        with self._averaged(self.average):
            for name, placement in watched.items():
                if placement:
                    self.supernet.place(placement)
                results[name] = self._judge()
        loss = sum(r["loss"] for r in results.values()) / len(results)
        self._log(dev=results[""] if "" in results else results)
        loss = self.processes.numbers(loss)[0][0]  # on another processor it may be another in the last place, and all stop or none
        if loss < self.best:
            self.best, self.worse, self.best_average = loss, 0, [value.clone() for value in self.average] if self.options.patience else None
        else:
            self.worse += 1
        self.evaluated = self.step
        return self._is_worse()

    def _judge(self) -> dict[str, float]:
        """Loss per token, and the percentage of examples whose every token is the best after its right predecessors: what greedy
        decoding gets right, but under --prefixes, where it is of the tokens at one cut of each."""
        loss, tokens, right, rows = 0.0, 0, 0, 0
        self.model.eval()
        for batch in self.dev:
            batch = self.cut(batch).to(self.device)
            logits = self.outputs(self.model, batch).float()
            loss += float(F.cross_entropy(logits.flatten(0, -2), batch.expected.flatten(), ignore_index=IGNORED, reduction="sum"))
            same = (logits.argmax(-1) == batch.expected) | (batch.expected == IGNORED)
            right += int(same.reshape(batch.rows, -1).all(-1).sum())
            tokens, rows = tokens + batch.tokens, rows + batch.rows
        self.model.train()
        return {"loss": round(loss / tokens, 5), "exact_at_cut" if self.options.prefixes else "exact": round(100 * right / rows, 2)}

    def _log(self, **entry: Any) -> None:
        if self.rank:
            return
        entry = {"step": self.step, "minutes": round(self.seconds / 60, 2), **entry}
        entry = json.loads(json.dumps(entry), parse_constant=lambda _: None)  # JSON has no NaN
        with self._writing(self.out / "log.jsonl") as file, open(file, "a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        _say(f"\r\x1b[K{entry}\n" if sys.stderr.isatty() else f"{entry}\n")

    def _show(self) -> None:
        """A line with the time left, at a terminal."""
        progress = self.progress()
        if self.rank or not sys.stderr.isatty() or not progress:
            return
        _say(f"\r\x1b[Kstep {self.step}, {100 * progress:.1f} %, {self._left() / 60:.0f} min left")

    def _left(self) -> float:
        """Seconds until the end of the budget, at the speed so far."""
        progress = self.progress()
        return self.seconds * (1 - progress) / progress

    def _where(self) -> str:
        return f"{self.file}{f' of {self.processes.names[0]}' if self.rank else ''}"

    def _kept(self) -> str:
        return f"the checkpoint of an earlier step is kept in {self._where()}" if self.saved >= 0 else "there is no checkpoint yet"

    def _state(self) -> dict[str, Any]:
        """All that training goes on with."""
        return {**{name: getattr(self, name) for name in _STATE}, "chunk_began": self.chunk_began, "model": self.model.state_dict(),
                "beside": self.beside.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers]}

    def _save(self) -> None:
        if self.rank:
            return
        for name, value in (*self.named.items(), *zip(self.named, self.average)):
            if not torch.isfinite(value).all():
                raise Error(INVALID, f"step {self.step}: a weight of {_block(name)} is not finite after it; {self._kept()}: lower --lr or raise --warmup")
        part = self.file.with_suffix(".part")
        with self._writing(self.file):
            try:
                with open(part, "wb") as written:
                    torch.save({"format": FORMAT, "manifest": _digest(self.toml), "files": self.files, "batches": self.batches, "judged_by": self.judged_by,
                                **{name: getattr(self.options, name) for name in _KEPT}, **self._state()}, written)
                    written.flush()
                    os.fsync(written.fileno())
                os.replace(part, self.file)
            finally:
                part.unlink(missing_ok=True)
        self.saved = self.step

    @contextlib.contextmanager
    def _writing(self, file: pathlib.Path) -> Iterator[pathlib.Path]:
        """A disk that is full, or a folder that is gone, in words."""
        try:
            yield file
        except (OSError, RuntimeError) as e:
            cause = e if isinstance(e, OSError) else e.__context__  # torch says of it that a position is unexpected
            if not isinstance(cause, OSError):
                raise
            raise Error(INVALID, f"{cause.filename or file} cannot be written: {cause.strerror}: see to that and start again; {self._kept()}") from None

    def _resume(self) -> None:
        """The first process goes on from its checkpoint; another only looks how far its own is."""
        if not self.rank:
            self._hold()
        if not self.file.exists():
            if not self.rank:
                self._cut_log()
            return
        try:
            saved = torch.load(self.file, map_location="cpu", weights_only=True, mmap=self.rank > 0)
        except Exception as e:
            raise Error(INVALID, f"{self.file} is no checkpoint ({e}): move it away to begin anew") from None
        if saved.get("format") != FORMAT or saved["manifest"] != _digest(self.toml):
            raise Error(INVALID, f"{self.file} is of another manifest: give that one, or another --out")
        if saved.get("files", self.files) != self.files:  # earlier files have none
            raise Error(INVALID, f"{self.file} is of other vocabularies or lengths than the files that the manifest names now: give those, or another --out")
        for name in _KEPT:
            had = saved.get(name)  # earlier files have the seed alone
            if had is not None and had != getattr(self.options, name):
                option = f"--{name}" if isinstance(had, bool) else f"--{name} {had}"
                what = f"has no {option}: leave it out" if had is False else f"has {option}: give it"
                raise Error(INVALID, f"{self.file} {what}, or give another --out")
        self.saved = saved["step"]
        if not self.rank:
            self._restore(saved)
            self._cut_log()
            if self.place_in_chunk and saved.get("batches", self.batches) != self.batches:
                print(f"attnkit.train: --data, --tokens or the processes are not those of {self.file}: pass {self.chunk + 1} of the data begins anew",
                      file=sys.stderr)
                self.place_in_chunk = 0
            if self.best < math.inf and saved.get("judged_by", self.judged_by) != self.judged_by:
                print(f"attnkit.train: --dev is not that of {self.file}: what was best on that one counts no more", file=sys.stderr)
                self.best, self.worse, self.best_average, self.evaluated = math.inf, 0, None, -1

    def _hold(self) -> None:
        """Keeps other trainings from the folder, until this one ends in whatever way."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self.held = open(self.out / "log.jsonl", "a+b")
        except OSError as e:
            raise Error(INVALID, f"--out {self.out}: {e.strerror}: name a folder that can be made and written") from None
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Error(INVALID, f"--out {self.out}: another training writes it: give another --out") from None
        except OSError:  # a file system without locks
            pass

    def _let_go(self) -> None:
        if self.held is not None:
            self.held.close()

    __del__ = _let_go  # of one that never ran

    def _restore(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.beside.load_state_dict(saved["beside"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"]):
            asked = [{key: group[key] for key in ("peak", "weight_decay")} for group in optimizer.param_groups]
            optimizer.load_state_dict(state)
            for group, values in zip(optimizer.param_groups, asked):
                group.update(values)
        for name in _STATE:
            setattr(self, name, saved.get(name, getattr(self, name)))  # earlier files have fewer
        self.average = [value.to(self.device) for value in self.average]
        self.best_average = self.best_average and [value.to(self.device) for value in self.best_average]
        if self.options.patience and self.best_average is None:  # there was none before
            self.best, self.worse = math.inf, 0
        self.chunk_began = saved.get("chunk_began", self.progress())  # earlier files have none

    def _go_on_with_the_first(self) -> None:
        """Gives all processes the state of the first, which alone has a checkpoint where they share no disk."""
        (first, _), *others = self.processes.all((self.saved, str(self.file)))
        for name, (saved, file) in zip(self.processes.names[1:], others):
            if saved > first:
                has = f"one of step {first}" if first >= 0 else "none"
                raise Error(INVALID, f"{name} has {file} of step {saved}, and {self.processes.names[0]}, whose checkpoint all go on from, has {has}: "
                                     "start that node as the first, copy its file there, or move it away")
        state = self.processes.first({} if self.rank else self._state())
        if self.rank:
            self.saved = first
            self._restore(state)

    def _cut_log(self) -> None:
        """The steps behind the checkpoint are made again, and so are their lines."""
        assert self.held is not None
        self.held.seek(0)
        read = kept = 0
        for line in self.held:
            read += len(line)
            with contextlib.suppress(ValueError, LookupError, TypeError):  # the last one may have been cut off
                kept = read if json.loads(line)["step"] <= self.step else kept
        self.held.truncate(kept)

    def _export(self) -> pathlib.Path | None:
        """out/model, of the best average if training may stop early, else of the last."""
        if self.rank:
            return None
        values, half = (self.options.patience and self.best_average) or self.average, self.options.f16
        for name, value in zip(self.named, values) if half else ():
            if torch.isinf(value.half()).any() and not name.startswith("beside."):
                raise Error(INVALID, f"--f16 ends at 65504, and {name} has {value.abs().max():g}: export without it")
        with self._averaged([value.half().float() for value in values] if half else values), self._writing(self.out / "model"):
            return self.model.export(self.out / "model", half=half)


class _Interrupt:
    """Ctrl-C, SIGTERM and the SIGHUP of a terminal that goes as a flag, so that a step is finished and saved; a second Ctrl-C or SIGTERM ends at once."""

    def __enter__(self) -> _Interrupt:
        self.seen = False
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            signals.append(signal.SIGHUP)
        self._before: dict[int, Any] = {s: signal.signal(s, self._note) for s in signals}
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        self.seen = True
        if number != signal.SIGHUP:  # a shell that ends sends it, and so does the kernel
            signal.signal(number, self._before[number])

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """To whoever watches: training does not end with a terminal or a pipe."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


_KINDS = ("self", "cross", "ffn")


def _block(name: str) -> str:
    """The block that a parameter is of, or the parameter's own name."""
    stack, kind, *rest = [*name.split("."), ""]
    return f"{stack}.{kind}.{rest[0]}" if kind in _KINDS and rest[0].isdigit() else name


def _place(name: str) -> tuple[float, ...]:
    """Sorts parameters as a forward pass uses them; those of `model` are of all blocks."""
    stack, kind, *rest = [*name.split("."), ""]
    place = {"model": -1, "encoder": 0, "decoder": 1}.get(stack, 2)
    if kind in _KINDS and rest[0].isdigit():
        return place, int(rest[0]), _KINDS.index(kind)
    return place, math.inf if kind == "norm" else 0


def _decay(schedule: str, begin: float, progress: float) -> float:
    """1 until `begin` of the budget, then to 0 along a line or half a cosine."""
    left = min(1.0, (1 - progress) / max(1e-9, 1 - begin))
    return {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left)}[schedule]


def _device(name: str) -> torch.device:
    """The device of --device; of several GPUs a process takes the one of its place in its node."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise Error(INVALID, f"--device {name}: cpu, cuda or one GPU, as cuda:0, is needed")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise Error(UNSUPPORTED, f"--device {name}: PyTorch {torch.__version__} finds no GPU here: train with --device cpu")
        index, count = int(os.environ.get("LOCAL_RANK", 0)) if device.index is None else device.index, torch.cuda.device_count()
        if index >= count:
            raise Error(INVALID, f"--device {name}: this process needs GPU {index}, of 0 to {count - 1} that are here: start fewer processes on this node, "
                                 "or name one GPU for all")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _give_back() -> None:
    """Free memory goes back to the system: tensors of many shapes leave it between others, more with every step, where glibc keeps it."""
    with contextlib.suppress(AttributeError):  # other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def _has_bf16(device: torch.device) -> bool:
    """Does the device multiply bfloat16 by itself?  Otherwise that is slower than float32, as autocast and in Muon."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _contents(path: str | None) -> str | None:
    """The digest of a file, or of FILE.py with the name of its function; else the path."""
    if path is None:
        return None
    name, _, function = path.rpartition(":")
    file, function = (name, f":{function}") if name.endswith(".py") else (path, "")
    if not os.path.isfile(file):
        return path
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() + function


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise Error(INVALID, f"{path}: {e}") from None
