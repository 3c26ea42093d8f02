"""Times mechanisms of two folders of plugins in turns: whole causal sequences of one batch row, on one thread.

plugins.py BEFORE AFTER      two folders <lib>/attnkit/1, such as of two builds
"""

import argparse
import time

import numpy
from common import cells, numbers

import attnkit

MECHANISMS = ["softmax", "relu", "linear", "cosformer", "leap", "rope_linear", "performer", "latte", "luna", "local", "s4d"]
HEADS, WIDTH = 8, 64


def runner(folder, mechanism, rows):
    """A call that runs the mechanism and returns its output."""
    runtime = attnkit.Runtime(threads=1, plugin_path=str(folder))
    block = attnkit.Block(runtime, mechanism, "decoder.self", HEADS * WIDTH, HEADS)
    totals = attnkit._abi.ATTN_KNOWS_Q_TOTAL | attnkit._abi.ATTN_KNOWS_K_TOTAL
    request = block.request(queries=rows, keys=rows, flags=totals)
    random, tensors = numpy.random.default_rng(1), {}
    for port in block.ports:
        if port.kind in (attnkit._abi.ATTN_LEARNED, attnkit._abi.ATTN_TABLE):
            tensors[port.name] = block.fill(port, 1)
        elif port.kind in (attnkit._abi.ATTN_QUERY, attnkit._abi.ATTN_KEY, attnkit._abi.ATTN_OUTPUT):
            tensors[port.name] = random.standard_normal((1, port.shape[1], rows, port.shape[3]), dtype=numpy.float32)
    return lambda: block.run(request, tensors, q_total=[rows], k_total=[rows]).output


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("before")
    options.add_argument("after")
    options.add_argument("--rows", type=numbers, default=[1024])
    options.add_argument("--rounds", type=int, default=9)
    options = options.parse_args()
    print("| mechanism | rows | before, ms | after, ms (quartiles) | before / after (quartiles) | largest difference |\n|---|---|---|---|---|---|")
    for rows in options.rows:
        for mechanism in MECHANISMS:
            calls = [runner(folder, mechanism, rows) for folder in (options.before, options.after)]
            before, after = (numpy.asarray(call()) for call in calls)
            apart = float(abs(before - after).max())
            times = [[], []]
            for turn in range(options.rounds):
                for i in (0, 1) if turn % 2 else (1, 0):
                    start = time.perf_counter()
                    calls[i]()
                    times[i].append(1e3 * (time.perf_counter() - start))
            faster = cells([1 / t for t in times[1]], [1 / t for t in times[0]]).split(" | ")[1]
            low, middle, high = numpy.percentile(times[1], [25, 50, 75])
            print(f"| {mechanism} | {rows:,} | {numpy.median(times[0]):.4g} | {middle:.4g} ({low:.4g} .. {high:.4g}) | {faster} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main()
