"""Examples of a data set as ids, and batches of them of about equal length."""

from __future__ import annotations

import array
import copy
import importlib.util
import itertools
import pathlib
import random
import sys
import traceback
from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence, TypeVar, Union, cast, overload

import torch

import attnkit

from .._abi import ATTNKIT_DECODER, ATTNKIT_ENCODER
from ..error import INVALID, Error
from ..torch.loss import IGNORED

if TYPE_CHECKING:
    from .._types import Path

Row = tuple[Sequence[int], Union[int, Sequence[int]]]  # source; class or target
AnyRow = TypeVar("AnyRow", bound="tuple[Any, ...]")
Draw = Callable[[int, int, float], Iterable[Iterable[object]]]  # (seed, chunk, progress) to pairs
SHUFFLED = 4096  # examples that are sorted by length together


class Batch:
    """source (B, N) with its lengths; entered (B, T) begins with <s> and the forced tokens, which are not expected; expected ends in
    </s>; for a classifier it is (B).  read (B): how many rows of the source the model gets, visible (B, T): of these each token; None: all, or as Trainer.visible draws."""

    source: torch.Tensor | None = None
    source_lengths: torch.Tensor | None = None
    read: torch.Tensor | None = None
    visible: torch.Tensor | None = None
    entered: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    forced = 0  # tokens

    def __init__(self, rows: Sequence[Row], info: attnkit.ModelInfo, classifies: bool, forced: Sequence[int] = ()) -> None:
        sources, targets = zip(*rows)
        self.rows = self.all_rows = len(rows)
        self.part = slice(None)  # of all rows, the ones here
        self.forced = len(forced)
        if info.kind != ATTNKIT_DECODER:
            self.source, self.source_lengths = _padded(sources, 0)
        if classifies:
            self.expected = torch.tensor(targets)
        else:
            # A text without a begin token begins with its own first token, which nothing before it tells.
            first = [*([info.begin_id] if info.begin_id >= 0 else []), *forced]
            self.entered, self.lengths = _padded([[*first, *target] for target in targets], 0)
            given = [IGNORED] * (len(first) - 1)
            self.expected, _ = _padded([[*given, *target[0 if first else 1:], info.end_id] for target in targets], IGNORED)
        self.tokens = int((self.expected != IGNORED).sum())

    def share(self, rank: int, world: int) -> Batch:
        """The rows of one process of several, every world-th; one that gets none has the first, of which nothing is expected."""
        if world == 1:
            return self
        part, empty = copy.copy(self), rank >= self.rows
        part.part = slice(1) if empty else slice(rank, None, world)
        for name, value in vars(self).items():
            if torch.is_tensor(value):
                setattr(part, name, value[part.part])
        if empty:
            part.expected = torch.full_like(part.expected, IGNORED)
        part.rows = len(part.expected)
        return part

    def to(self, device: torch.device) -> Batch:
        """The same with its tensors on a device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if torch.is_tensor(value):
                setattr(moved, name, value.to(device))
        return moved


def _padded(rows: Sequence[Sequence[int]], with_: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[with_] * (width - len(row))] for row in rows]), torch.tensor([len(row) for row in rows])


class Batches(Sequence[Batch]):
    """Batches of these groups of examples, each made when it is asked for."""

    def __init__(self, groups: Sequence[Sequence[Row]], info: attnkit.ModelInfo, classifies: bool, forced: Sequence[int] = ()) -> None:
        self._groups, self._kind = groups, (info, classifies, forced)

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, which: int) -> Batch: ...

    @overload
    def __getitem__(self, which: slice) -> list[Batch]: ...

    def __getitem__(self, which: int | slice) -> Batch | list[Batch]:
        if isinstance(which, slice):
            return [Batch(group, *self._kind) for group in self._groups[which]]
        return Batch(self._groups[which], *self._kind)


class Examples:
    """Lines "source TAB target" of a file (a classifier: "source TAB class", a decoder alone: the text), or, of "FILE.py:FUNCTION",
    the pairs that FUNCTION(seed, chunk, progress) yields for the chunk-th part of an endless data set."""

    rows: list[Row] | None
    draw: Draw

    def __init__(self, core: attnkit.Model, path: Path) -> None:
        self.core, self.info, self.path = core, core.info, str(path)
        description = core.describe()
        self.classifies = description["head"]["type"] == "classifier"
        self.reads_end = description["source_ends"]
        self.forced, self.longest_target = description["forced"], description["max_target"] or self.info.max_length
        if self.info.kind == ATTNKIT_ENCODER and not self.classifies or self.info.sample_rate:
            raise Error(INVALID, "attnkit.train takes models that read text and write text or a class; train others with attnkit.torch.Model, or a Trainer of your own, see docs/training.md")
        name, _, function = self.path.rpartition(":")
        if name.endswith(".py"):
            self.rows, self.draw = None, _function(name, function)
        else:
            self.rows = [self._ids(f"{self.path}:{number}", line.split("\t"), " with a TAB between") for number, line in _lines(self.path)]
            if not self.rows:
                raise Error(INVALID, f"{self.path} has no examples")

    def chunk(self, seed: int, number: int, progress: float, tokens: int) -> Batches:
        """The batches of the number-th pass, or chunk, in an order that the seed decides; about `tokens` tokens each, padding included."""
        order = random.Random(f"{seed}:{number}")
        if self.rows is None:
            rows = [self._ids(f"{self.path}, chunk {number}", pair) for pair in self._drawn(seed, number, progress)]
            if not rows:
                raise Error(INVALID, f"{self.path} gave no examples for chunk {number}")
        else:
            rows = order.sample(self.rows, len(self.rows))
        groups = [group for first in range(0, len(rows), SHUFFLED) for group in by_length(rows[first:first + SHUFFLED], tokens)]
        order.shuffle(groups)
        return Batches(groups, self.info, self.classifies, self.forced)

    def all(self, tokens: int, limit: int = 0) -> Batches:
        """The same batches every time, shortest first; limit: examples taken, evenly spread over the file; 0: all."""
        if self.rows is None:
            raise Error(INVALID, f"{self.path}: examples to judge by must be the same every time: give a file")
        taken = min(limit or len(self.rows), len(self.rows))
        rows = [self.rows[i * len(self.rows) // taken] for i in range(taken)]
        return Batches(by_length(rows, tokens), self.info, self.classifies, self.forced)

    def compare(self, other: attnkit.Model, name: str, seed: int) -> None:
        """Refuses a model that spells one of the first examples otherwise; name: what it is called."""
        rows = self._drawn(seed, 0, 0.0) if self.rows is None else (line.split("\t") for _, line in _lines(self.path))
        for fields in itertools.islice(rows, 1000):
            source, target = self._ids(self.path, fields)
            for side, text, ids in ((attnkit.SOURCE, fields[0], source[:-1]), (attnkit.TARGET, fields[-1], target))[-len(fields):]:
                mine = list(cast("Sequence[int]", ids))
                try:
                    theirs = other.tokenize(side, text)
                except Error as e:
                    raise Error(e.code, f"{name}: {e}: give it the model's vocabulary") from None
                if theirs != mine:
                    at = next((i for i, (a, b) in enumerate(zip(theirs, mine)) if a != b), min(len(theirs), len(mine)))
                    raise Error(INVALID, f"{name} spells \"{text[:60]}\" with {theirs[at:at + 4]} where the model has {mine[at:at + 4]}: give it the "
                                         "model's vocabulary")

    def _drawn(self, seed: int, number: int, progress: float) -> list[list[str]]:
        try:
            return [[pair] if isinstance(pair, str) else [str(field) for field in pair] for pair in self.draw(seed, number, progress)]
        except Exception as e:
            raise Error(INVALID, f"{self.path}, chunk {number}: {_said(e, self.path.rpartition(':')[0])}") from e

    def _ids(self, place: str, fields: list[str], between: str = "") -> Row:
        """(source, target), the source with </s> and the target without; a class in place of the target.  place: where they stand."""
        wanted = 1 if self.info.kind == ATTNKIT_DECODER else 2
        if len(fields) != wanted:
            raise Error(INVALID, f"{place}: {len(fields)} fields, not {wanted}{between}: "
                                 f"{'the text' if wanted == 1 else 'source and class' if self.classifies else 'source and target'}")
        text = fields[-1]
        source: list[int] = []
        target: list[int] | int
        try:
            if self.info.kind != ATTNKIT_DECODER:
                source = [*self.core.tokenize(attnkit.SOURCE, fields[0]), self.info.end_id]
            target = [] if self.classifies else self.core.tokenize(attnkit.TARGET, text)
        except Error as e:
            raise Error(e.code, f"{place}: {e}: leave this example out, or give the model a vocabulary that has it") from None
        if self.classifies:
            if not text.isdecimal() or int(text) >= self.info.outputs:
                raise Error(INVALID, f"{place}: class \"{text}\" is none of 0 to {self.info.outputs - 1}")
            target = int(text)
        elif not target and self.info.begin_id < 0:
            raise Error(INVALID, f"{place}: \"{text[:60]}\" has no tokens, and this model has none that begins a text: leave it out")
        read = len(source) - (not self.reads_end)
        if self.info.kind != ATTNKIT_DECODER and not read:
            raise Error(INVALID, f"{place}: the source has no tokens, and this model reads none that ends it (end = false of [model.encoder]): leave it out")
        sides = [(read, self.info.max_length, fields[0])]
        if not isinstance(target, int):
            sides.append((len(target) + (self.info.begin_id >= 0) + len(self.forced), self.longest_target, text))
        for tokens, most, which in sides:
            if tokens > most:
                raise Error(INVALID, f"{place}: \"{which[:60]}\" has {tokens} tokens with those around it, max_length is {most}: shorten it or leave "
                                     "it out")
        # Lists would hold an object of Python's for each number.
        return array.array("i", source), target if isinstance(target, int) else array.array("i", target)


def by_length(rows: Iterable[AnyRow], tokens: int) -> list[list[AnyRow]]:
    """Groups of similar length that take at most about `tokens` when padded."""
    def size(row: AnyRow) -> int:
        return max(len(row[0]), 0 if isinstance(row[1], int) else len(row[1]) + 1)

    groups: list[list[AnyRow]] = []
    group: list[AnyRow] = []
    for row in sorted(rows, key=lambda row: (size(row), len(row[0]))):
        if group and size(row) * (len(group) + 1) > tokens:
            groups.append(group)
            group = []
        group.append(row)
    return [*groups, group]


def _lines(path: str) -> list[tuple[int, str]]:
    try:
        text = pathlib.Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise Error(INVALID, f"{path}: {e}") from None
    return [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _function(path: str, name: str) -> Draw:
    try:
        spec = importlib.util.spec_from_file_location(f"attnkit_examples_{pathlib.Path(path).stem}", path)
        assert spec is not None and spec.loader is not None  # the name ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look for it
        spec.loader.exec_module(module)
        return getattr(module, name)
    except Exception as e:
        raise Error(INVALID, f"{path}:{name}: {_said(e, path)}") from e


def _said(e: Exception, path: str) -> str:
    """An error that the code of a file raised, in one line, with the place."""
    file = pathlib.Path(path).name
    lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if pathlib.Path(frame.filename).name == file]
    return f"{type(e).__name__}: {' '.join(str(e).split())}" + (f" (line {lines[-1]})" if lines else "")
