"""A source that arrives bit by bit, in the units that policies count."""

import array

from .model import SOURCE


class ArrivingText:
    """A unit is a word with all its tokens; </s> comes with the last."""

    def __init__(self, model):
        self._model, self._ids, self._ends, self._taken = model, [], [], 0
        self.finished = False

    @property
    def units(self):
        return len(self._ends)

    def add(self, text):
        for word in text.split():
            self._ids += self._model.tokenize(SOURCE, word)
            self._ends.append(len(self._ids))

    def finish(self):
        if not self.finished and self._ends:
            self._ids.append(self._model.info.end_id)
            self._ends[-1] += 1
        self.finished = True

    def take(self, units):
        """Of the first `units` what was not taken before; empty when all was."""
        begin, self._taken = self._taken, self._ends[units - 1]
        return self._ids[begin:self._taken]


class ArrivingSpeech:
    """A unit is a position of the encoder; it is there with the last sample of its last frame.

    Samples behind the last whole one are a unit of their own once the source has ended.
    """

    def __init__(self, model):
        info = model.info
        self._first = info.frame_length + (info.subsampling - 1) * info.frame_shift
        self._shift = info.subsampling * info.frame_shift
        self._samples, self._taken = array.array("f"), 0  # those not taken yet; how many were
        self.finished = False

    @property
    def units(self):
        arrived = self._taken + len(self._samples)
        whole = max(0, (arrived - self._first) // self._shift + 1)
        return whole + (self.finished and arrived > self._end(whole))

    def add(self, samples):
        self._samples.extend(samples)

    def finish(self):
        self.finished = True

    def take(self, units):
        n = self._end(units) - self._taken  # of the last unit there may be fewer
        samples, self._samples = self._samples[:n], self._samples[n:]
        self._taken += len(samples)
        return samples

    def _end(self, units):
        return self._first + (units - 1) * self._shift if units else 0
