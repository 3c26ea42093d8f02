"""Simultaneous translation of a source as it arrives: what attnkit stream simulates, for hosts whose source is live."""

from __future__ import annotations

import array
from typing import Any, Sequence, Union

from ._arguments import limit_of
from ._tensor import Result
from .arriving import ArrivingSpeech, ArrivingText
from .error import INTERNAL, INVALID, Error
from .model import TARGET, Model
from .policy import READ, STOP, Policy, View
from .session import Session


NEVER = float("-inf")


def best(logits: Union[memoryview, Result], before: Sequence[int] = (), penalty: float = 1.0, no_repeat: int = 0) -> int:
    """The id with the highest of the scores of one position, the first of equals.  before: the tokens that were there, which
    [decode] repetition_penalty and no_repeat look back at."""
    scores = array.array("f", logits.cast("B").cast("f"))
    if any(score != score for score in scores):
        raise Error(INTERNAL, "the model's scores are not numbers (NaN): its weights or a mechanism are broken")
    if penalty != 1:
        for token in set(before):
            scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    if no_repeat:
        n = no_repeat - 1
        last = before[len(before) - n:] if n else before[:0]
        repeats = {before[i + n] for i in range(len(before) - n) if before[i:i + n] == last}
        if any(score > NEVER and token not in repeats for token, score in enumerate(scores)):  # else one that must come was there
            for token in repeats:
                scores[token] = NEVER
    top = max(scores)
    if top == NEVER:
        raise Error(INVALID, "no token may follow: suppress, suppress_first and min_length of [decode] leave none")
    return scores.index(top)


class Incremental:
    """One input.  Give what arrived to add(), say finish() after the last, and take words from advance() in between.

    Reads and writes exactly as attnkit_session_simulate would with the same policy (a function of the View alone), however
    the source was cut: decisions fall unit by unit, and what was read is handed to the model before the next token.  But without
    a limit an output that has as many tokens as the source so far allows waits for more of it, whatever the policy says.
    Of text the end belongs to the last word: say finish() before the advance() that follows it, or that word is read
    without the end first, as simulate never does.
    finished: nothing more will come.  made: the ids written.  limit: most tokens; 0: 1.5 times the source and 20.
    """

    def __init__(self, model: Model, policy: Policy, limit: int = 0) -> None:
        self._model, self._policy, limit = model, policy, limit_of(limit)
        self._session, described = Session(model, 1), model.describe()
        decode, longest = described["decode"], int(described["max_target"])
        self._rules = decode["repetition_penalty"], decode["no_repeat"]
        self._source: Union[ArrivingSpeech, ArrivingText] = (ArrivingSpeech if model.info.sample_rate else ArrivingText)(model)
        self._read, self._said, self._complete = 0, 0, False
        self._most, self._longest = limit or 20, min(limit or longest, longest)  # tokens: by the source so far, and whatever comes
        self.made: list[int] = []
        self.finished = False

    def add(self, source: Any) -> None:
        """Text in whole words, or float samples."""
        if not self.finished:
            self._source.add(source)

    def finish(self) -> None:
        """The source is complete."""
        self._source.finish()

    def advance(self) -> list[str]:
        """Goes on until the policy asks for something that has not arrived; the words completed since the last call."""
        self.finished = self.finished or (self._source.finished and self._source.units == 0)
        while not self.finished:
            ended = self._source.finished and self._read == self._source.units
            full = self._full(ended)
            if full and (ended or len(self.made) == self._longest):
                self.finished = True
                break
            action = READ if full else self._policy(View(self._read, len(self.made), int(ended)))
            if action == READ and not ended:
                if self._read == self._source.units:
                    break
                self._read += 1
            elif action == STOP:
                self.finished = True
            else:
                self._write(ended)
        return self._words()

    def _full(self, ended: bool) -> bool:
        """Whether the output has as many tokens as the source so far allows."""
        if self._most <= len(self.made) < self._longest:
            self._hand_over(ended)
            self._most = self._session.describe()["source_length"] * 3 // 2 + 20
        return len(self.made) >= min(self._most, self._longest)

    def _hand_over(self, ended: bool) -> None:
        more = self._source.take(self._read)
        if len(more) or (ended and not self._complete):
            self._session.read(more, last=ended)
        self._complete = ended

    def _write(self, ended: bool) -> None:
        if self._read == 0:
            raise Error(INVALID, "the policy wants to write before anything of the source was read: it must read first")
        self._hand_over(ended)
        info = self._model.info
        before = [info.begin_id, *self.made]
        self.made.append(best(self._session.write([before[-1:]]), before, *self._rules))
        self.finished = self.made[-1] == info.end_id

    def _words(self) -> list[str]:
        """A word is complete once the next one begins, or the output ends."""
        words = [word for word in self._model.detokenize(TARGET, self.made).split(" ") if word]
        if not self.finished:
            words = words[:-1]
        new, self._said = words[self._said:], max(self._said, len(words))
        return new
