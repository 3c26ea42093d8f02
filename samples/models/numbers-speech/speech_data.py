"""Endless training batches from the pool, and batches of dev and test."""
import json
import random

import numpy as np
import torch

from features import BINS, SHIFT, frames
from paths import TEXT  # noqa: F401
from pool import FOLDER
from speakers import RATE, SPEAKERS
from speech_model import SUBSAMPLING
from batches import grouped, padded
from vocabulary import BOS, EOS, WORD, Tokenizer, load

CHUNK = 640
LONGEST = 5  # phrases
FLOOR = float(np.log(np.finfo(np.float32).eps))  # the frame of silence
PAUSES = {"first": (0.0, 0.3), "between": (0.1, 0.4), "last": (0.1, 0.5)}  # seconds, beside the pool's own edges


def words_of(text):
    """What the auxiliary loss spells the speech with."""
    return text.replace("-", " ").split()


class Pool:
    """Frames and texts of the spoken phrases, by speaker."""

    def __init__(self, tokenizer):
        self.frames, self.phrases = [], [[] for _ in SPEAKERS]
        for index in sorted(int(p.stem) for p in FOLDER.glob("*.json")):
            data = np.load(FOLDER / f"{index}.npy", mmap_mode="r")
            start = 0
            for english, german, speaker, length in json.loads((FOLDER / f"{index}.json").read_text(encoding="utf-8")):
                self.phrases[speaker].append((data[start:start + length], words_of(english), tokenizer.encode(german)))
                start += length
        words = {word for phrases in self.phrases for _, english, _ in phrases for word in english}
        self.words = {word: i for i, word in enumerate(sorted(words), 1)}  # 0 is the blank


class Batch:
    """frames (B, T, bins); rows (B) of the encoder; entered starts with <s>; expected ends in </s>, PAD elsewhere;
    words: the spoken ones, for the auxiliary loss."""

    def __init__(self, items):
        self.frames = torch.full((len(items), max(len(f) for f, _, _ in items), BINS), FLOOR)
        for row, (made, _, _) in zip(self.frames, items):
            row[:len(made)] = torch.as_tensor(made)
        self.rows = torch.tensor([len(f) // SUBSAMPLING for f, _, _ in items])
        self.entered = padded([target for _, _, target in items], (BOS,))
        self.expected = padded([target + [EOS] for _, _, target in items])
        self.words = [words for _, words, _ in items]


def by_rows(items, rows):
    """Index groups of similar length, at most about `rows` rows of the encoder each."""
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]))
    return grouped(order, lambda i: len(items[i][0]) // SUBSAMPLING, rows)


class TrainingData:
    def __init__(self, seed):
        self.tokenizer = Tokenizer(load())
        self.pool, self.seed = Pool(self.tokenizer), seed
        self.separator = self.tokenizer.ids[WORD + ";"]
        noise = np.random.default_rng(seed).standard_normal(RATE * 60, dtype=np.float32)
        self.noise = frames(noise).numpy()

    def _silence(self, rng, kind):
        low, high = PAUSES[kind]
        return np.full((round(rng.uniform(low, high) * RATE / SHIFT), BINS), FLOOR, np.float32)

    def _list(self, rng, count):
        """One speaker says `count` phrases, at some loudness, in some noise."""
        chosen = rng.choices(rng.choice(self.pool.phrases), k=count)
        parts, words, target = [self._silence(rng, "first")], [], []
        gain = 2 * np.log(rng.uniform(0.3, 1.2))
        for i, (spoken, english, german) in enumerate(chosen, 1):
            parts += [spoken.astype(np.float32) + gain, self._silence(rng, "between" if i < count else "last")]
            words += [self.pool.words[word] for word in english]
            target += german + [self.separator]
        clean = np.concatenate(parts)
        loudness = 2 * np.log(10) * rng.uniform(-4, -2.3)
        at = rng.randrange(len(self.noise) - len(clean))
        # Powers add up but for their phases, which noise has none of.
        return np.logaddexp(clean, self.noise[at:at + len(clean)] + loudness), words, target[:-1]

    def chunk(self, index, longest, rows):
        rng = random.Random(f"{self.seed}:{index}")
        items = [self._list(rng, rng.randint(1, longest)) for _ in range(CHUNK)]
        groups = by_rows(items, rows)
        rng.shuffle(groups)
        for group in groups:
            yield Batch([items[i] for i in group])

    def normalisation(self):
        """(mean, scale) per bin, as precise as the exported file."""
        made = torch.cat([batch.frames.flatten(0, 1) for batch in self.chunk(-1, LONGEST, 4000)])
        return made.mean(0).half().float(), (1 / made.std(0)).half().float()
