"""One block of attention on a GPU: attnkit beside PyTorch and flash-linear-attention, in turns in one process.

    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/cuda_blocks.py [--shape 32x16x64,4x16x128] [--length 512,4096] [--type bf16,f16,f32]
        [--work softmax,relu,linear,cosformer] [--call forward,training] [--form causal,full]

A shape is batch x heads x width.  softmax: PyTorch's scaled_dot_product_attention by each of its kernels that takes the call.  relu, linear, cosformer: causal, by
chunk_linear_attn of flash-linear-attention, with features made by PyTorch's eager kernels as its layers make them, with its denominators
("fla") and without them ("fla, sums alone", which computes less), and PyTorch in chunks of 128 tokens.  q, k and v lie as (B, N, H, D), as projections leave
them.  training: forward and backward.  All run from CUDA graphs, so no time of the host is in the figures.  Before anything is timed outputs and gradients must be equal
to 2e-2 of their size, 2e-5 in f32: who is off is named and not timed.  Prints milliseconds: the median over the rounds with quartiles, and how many times as long as
attnkit the others take, paired by round.
"""

import sys

import torch
import torch.nn.functional as F
from common import Lines, in_turns, options_of
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnkit.torch
from attnkit.torch import _bound, _ops

EPS = 1e-6
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


def by_attnkit(work, heads, width, causal):
    options = {"guard": "clamp", "eps": EPS} if work == "relu" else {}
    key = _bound.key_of(work, "decoder.self" if causal else "encoder.self", heads * width, heads, causal, width, options)

    def run(q, k, v):
        total = torch.full((q.shape[0],), float(q.shape[2]), dtype=torch.float64, device=q.device)
        return _ops.run(key, [q, k, v], [None, None, total, total, None], q.shape[2], k.shape[2])[0]
    return run


def by_sdpa(kernel, causal):
    def run(q, k, v):
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return run


def features(work, x):
    """Rows of features of x (B, N, H, D)."""
    if work == "linear":
        return F.elu(x) + 1
    x = F.relu(x)
    if work == "relu":
        return x
    angles = (torch.arange(x.shape[1], device=x.device) * (torch.pi / 2 / x.shape[1]))[None, :, None, None]
    return torch.cat((x * angles.cos().to(x.dtype), x * angles.sin().to(x.dtype)), -1)


def by_fla(work, normalize):
    from fla.ops.linear_attn import chunk_linear_attn

    def run(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return chunk_linear_attn(features(work, q), features(work, k), v, normalize=normalize)[0].transpose(1, 2)
    return run


def by_chunks(work, size=128):
    def run(q, k, v):
        q, k = (features(work, x.transpose(1, 2)).transpose(1, 2).unflatten(2, (-1, size)) for x in (q, k))
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1).unflatten(2, (-1, size))  # the last column sums the weights
        sums = (k.transpose(-1, -2) @ v).float().cumsum(2)
        before = F.pad(sums, (0, 0, 0, 0, 1, 0))[:, :, :-1].to(q.dtype)
        made = (q @ k.transpose(-1, -2)).tril() @ v + q @ before
        return (made[..., :-1] / made[..., -1:].clamp_min(EPS)).flatten(2, 3)
    return run


def contenders(work, form, dtype, heads, width):
    causal = form == "causal"
    who = {"attnkit": by_attnkit(work, heads, width, causal)}
    if work == "softmax":
        who |= {f"PyTorch, {name}": by_sdpa(kernel, causal) for name, kernel in KERNELS.items()}
    else:
        if dtype != torch.float32:
            who |= {"fla": by_fla(work, True), "fla, sums alone": by_fla(work, False)}
        who["PyTorch, chunks"] = by_chunks(work)
    return who


class Graph:
    """One call of a contender, captured."""

    def __init__(self, run, tensors, given):
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())

        def call():
            if given is None:
                with torch.no_grad():
                    return (run(*tensors),)
            made = run(*tensors)
            return (made.detach(), *torch.autograd.grad(made, tensors, given))
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                call()
        self.stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.made = call()
        self.graph.replay()
        torch.cuda.synchronize()
        self.times = 1
        self.times = max(1, min(100, int(20 / self())))

    def __call__(self):
        """Milliseconds of a call."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(self.times):
            self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / self.times


def off(made, right):
    return ((made.float() - right.float()).norm() / right.float().norm()).item()


def measure(lines, work, form, name, shape, length, trains, rounds):
    batch, heads, width = map(int, shape.split("x"))
    case = {"block": work, "form": form, "call": "training" if trains else "forward", "shape": shape, "type": name, "tokens": length}
    if case in lines:
        return
    dtype = TYPES[name]
    torch.manual_seed(1)
    q, k, v, given = (torch.randn(batch, length, heads, width, device="cuda").to(dtype).transpose(1, 2) for _ in range(4))
    tensors = [x.requires_grad_(trains) for x in (q, k, v)]
    graphs, right = {}, None
    for who, run in contenders(work, form, dtype, heads, width).items():
        try:
            graph = Graph(run, tensors, given if trains else None)
        except (RuntimeError, attnkit.Error) as e:
            print(f"{case}: {who}: {str(e).splitlines()[0]}", file=sys.stderr, flush=True)
            if who == "attnkit":
                return
            continue
        right = right or graph.made
        if "alone" not in who:
            errors = [off(a, b) for a, b in zip(graph.made, right)]
            if not max(errors) < (2e-5 if dtype == torch.float32 else 2e-2):
                print(f"{case}: {who}: off by {errors}, so not timed", file=sys.stderr, flush=True)
                if who == "attnkit":
                    return
                continue
        graphs[who] = graph
    lines.add(case, "ms", "attnkit", in_turns(graphs, lambda graph: graph(), rounds))


def main():
    options = options_of(__doc__, 5, work=["softmax", "relu", "linear", "cosformer"], form=["causal"], shape=["32x16x64"], length=[4096],
                         type=["bf16"], call=["forward", "training"])
    lines = Lines(options.results)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    for work in options.work:
        for form in options.form if work == "softmax" else ["causal"]:
            for name in options.type:
                for shape in options.shape:
                    for length in options.length:
                        for call in options.call:
                            measure(lines, work, form, name, shape, length, call == "training", options.rounds)
                            torch.cuda.empty_cache()


main()
