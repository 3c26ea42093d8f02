"""Speed and peak memory of the Long Range Arena models, each timed in turns with the softmax model: the tables of
docs/benchmarks/lra.md.

measure.py ATTNKIT [--lengths 1024,2048,3072,4096] [--batch 1] [--threads 1] [--only LABEL ...] [--latents] [--torch]
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

import lra


def bench(attnkit, threads, path, softmax, length, batch):
    command = [attnkit, "bench", path, "--length", length, "--batch", batch, "--threads", threads, "--json"]
    if softmax != path:
        command += ["--against", softmax]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads(done.stdout)["results"][0]


def table(arguments, rows, lengths):
    """rows: of lra.ROWS.  Per length the speed against softmax and the peak memory as a part of softmax's."""
    print("| | " + " | ".join(f"speed at {n:,} | memory" for n in lengths) + " |")
    print("|---" * (1 + 2 * len(lengths)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        memory = {}
        for row in rows:
            cells = []
            for n in lengths:
                softmax = lra.write_row(folder, "listops", lra.ROWS[0], n)
                result = bench(arguments.attnkit, arguments.threads, lra.write_row(folder, "listops", row, n), softmax, n,
                               arguments.batch)
                peak = result["peak_memory_bytes"] / 2**20
                if row is lra.ROWS[0]:
                    memory[n] = peak
                    cells += [f"{1000 * result['median_seconds']:.1f} ms", f"{peak:.2f} MiB"]
                else:
                    cells += [f"{result['speed']:.2f}x", f"{peak / memory[n]:.2f}"]
            print(f"| {row[0]} | {' | '.join(cells)} |", flush=True)


def latents(arguments, lengths):
    """latte against the number of latents: speed against softmax."""
    print("| latents | " + " | ".join(f"{n:,}" for n in lengths) + " |")
    print("|---" * (1 + len(lengths)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for number in (16, 32, 64, 128, 256, 512):
            row = (f"latte {number}", "latte", f"latents = {number}", "")
            cells = []
            for n in lengths:
                softmax = lra.write_row(folder, "listops", lra.ROWS[0], n)
                result = bench(arguments.attnkit, arguments.threads, lra.write_row(folder, "listops", row, n), softmax, n,
                               arguments.batch)
                cells.append(f"{1000 * result['median_seconds']:.1f} ms, {result['speed']:.2f}x")
            print(f"| {number} | {' | '.join(cells)} |", flush=True)


def torch_model():
    """The same shape in PyTorch: pre-norm encoder layers with its fused attention."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(64), nn.LayerNorm(64)])
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.ffn = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, 2, 32).permute(2, 0, 3, 1, 4)
            o = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(o.transpose(1, 2).reshape(b, n, 64))
            return x + self.ffn(self.norms[1](x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(32, 64), nn.Embedding(4096, 64)
            self.layers, self.norm = nn.Sequential(Layer(), Layer()), nn.LayerNorm(64)
            self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

        def forward(self, ids):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            return self.head(self.norm(self.layers(x)).mean(1))

    return Model().eval()


def torch_rows(arguments, lengths):
    """The softmax model of this library and PyTorch's, in turns: ten times each, a fresh process here each time."""
    import torch
    torch.set_num_threads(arguments.threads)
    model = torch_model()
    print(f"| length | PyTorch {torch.__version__} | attnkit | attnkit's speed |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for n in lengths:
            path = lra.write_row(folder, "listops", lra.ROWS[0], n)
            ids = torch.randint(0, 15, (arguments.batch, n))
            theirs, ours = [], []
            for _ in range(5):
                model(ids)
                for _ in range(5):
                    start = time.perf_counter()
                    model(ids)
                    theirs.append(time.perf_counter() - start)
                ours.append(bench(arguments.attnkit, arguments.threads, path, path, n, arguments.batch)["median_seconds"])
            a, b = statistics.median(theirs), statistics.median(ours)
            print(f"| {n:,} | {1000 * a:.1f} ms | {1000 * b:.1f} ms | {a / b:.2f}x |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit")
    parser.add_argument("--lengths", default="1024,2048,3072,4096")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", action="append", choices=[row[0] for row in lra.ROWS], metavar="LABEL", help="a label of the table; may be repeated")
    parser.add_argument("--latents", action="store_true")
    parser.add_argument("--torch", action="store_true")
    arguments = parser.parse_args()
    lengths = [int(n) for n in arguments.lengths.split(",")]
    if arguments.torch:
        torch_rows(arguments, lengths)
    elif arguments.latents:
        latents(arguments, lengths)
    else:
        rows = [row for row in lra.ROWS if not arguments.only or row[0] in arguments.only]
        table(arguments, lra.ROWS[:1] + [row for row in rows if row is not lra.ROWS[0]], lengths)


if __name__ == "__main__":
    main()
