"""Lists of phrases from a seed; writes dev.tsv and test.tsv when run, and gives python -m attnkit.train its examples.

No value of 1,000 or more (a number, an amount or a year) is in more than one of train, dev and test.
"""
import functools
import hashlib
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import phrases  # noqa: E402

SEED = 20240303
BUCKETS = [(1, 2), (3, 4), (5, 8), (9, 12), (13, 16)]
LISTS_PER_BUCKET = 400
POOL = 100_000      # phrases that training lists are made of
CHUNK = 2048        # lists
GROWING = 0.12      # part of the training in which lists grow: alignment is learned on short ones and carries over
SEPARATOR = " ; "
YEARS = range(1500, 2100)


def split_of(value):
    """The one split that may use a value of 1,000 or more: a tenth dev, a tenth test, the rest train."""
    if value == 1_000_000:
        return "train"  # "one million" is the only phrase that shows "eine Million"
    digest = hashlib.sha256(f"{SEED}:{value}".encode()).digest()
    return {0: "dev", 1: "test"}.get(digest[0] % 10, "train")


class PhraseSource:
    """Draws phrases of one split."""

    def __init__(self, split, seed):
        self.split = split
        self.random = random.Random(f"{split}:{seed}")
        self.years = [y for y in YEARS if split_of(y) == split]

    def phrase(self):
        # Bare small numbers and ordinals are the hard ones in a list: nothing but their place tells them apart.
        makers = (self._number, self._ordinal, self._date, self._time, self._price)
        return self.random.choices(makers, (18, 12, 22, 22, 26))[0]()

    def _allowed(self, low, high, step=1):
        while True:
            value = self.random.randrange(low, high, step)
            if value < 1000 or split_of(value) == self.split:
                return value

    def _value(self):
        kind = self.random.random()
        if kind < 0.06:
            return self._allowed(0, 20)
        if kind < 0.14:
            return self._allowed(20, 100)
        if kind < 0.34:
            return self._allowed(100, 1000)
        if kind < 0.60:
            return self._allowed(1000, 10_000)
        if kind < 0.98:
            return self._allowed(10_000, 1_000_000)
        if kind < 0.985 and self.split == "train":
            return 1_000_000
        return self._allowed(2_000_000, 100_000_000, 1_000_000)

    def _number(self):
        return phrases.cardinal(self._value())

    def _ordinal(self):
        return phrases.ordinal(self.random.randint(1, 31))

    def _date(self):
        month = self.random.randint(1, 12)
        day = self.random.randint(1, 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31)
        dated = self.random.random() < 0.6
        return phrases.date(day, month, self.random.choice(self.years) if dated else None)

    def _time(self):
        hour = self.random.randint(1, 12)
        if self.random.random() < 0.5:
            return phrases.spoken_time(hour, self.random.choice((5, 10, 15, 20, 30, 40, 45, 50, 55)))
        return phrases.clock(hour, self.random.choice((0, self.random.randint(1, 59))))

    def _price(self):
        kind = self.random.random()
        if kind < 0.5:
            return phrases.price(max(1, self._value()))
        if kind < 0.7:
            return phrases.price(0, self.random.randint(1, 99))
        return phrases.price(self.random.randint(1, 99), self.random.randint(1, 99))

    def list(self, count):
        pairs = [self.phrase() for _ in range(count)]
        return SEPARATOR.join(p[0] for p in pairs), SEPARATOR.join(p[1] for p in pairs)


def held_out(split, lists_per_bucket=LISTS_PER_BUCKET, seed=SEED):
    """Distinct lists in equal parts over the buckets."""
    source, seen = PhraseSource(split, seed), {}
    for low, high in BUCKETS:
        wanted = len(seen) + lists_per_bucket
        while len(seen) < wanted:
            count = low + len(seen) % (high - low + 1)
            english, german = source.list(count)
            seen.setdefault(english, german)
    return list(seen.items())


@functools.lru_cache(maxsize=1)
def _pool(seed):
    source = PhraseSource("train", seed)
    return [source.phrase() for _ in range(POOL)]


def training(seed, chunk, progress):
    """The lists of one chunk: 1 to 2 phrases at first, later 1 to 16."""
    drawn, most = random.Random(f"{seed}:{chunk}"), BUCKETS[-1][1]
    longest = min(most, 2 + int((most - 2) * progress / GROWING))
    for _ in range(CHUNK):
        pairs = drawn.choices(_pool(seed), k=drawn.randint(1, longest))
        yield SEPARATOR.join(p[0] for p in pairs), SEPARATOR.join(p[1] for p in pairs)


def bucket_of(text):
    count = text.count(";") + 1
    return next(i for i, (low, high) in enumerate(BUCKETS) if low <= count <= high)


def read_tsv(path):
    return [tuple(line.split("\t")) for line in Path(path).read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    for name in ("dev", "test"):
        lines = (f"{english}\t{german}\n" for english, german in held_out(name))
        (HERE / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
