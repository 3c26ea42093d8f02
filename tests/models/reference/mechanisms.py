"""The four mechanisms in plain quadratic form: q [B,H,N,d], k [B,H,M,d], v [B,H,M,e] -> [B,H,N,e].

`mask` is boolean, broadcasts to [B,H,N,M] and is true where query i may use key j; None means everywhere.
"""
import math

import torch
import torch.nn.functional as F


def guarded(denominator, guard, eps):
    if guard == "clamp":
        return denominator.clamp(min=eps)
    return denominator + eps if guard == "add" else denominator


def softmax(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is None:
        return scores.softmax(-1) @ v
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    # A row that may use no key is zero, not NaN.
    return weights.masked_fill(~mask, 0.0) @ v


def _normalised(weights, v, mask, guard, eps):
    if mask is not None:
        weights = weights * mask
    return weights @ v / guarded(weights.sum(-1, keepdim=True), guard, eps)


def relu(q, k, v, mask=None, guard="clamp", eps=0.1):
    return _normalised(F.relu(q) @ F.relu(k).transpose(-1, -2), v, mask, guard, eps)


def _cosine(a, b, p, r, v, mask, guard, eps):
    """Weights (a_i . b_j) cos(pi/2 (p_i - r_j)), by the addition theorem."""
    theta, tau = math.pi / 2 * p.unsqueeze(-1), math.pi / 2 * r.unsqueeze(-1)
    a = torch.cat([a * theta.cos(), a * theta.sin()], -1)
    b = torch.cat([b * tau.cos(), b * tau.sin()], -1)
    return _normalised(a @ b.transpose(-1, -2), v, mask, guard, eps)


def cosformer(q, k, v, n, m, mask=None, guard="clamp", eps=0.1):
    """n and m are the lengths that positions 1, 2, ... are measured against: numbers or [B,1,1]."""
    p = torch.arange(1, q.shape[-2] + 1, dtype=q.dtype, device=q.device) / n
    r = torch.arange(1, k.shape[-2] + 1, dtype=q.dtype, device=q.device) / m
    return _cosine(F.relu(q), F.relu(k), p, r, v, mask, guard, eps)


def proportion(x, w1, b1, w2, b2):
    """LeaP: a learned position in (0, 1) from one row. A single hidden unit is used as it is, without W2."""
    hidden = F.linear(x, w1, b1)
    return torch.sigmoid(hidden if w2 is None else F.linear(F.relu(hidden), w2, b2)).squeeze(-1)


def leap(q, k, v, q_module, k_module, mask=None, guard="clamp", eps=0.1):
    """Each module is (w1, b1, w2, b2) and reads the row after ReLU."""
    a, b = F.relu(q), F.relu(k)
    return _cosine(a, b, proportion(a, *q_module), proportion(b, *k_module), v, mask, guard, eps)
