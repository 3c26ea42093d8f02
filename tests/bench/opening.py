"""Opening a Transformer-base from a file in the page cache, with its layers packed and with them from the cache of packed weights, each
in a process of its own, in turns: milliseconds of attnkit_model_open, of that and the first token of 20, and resident memory.

    PYTHONPATH=build/lib/attnkit/python python3 tests/bench/opening.py [--types f32,bf16,int8,int4] [--threads 2] [--rounds 7]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import attnkit
import base

SOURCE = [*range(100, 119), base.END]


def memory():
    """Resident KiB that are this process's own, and those of files."""
    fields = dict(line.split(":") for line in open("/proc/self/status") if ":" in line)
    return [int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")]


def child(path, threads):
    runtime = attnkit.Runtime(threads=threads)
    begin = time.perf_counter()
    model = attnkit.Model(runtime, path)
    opened = time.perf_counter()
    session = attnkit.Session(model, 1)
    session.read(SOURCE)
    session.step(base.BEGIN)
    first = time.perf_counter()
    steps = []
    for token in range(200, 260):
        start = time.perf_counter()
        session.step(token)
        steps.append(time.perf_counter() - start)
    print(json.dumps([1000 * (opened - begin), 1000 * (first - begin), 1000 * sorted(steps)[30], *memory()]))


def sample(path, threads):
    made = subprocess.run([sys.executable, __file__, "--child", path, "--threads", str(threads)], check=True, capture_output=True, text=True)
    return json.loads(made.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--types", default="f32,bf16,int8,int4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    if given.child:
        return child(given.child, given.threads)
    print("| weights | way | open, ms | first token, ms | a later step, ms | own MiB | mapped MiB | file, MB |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder + "/cache"
        seeded = attnkit.Model(attnkit.Runtime(threads=given.threads), base.write(folder, "seed.toml", "seed = 1"))
        with open(folder + "/w.safetensors", "wb") as file:
            file.write(seeded.weights())
        seeded.close()
        for kind in given.types.split(","):
            ways = {way: base.write(folder, f"{kind}-{way}.toml", f'file = "w.safetensors"\ntype = "{kind}"\ncache = {cache}')
                    for way, cache in (("packed", "false"), ("cache", "true"))}
            rows = {"writes the cache": [sample(ways["cache"], given.threads)], "packed": [], "cache": []}
            for _ in range(given.rounds):
                for way, path in ways.items():
                    rows[way].append(sample(path, given.threads))
            size = sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(folder + "/cache") for f in files if f"-{kind}-" in f)
            for way, samples in rows.items():
                cells = [base.quartiles(column) for column in zip(*samples)]
                own, mapped = (f"{sorted(s[i] for s in samples)[len(samples) // 2] / 1024:.0f}" for i in (3, 4))
                print(f"| {kind} | {way} | {cells[0]} | {cells[1]} | {base.quartiles([s[2] for s in samples], 2)} | {own} | {mapped} "
                      f"| {size / 1e6 if way == 'cache' else 0:.0f} |", flush=True)


if __name__ == "__main__":
    main()
