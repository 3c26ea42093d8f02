"""Forward and backward of attention on the CPU: attnkit's plugins beside PyTorch's forms, in turns in one process.

    PYTHONPATH=build/lib/attnkit/python python3 docs/benchmarks/training.py [--threads 2] [--rounds 9] [--lengths 256,1024,4096] [--memory]

Prints a table of medians with quartiles in milliseconds and the ratio of medians; with --memory what one call adds to the memory of its
process, a fresh one for each form; with --fla FILE, fla/ops/linear_attn/naive.py of the package fla-core, the causal linear mechanisms
beside that form alone, and how far apart their outputs and gradients are.
"""

import argparse
import importlib.util
import math
import multiprocessing
import pathlib
import statistics
import time

import attnkit.torch  # before torch: it sets how torch's threads wait
import torch
import torch.nn.functional as F

B, H, D = 4, 8, 64
CHUNKS = (64, 128, 256)

torch._dynamo.config.recompile_limit = 1000  # each form and length is compiled, none is left eager


def chunked(a, b, v, chunk, causal, eps=1e-6):
    """Linear attention in chunks, the usual PyTorch form: states by cumsum, a masked product in each chunk."""
    if not causal:
        return (a @ (b.transpose(-1, -2) @ v)) / (a @ b.sum(-2, keepdim=True).transpose(-1, -2)).clamp(min=eps)
    n = a.shape[-2]
    a, b, v = (x.unflatten(-2, (n // chunk, chunk)) for x in (a, b, v))
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    states = b.transpose(-1, -2) @ v
    before = states.cumsum(2) - states
    scores = (a @ b.transpose(-1, -2)).tril()
    out = (a @ before + scores @ v).flatten(2, 3)
    return out[..., :-1] / out[..., -1:].clamp(min=eps)


def turned(x, p):
    theta = math.pi / 2 * p.unsqueeze(-1)
    return torch.cat([x * theta.cos(), x * theta.sin()], -1)


def leap(x, w):
    return torch.sigmoid(F.linear(F.relu(F.linear(x, w[0], w[1])), w[2], w[3])).squeeze(-1)


def features(name, n, modules):
    positions = torch.arange(1, n + 1) / n
    if name == "relu":
        return lambda q, k: (F.relu(q), F.relu(k))
    if name == "linear":
        return lambda q, k: (F.elu(q) + 1, F.elu(k) + 1)
    if name == "cosformer":
        return lambda q, k: (turned(F.relu(q), positions), turned(F.relu(k), positions))
    return lambda q, k: (turned(F.relu(q), leap(F.relu(q), modules[0])), turned(F.relu(k), leap(F.relu(k), modules[1])))


def plugin_of(name, n, causal, modules):
    from attnkit.torch._bound import bound, key_of
    from attnkit.torch._ops import run
    role = "decoder.self" if causal else "encoder.self"
    key = key_of(name, role, H * D, H, causal, D, {"guard": "clamp", "eps": 1e-6} if name in ("relu", "cosformer", "leap") else {})
    totals = torch.full((B,), float(n), dtype=torch.float64)
    learned = [t for module in modules for t in module] if name == "leap" else []
    assert len(bound(key).inputs) == 3 + len(learned)
    return lambda q, k, v: run(key, [q, k, v, *learned], (None, None, totals, totals, None), n, n)[0]


def networks():
    """LeaP's, the same each time."""
    torch.manual_seed(0)
    return [[(torch.randn(s) / 4).requires_grad_() for s in ((D // 4, D), (D // 4,), (1, D // 4), (1,))] for _ in "qk"]


def forms(name, n, causal):
    """What is compared, by name; all take q, k, v (B, H, N, D)."""
    modules = networks()
    made = {"attnkit": plugin_of(name, n, causal, modules)}
    if name == "softmax":
        made["scaled_dot_product_attention"] = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return made
    mapped = features(name, n, modules)
    for chunk in CHUNKS if causal else CHUNKS[:1]:
        def form(q, k, v, chunk=chunk):
            a, b = mapped(q, k)
            return chunked(a, b, v, chunk, causal)
        label = f"chunks of {chunk}" if causal else "products"
        made[f"eager, {label}"] = form
        made[f"compiled, {label}"] = torch.compile(form, dynamic=False)
    return made


def inputs(n):
    torch.manual_seed(1)
    return [torch.randn(B, n, H, D).transpose(1, 2).requires_grad_() for _ in "qkv"], torch.randn(B, H, n, D)


def once(form, tensors, given):
    start = time.perf_counter()
    form(*tensors).backward(given)
    return 1e3 * (time.perf_counter() - start)


def kib(key):
    """A number of /proc/self/status."""
    return int(pathlib.Path("/proc/self/status").read_text(encoding="ascii").split(f"{key}:")[1].split()[0])


def added_memory(arguments):
    """MiB that one forward and backward adds at its peak, after one at a small size."""
    name, n, causal, label, threads = arguments
    torch.set_num_threads(threads)
    small, given = inputs(256)
    once(forms(name, 256, causal)[label], small, given)
    tensors, given = inputs(n)
    form = forms(name, n, causal)[label]
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is there now
    before = kib("VmRSS")
    once(form, tensors, given)
    return (kib("VmHWM") - before) / 1024


def memory_of(*arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(added_memory, (arguments,))


def memory_table(options):
    """What each form adds; without those that are compiled, which take minutes to compile for each length."""
    print("| mechanism | causal | N | attnkit, MiB | least other, MiB | which |\n|---|---|---|---|---|---|")
    for name, causal, n in cases(options):
        added = {label: memory_of(name, n, causal, label, options.threads) for label in forms(name, n, causal) if "compiled" not in label}
        mine = added.pop("attnkit")
        least = min(added, key=added.get)
        print(f"| {name} | {'yes' if causal else 'no'} | {n:,} | {mine:.0f} | {added[least]:.0f} | {least} |", flush=True)


def naive_table(options):
    """Beside flash-linear-attention's naive form: times, and the largest relative difference of an output or a gradient."""
    spec = importlib.util.spec_from_file_location("naive", options.fla)
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    print("| mechanism | N | attnkit, ms | naive, ms | times as fast | apart |\n|---|---|---|---|---|---|")
    for name, causal, n in cases(options):
        if name == "softmax" or not causal:
            continue
        mine, mapped = forms(name, n, True)["attnkit"], features(name, n, networks())

        def theirs(q, k, v, mapped=mapped):
            rows = [x.transpose(1, 2) for x in (*mapped(q, k), v)]
            return naive.naive_chunk_linear_attn(*rows, scale=1.0, normalize=True).transpose(1, 2)

        tensors, given = inputs(n)
        made, times = [], ([], [])
        for form in (mine, theirs):
            out = form(*tensors)
            made.append([out.detach(), *torch.autograd.grad(out, tensors, given)])
        apart = max(float((a - b).norm() / b.norm()) for a, b in zip(*made))
        for _ in range(options.rounds):
            for form, spent in zip((mine, theirs), times):
                spent.append(once(form, tensors, given))
        quartiles = [statistics.quantiles(spent, n=4) for spent in times]
        cells = " | ".join(f"{q[1]:.2f} ({q[0]:.2f} to {q[2]:.2f})" for q in quartiles)
        print(f"| {name} | {n:,} | {cells} | {quartiles[1][1] / quartiles[0][1]:.2f} | {apart:.1e} |", flush=True)


def cases(options):
    return [(name, causal, n) for name in options.mechanisms.split(",") for causal in (False, True) for n in map(int, options.lengths.split(","))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--mechanisms", default="softmax,relu,linear,cosformer,leap")
    parser.add_argument("--memory", action="store_true", help="memory in place of times")
    parser.add_argument("--fla", help="flash-linear-attention's naive.py: beside that alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, B {B} H {H} D {D}, f32\n")
    if options.memory:
        return memory_table(options)
    if options.fla:
        return naive_table(options)
    print(f"{options.rounds} rounds in turns\n\n| mechanism | causal | N | attnkit, ms | best other, ms | which | times as fast |\n|---|---|---|---|---|---|---|")
    for name, causal, n in cases(options):
        made, times = forms(name, n, causal), {}
        tensors, given = inputs(n)
        for form in made.values():
            once(form, tensors, given)
        for _ in range(options.rounds):
            for label, form in made.items():
                times.setdefault(label, []).append(once(form, tensors, given))
        quartiles = {label: statistics.quantiles(values, n=4) for label, values in times.items()}
        best = min((label for label in quartiles if label != "attnkit"), key=lambda label: quartiles[label][1])
        cells = [f"{q[1]:.2f} ({q[0]:.2f} to {q[2]:.2f})" for q in (quartiles["attnkit"], quartiles[best])]
        print(f"| {name} | {'yes' if causal else 'no'} | {n:,} | {cells[0]} | {cells[1]} | {best} | "
              f"{quartiles[best][1] / quartiles['attnkit'][1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
