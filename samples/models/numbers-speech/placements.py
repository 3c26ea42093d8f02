"""Quality, lag and computation of placements on a spoken set: runs `attnkit stream`, prints the tables of
docs/benchmarks/speech.md.

A mechanism stands in one role with softmax in the others, in all of them, or in all but cross attention.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROLES = ("encoder.self", "decoder.self", "decoder.cross")
PRE_DECISION = 8
POLICIES = ("wait-k:3", "wait-k:5", "offline")


def placements():
    """[(name, {role: mechanism})]"""
    softmax = dict.fromkeys(ROLES, "softmax")
    yield "softmax", softmax
    for mechanism in ("relu", "leap"):
        for role in ROLES:
            yield f"{mechanism} in {role}", {**softmax, role: mechanism}
        yield f"{mechanism} everywhere", dict.fromkeys(ROLES, mechanism)
    yield "leap, softmax in decoder.cross", {**dict.fromkeys(ROLES, "leap"), "decoder.cross": "softmax"}


def manifest(placement, causal):
    text = (HERE / "model.toml").read_text(encoding="utf-8")
    changes = [(rf'^"{role}" = .*$', f'"{role}" = "{mechanism}"') for role, mechanism in placement.items()]
    if not causal:
        changes.append(("^causal = true$", "causal = false"))
    changes += [(rf'(["= ]){name}"', rf'\g<1>{HERE / name}"') for name in ("numbers-speech.safetensors", "vocab.txt")]
    for pattern, value in changes:
        text, found = re.subn(pattern, value, text, flags=re.M)
        assert found == 1, pattern
    return text


def stream(options, placement, policy, causal=True):
    """The summary of one run. One thread, so that computation means one processor."""
    if policy != "offline":
        policy = f"{policy}:{PRE_DECISION}"
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(manifest(placement, causal))
        file.flush()
        done = subprocess.run([options.attnkit, "stream", file.name, "--audio-list", str(options.list), "--policy",
                               policy, "--threads", "1", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["summary"]


def in_turns(runs, turns):
    """Summaries of every run, taken in turns so that all see the same machine: the first, with the median seconds."""
    taken = [[run() for run in runs] for _ in range(turns)]
    for i, summary in enumerate(taken[0]):
        summary["computing_seconds"] = statistics.median(turn[i]["computing_seconds"] for turn in taken)
    return taken[0]


def quality_table(options):
    lines = ["| | policy | exact | BLEU | AL | LAAL | DAL | AL and computed | computing, ms | real time / computing |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    chosen = list(placements())
    for policy in POLICIES:
        runs = [lambda p=placement, policy=policy: stream(options, p, policy) for _, placement in chosen]
        for (name, _), s in zip(chosen, in_turns(runs, options.turns)):
            lag, computed = s["latency"], s["computation_aware"]
            lines.append(f"| {name} | {policy} | {100 * s['exact_match']:.1f} % | {s['bleu']:.2f} | {lag['al']:.0f} | "
                         f"{lag['laal']:.0f} | {lag['dal']:.0f} | {computed['al']:.0f} | "
                         f"{1000 * s['computing_seconds'] / s['inputs']:.1f} | "
                         f"{s['speech_seconds'] / s['computing_seconds']:.0f} |")
    return lines


def anew_table(options):
    """The cost of running the encoder anew at every read: the weights are not made for it, so only time counts."""
    lines = ["| | rows encoded again | keys filled again | computing, ms |", "|---|---|---|---|"]
    chosen = [(name, p) for name, p in placements() if "in decoder." not in name]
    runs = [lambda p=placement: stream(options, p, "wait-k:3", causal=False) for _, placement in chosen]
    for (name, _), s in zip(chosen, in_turns(runs, options.turns)):
        lines.append(f"| {name} | {s['tokens_encoded_again']:,} | {s['keys_replayed']:,} | "
                     f"{1000 * s['computing_seconds'] / s['inputs']:.1f} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("--list", type=Path, default=HERE / "audio" / "test.tsv", help="files and references")
    parser.add_argument("--turns", type=int, default=3, help="runs of each, for the median")
    parser.add_argument("--anew", action="store_true", help="the table of encoders that run anew")
    options = parser.parse_args()
    print("\n".join(anew_table(options) if options.anew else quality_table(options)))
