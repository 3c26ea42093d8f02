"""Padded batches of pairs."""
import torch

import samples  # noqa: F401  (where vocabulary is)
from vocabulary import BOS, EOS, PAD


def padded(rows, first=()):
    width = max(map(len, rows)) + len(first)
    return torch.tensor([[*first, *row] + [PAD] * (width - len(row) - len(first)) for row in rows])


class Batch:
    """source ends in </s>; entered starts with <s>."""

    def __init__(self, pairs):
        self.source = padded([source + [EOS] for source, _ in pairs])
        self.lengths = torch.tensor([len(source) + 1 for source, _ in pairs])
        self.entered = padded([target for _, target in pairs], (BOS,))


def by_length(pairs, tokens):
    """Index groups of similar length, at most about `tokens` target tokens each."""
    groups, group = [], []
    for i in sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0]))):
        if group and (len(pairs[i][1]) + 1) * (len(group) + 1) > tokens:
            groups.append(group)
            group = []
        group.append(i)
    return groups + [group]
