"""Which lists of a set a placement translates exactly, by one teacher-forced pass.

When every argmax along the reference is the reference, greedy decoding takes the same path.
"""
import torch

from batches import Batch, by_length
from vocabulary import PAD


def evaluation_batches(pairs, tokens=6000):
    """[(indices into pairs, Batch)]"""
    return [(group, Batch([pairs[i] for i in group])) for group in by_length(pairs, tokens)]


@torch.no_grad()
def exact(model, batches, placement, alpha):
    """{index: whether the list is exact}, cosformer measuring against the predicted length."""
    result = {}
    for indices, batch in batches:
        logits = model(batch.source, batch.lengths, batch.entered, alpha * batch.lengths, placement)
        right = (logits.argmax(-1) == batch.expected) | (batch.expected == PAD)
        result.update(zip(indices, right.all(-1).tolist()))
    return result
