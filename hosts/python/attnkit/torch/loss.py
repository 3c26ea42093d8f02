"""The cross entropy of an output layer, a few rows at a time: its logits are never all in memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ._ops import once

IGNORED = -100  # as in torch's cross entropy: nothing is expected there
NUMBERS = 1 << 21  # logits at a time


def cross_entropy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, expected: torch.Tensor, smoothing: float = 0.0,
                  teacher: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None) -> torch.Tensor:
    """The sum over rows of F.cross_entropy(x @ weight.T + bias, expected, label_smoothing=smoothing).

    x (..., d), weight (outputs, d), bias (outputs) or None, expected (...): ids, or IGNORED.  teacher (x, weight, bias): of another
    model, whose probabilities are then expected in place of ids; IGNORED rows count for nothing all the same.
    """
    x, expected = x.flatten(0, -2), expected.flatten()
    real = expected != IGNORED
    if teacher is not None:
        teacher = teacher[0].flatten(0, -2), *teacher[1:]
    if torch.compiler.is_compiling():  # its compiler joins these by itself, and cannot unroll a loop over rows
        logits = F.linear(x, weight, bias).float()
        if teacher is None:
            return F.cross_entropy(logits, expected, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        losses = F.cross_entropy(logits, F.linear(*teacher).float().softmax(-1), reduction="none")
        return torch.where(real, losses, 0.0).sum()
    if teacher is not None:
        teacher = teacher[0][real], *teacher[1:]
    return _CrossEntropy.apply(x[real], weight, bias, expected[real], smoothing, teacher)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, expected: torch.Tensor, smoothing: float,
                teacher: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None) -> torch.Tensor:
        product = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        sums, step = torch.promote_types(x.dtype, torch.float32), max(1, NUMBERS // len(weight))
        needed, weight_used = any(ctx.needs_input_grad[:3]), weight.to(product)
        dx, dw, db = torch.empty_like(x), torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        total = torch.zeros((), dtype=sums, device=x.device)
        if teacher is not None:
            taught, *teachers = teacher[0].to(product), teacher[1].to(product), teacher[2], sums
        for first in range(0, len(x), step):
            rows = slice(first, first + step)
            part = x[rows].to(product)
            logits = _logits(part, weight_used, bias, sums)
            largest = logits.logsumexp(1, keepdim=True)
            if teacher is None:
                ids = expected[rows, None]
                total += (largest - (1 - smoothing) * logits.gather(1, ids) - smoothing * logits.mean(1, keepdim=True)).sum()
            else:
                probabilities = _logits(taught[rows], *teachers).softmax(1)  # type: ignore[arg-type]
                total += largest.sum() - (probabilities * logits).sum()
            if not needed:
                continue
            d = logits.sub_(largest).exp_()
            if teacher is None:
                d.sub_(smoothing / len(weight)).scatter_add_(1, ids, torch.full_like(largest, smoothing - 1))
            else:
                d.sub_(probabilities)
            if db is not None:
                db += d.sum(0)
            d = d.to(product)
            dx[rows] = d @ weight_used
            dw += d.T @ part
        ctx.save_for_backward(dx, dw, db, x, weight, bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dx, dw, db, *of = ctx.saved_tensors
        with torch.no_grad():
            grads = dx * gradient, dw * gradient, None if db is None else db * gradient
        return *once(grads, [*of, gradient]), None, None, None


def _logits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    logits = (x @ weight.T).to(dtype)
    return logits if bias is None else logits.add_(bias)
