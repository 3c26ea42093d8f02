"""Endless training batches from the pool, and batches of recordings."""
import json
import random
from pathlib import Path

import numpy as np
import torch

import attnkit
from attnkit.train.examples import Batch, by_length
from paths import SEPARATOR
from speakers import RATE, SHIFT, SPEAKERS, frames
from utterances import LONGEST, read_wav

CHUNK = 640
GROWING = 0.2  # part of the training in which lists grow: alignment is learned on short ones and carries over
FLOOR = float(np.log(np.finfo(np.float32).eps))  # the frame of silence
PAUSES = {"first": (0.0, 0.3), "between": (0.1, 0.4), "last": (0.1, 0.5)}  # seconds, beside the pool's own edges


def words_of(text):
    """The words by which the auxiliary loss spells the speech."""
    return text.replace("-", " ").split()


class SpokenBatch(Batch):
    """source holds frames (B, T, bins); words: the spoken ones, for the auxiliary loss."""

    def __init__(self, items, info):
        heard, targets, self.words = zip(*items)
        super().__init__([([], target) for target in targets], info, False)
        self.source = torch.full((self.rows, max(map(len, heard)), info.features), FLOOR)
        for row, made in zip(self.source, heard):
            row[:len(made)] = torch.as_tensor(made)
        self.source_lengths = torch.tensor(list(map(len, heard)))


def batches(items, info, rows):
    """items: (frames, target, words); at most about `rows` rows of the encoder each."""
    return [SpokenBatch(group, info) for group in by_length(items, rows * info.subsampling)]


def spoken(core, path, limit, rows):
    """Batches of the recordings that a list names, file TAB German, evenly drawn."""
    lines = [line.split("\t") for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return batches([(frames(core, read_wav(Path(path).parent / name)), core.tokenize(attnkit.TARGET, german), [])
                    for name, german in lines[::max(1, len(lines) // limit)][:limit]], core.info, rows)


class Lists:
    """Lists of the pool's phrases, put together from their frames."""

    def __init__(self, core, folder, seed):
        self.info, self.seed, texts, self.phrases = core.info, seed, [], [[] for _ in SPEAKERS]
        for path in sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem)):
            data, start = np.load(path.with_suffix(".npy"), mmap_mode="r"), 0
            for english, german, speaker, length in json.loads(path.read_text(encoding="utf-8")):
                texts.append(words_of(english))
                self.phrases[speaker].append((data[start:start + length], core.tokenize(attnkit.TARGET, german), texts[-1]))
                start += length
        self.words = {word: i for i, word in enumerate(sorted({word for words in texts for word in words}), 1)}  # 0 is the blank
        self.phrases = [phrases for phrases in self.phrases if phrases]
        self.separator = core.tokenize(attnkit.TARGET, SEPARATOR)
        self.noise = frames(core, np.random.default_rng(seed).standard_normal(RATE * 60, dtype=np.float32))

    def chunk(self, seed, number, progress, rows):
        rng = random.Random(f"{seed}:{number}")
        longest = min(LONGEST, 1 + int(LONGEST * progress / GROWING))
        made = batches([self._list(rng, rng.randint(1, longest)) for _ in range(CHUNK)], self.info, rows)
        rng.shuffle(made)
        return made

    def normalisation(self, rows):
        """(mean, scale) per bin."""
        made = torch.cat([batch.source.flatten(0, 1) for batch in self.chunk(self.seed, -1, 1.0, rows)])
        return made.mean(0), 1 / made.std(0)

    def _silence(self, rng, kind):
        return np.full((round(rng.uniform(*PAUSES[kind]) * RATE / SHIFT), self.info.features), FLOOR, np.float32)

    def _list(self, rng, count):
        """One speaker says `count` phrases, at some loudness, in some noise."""
        chosen = rng.choices(rng.choice(self.phrases), k=count)
        parts, words, target = [self._silence(rng, "first")], [], []
        gain = 2 * np.log(rng.uniform(0.3, 1.2))
        for i, (made, german, english) in enumerate(chosen, 1):
            parts += [made.astype(np.float32) + gain, self._silence(rng, "between" if i < count else "last")]
            words += [self.words[word] for word in english]
            target += [*german, *(self.separator if i < count else ())]
        clean = np.concatenate(parts)
        loudness = 2 * np.log(10) * rng.uniform(-4, -2.3)
        at = rng.randrange(len(self.noise) - len(clean))
        # Powers add up but for their phases, which noise has none of.
        return np.logaddexp(clean, self.noise[at:at + len(clean)] + loudness), target, words
