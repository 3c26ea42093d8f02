"""A source that arrives bit by bit, in the units that policies count."""

from __future__ import annotations

import array
from typing import Iterable

from .error import INVALID, Error
from .model import SOURCE, Model


class ArrivingText:
    """A unit is a word with all its tokens; </s> comes with the last."""

    def __init__(self, model: Model) -> None:
        self._model, self._known = model, (0, False)  # the units in _ids, and whether the end is
        self._words: list[str] = []
        self._ids: list[int] = []
        self.finished = False

    @property
    def units(self) -> int:
        """The number of words that have arrived."""
        return len(self._words)

    def add(self, text: str) -> None:
        """More of the source, whole words, which one space joins."""
        self._model.tokenize(SOURCE, text)  # refuses what cannot be spelled
        self._words += text.split()

    def finish(self) -> None:
        """Nothing more comes."""
        self.finished = True

    def take(self, units: int) -> list[int]:
        """Of the first `units` what was not taken before; empty when all was."""
        known = units, self.finished and units == self.units
        if known == self._known:
            return []
        # All of the text anew: what a word's tokens are may depend on what is before it.
        ids = self._model.tokenize(SOURCE, " ".join(self._words[:units]))
        before, n = self._ids, len(self._ids)
        if ids[:n] != before:
            raise Error(INVALID, f"the tokens of the source's first {self._known[0]} words are others once there are {units}: this vocabulary "
                                 "is for whole sources")
        self._known, self._ids = known, ids
        return [*ids[n:], self._model.info.end_id] if known[1] else ids[n:]


class ArrivingSpeech:
    """A unit is what completes the next row of the encoder; the last one comes with the rest."""

    def __init__(self, model: Model) -> None:
        info = model.info
        self._first = info.frame_length + (info.subsampling - 1) * info.frame_shift
        self._shift = info.subsampling * info.frame_shift
        self._samples, self._taken = array.array("f"), 0  # those not taken yet; how many were
        self.finished = False

    @property
    def units(self) -> int:
        """The number of rows of the encoder that have arrived."""
        arrived = self._taken + len(self._samples)
        rows = max(0, (arrived - self._first) // self._shift + 1)
        return 1 if self.finished and arrived and not rows else rows  # too little for a row: the model says so

    def add(self, samples: Iterable[float]) -> None:
        """More of the source, any number of samples."""
        self._samples.extend(samples)

    def finish(self) -> None:
        """Nothing more comes."""
        self.finished = True

    def take(self, units: int) -> array.array[float]:
        """As ArrivingText.take, in samples."""
        n = len(self._samples)
        if not self.finished or units < self.units:
            n = max(0, self._first + (units - 1) * self._shift - self._taken)
        samples, self._samples = self._samples[:n], self._samples[n:]
        self._taken += n
        return samples
