"""Greedy decoding of many lists at once by fixpoint iteration.

A pass maps a guessed output to the argmax after each of its prefixes. In a causal model a guess that maps to
itself is the greedy output. From the reference most lists need one pass, the others a few more, where decoding
token by token would take one per token.
"""
from dataclasses import dataclass

import torch

from batches import Batch, by_length, padded
from vocabulary import BOS, EOS

SLACK = 8


@dataclass
class Greedy:
    """ids end in </s> unless the limit came first; margin is the smallest top-1 minus top-2 logit on the way."""
    ids: list
    margin: float


def limit(source_length):
    """The most tokens generated, </s> included, for a source of this length, </s> included."""
    return int(1.5 * source_length) + 20


class Encoded:
    """Encoder outputs of a set of lists, kept for the placements that share an encoder."""

    def __init__(self, model, pairs, placement, tokens=6000):
        self.lengths = [len(source) + 1 for source, _ in pairs]
        self.rows = [None] * len(pairs)
        for group in by_length(pairs, tokens):
            batch = Batch([pairs[i] for i in group])
            for i, row, length in zip(group, model.encode(batch.source, batch.lengths, placement), batch.lengths):
                self.rows[i] = row[:length].clone()

    def gather(self, indices):
        encoded = torch.nn.utils.rnn.pad_sequence([self.rows[i] for i in indices], batch_first=True)
        return encoded, torch.tensor([self.lengths[i] for i in indices])


def _next_guess(out, guess, most):
    """(finished, new guess) from the argmax `out` after each prefix of `guess`."""
    out = out[:most]
    if EOS in out:
        out = out[:out.index(EOS) + 1]
    finished = out == guess[:len(out)] and (out[-1] == EOS or len(out) == most)
    # Without an end yet, leave room behind: one token per pass would be slow.
    return finished, out if out[-1] == EOS else (out + [EOS] * SLACK)[:most]


@torch.no_grad()
def decode(model, pairs, encoded, placement, alpha, tokens=6000):
    """[Greedy], one per pair; cosformer measures against alpha times the source length."""
    guesses = {i: target + [EOS] for i, (_, target) in enumerate(pairs)}
    results = [None] * len(pairs)
    while guesses:
        open_rows = list(guesses)
        for group in by_length([([], guesses[i]) for i in open_rows], tokens):
            indices = [open_rows[g] for g in group]
            rows, lengths = encoded.gather(indices)
            entered = padded([guesses[i][:-1] for i in indices], (BOS,))
            top = model.decode(entered, rows, lengths, alpha * lengths, placement).topk(2)
            margins = (top.values[..., 0] - top.values[..., 1])
            for row, i in enumerate(indices):
                size = len(guesses[i])
                out = top.indices[row, :size, 0].tolist()
                finished, guess = _next_guess(out, guesses[i], limit(encoded.lengths[i]))
                if finished:
                    results[i] = Greedy(guess, float(margins[row, :len(guess)].min()))
                    del guesses[i]
                else:
                    guesses[i] = guess
    return results
