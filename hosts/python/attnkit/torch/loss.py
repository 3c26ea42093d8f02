"""The cross entropy of an output layer, a few rows at a time: its logits are never all in memory."""

import torch
import torch.nn.functional as F

IGNORED = -100  # as in torch's cross entropy: nothing is expected there
NUMBERS = 1 << 21  # logits at a time


def cross_entropy(x, weight, expected, smoothing=0.0):
    """The sum over rows of F.cross_entropy(x @ weight.T, expected, label_smoothing=smoothing).

    x (..., d), weight (outputs, d), expected (...): ids, or IGNORED.
    """
    x, expected = x.flatten(0, -2), expected.flatten()
    if torch.compiler.is_compiling():  # its compiler joins these by itself, and cannot unroll a loop over rows
        return F.cross_entropy(F.linear(x, weight).float(), expected, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    real = expected != IGNORED
    return _CrossEntropy.apply(x[real], weight, expected[real], smoothing)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, expected, smoothing):
        product = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        rows, outputs = max(1, NUMBERS // len(weight)), len(weight)
        sums = torch.promote_types(x.dtype, torch.float32)
        ctx.needed, w = any(ctx.needs_input_grad[:2]), weight.to(product)
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        total = torch.zeros((), dtype=sums, device=x.device)
        for first in range(0, len(x), rows):
            part, ids = x[first:first + rows].to(product), expected[first:first + rows, None]
            logits = (part @ w.T).to(sums)
            largest = logits.logsumexp(1, keepdim=True)
            total += (largest - (1 - smoothing) * logits.gather(1, ids) - smoothing * logits.mean(1, keepdim=True)).sum()
            if ctx.needed:
                d = logits.sub_(largest).exp_().sub_(smoothing / outputs)
                d = d.scatter_add_(1, ids, torch.full_like(largest, smoothing - 1)).to(product)
                dx[first:first + rows] = d @ w
                dw += d.T @ part
        ctx.save_for_backward(dx, dw)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        dx, dw = ctx.saved_tensors
        return dx * gradient, dw * gradient, None, None
