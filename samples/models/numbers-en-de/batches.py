"""Endless training batches and padded evaluation batches."""
import random

import torch

from generate import PhraseSource
from vocabulary import BOS, EOS, PAD, WORD

POOL = 400_000
CHUNK = 2048


def padded(rows, first=()):
    width = max(map(len, rows)) + len(first)
    return torch.tensor([[*first, *row] + [PAD] * (width - len(row) - len(first)) for row in rows])


class Batch:
    """source ends in </s>; entered starts with <s>; expected ends in </s> and is PAD where nothing is expected."""

    def __init__(self, pairs):
        self.source = padded([source + [EOS] for source, _ in pairs])
        self.lengths = torch.tensor([len(source) + 1 for source, _ in pairs])
        self.entered = padded([target for _, target in pairs], (BOS,))
        self.expected = padded([target + [EOS] for _, target in pairs])
        self.target_lengths = torch.tensor([len(target) + 1 for _, target in pairs])


def grouped(order, size, most):
    """Splits indices in the order of their sizes into groups that take at most about `most` when padded."""
    groups, group = [], []
    for i in order:
        if group and size(i) * (len(group) + 1) > most:
            groups.append(group)
            group = []
        group.append(i)
    return groups + [group]


def by_length(pairs, tokens):
    """Index groups of similar length, at most about `tokens` target tokens each."""
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
    return grouped(order, lambda i: len(pairs[i][1]) + 1, tokens)


class TrainingData:
    def __init__(self, tokenizer, seed, pool=POOL):
        source = PhraseSource("train", seed)
        self.pool = [(tokenizer.encode(en), tokenizer.encode(de)) for en, de in (source.phrase() for _ in range(pool))]
        self.separator = tokenizer.ids[WORD + ";"]
        self.seed = seed

    def _list(self, rng, count):
        source, target = [], []
        for en, de in rng.choices(self.pool, k=count):
            source += en + [self.separator]
            target += de + [self.separator]
        return source[:-1], target[:-1]

    def chunk(self, index, longest, tokens):
        """The index-th chunk of batches; lists have 1 to `longest` phrases."""
        rng = random.Random(f"{self.seed}:{index}")
        pairs = [self._list(rng, rng.randint(1, longest)) for _ in range(CHUNK)]
        groups = by_length(pairs, tokens)
        rng.shuffle(groups)
        for group in groups:
            yield Batch([pairs[i] for i in group])

    def ratio(self, lists=20_000):
        """alpha: the mean of target over source length, both with </s>."""
        rng = random.Random(f"{self.seed}:ratio")
        pairs = [self._list(rng, rng.randint(1, 16)) for _ in range(lists)]
        return sum((len(target) + 1) / (len(source) + 1) for source, target in pairs) / lists
