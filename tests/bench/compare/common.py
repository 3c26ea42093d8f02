"""The common part of the comparisons: attnkit models from text, weights by name, rounds in turns, results as JSON lines and as tables."""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path


def numbers(text):
    return [int(n) for n in text.split(",")]


def options_of(doc, rounds, **more):
    """Options of every comparison, threads and idle time among them, and `more`: defaults by name, whose type is theirs."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    more = {"threads": [1, 2], **more, "idle": [0], "rounds": rounds}
    says = {"idle": "milliseconds without work before every call, which do not count", "rounds": "of each case"}
    for name, value in more.items():
        kind = numbers if isinstance(value, list) and isinstance(value[0], int) else (lambda t: t.split(",")) if isinstance(value, list) else type(value)
        parser.add_argument(f"--{name}", type=kind, default=value, help=f"{says.get(name, '')} (%(default)s)")
    parser.add_argument("--results", type=Path, help="JSON lines: what is there is not measured again, what is measured is added")
    return parser.parse_args()


def open_model(text, threads):
    import attnkit
    return attnkit.Model.from_text(attnkit.Runtime(threads=threads), text)


def tensors(model):
    """The model's weights by name."""
    import numpy
    data = memoryview(model.weights())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:8 + size]))
    return {name: numpy.frombuffer(data[8 + size:][slice(*t["data_offsets"])], dtype=numpy.float32).reshape(t["shape"]).copy()
            for name, t in header.items() if name != "__metadata__"}


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def cells(speeds, others):
    """Median and quartiles of speeds, and of their ratios to the others', paired by round, for a table."""
    low, middle, high = quartiles(speeds)
    ratios = quartiles([a / b for a, b in zip(speeds, others)])
    return f"{middle:.4g} ({low:.4g} .. {high:.4g}) | {ratios[1]:.2f} ({ratios[0]:.2f} .. {ratios[2]:.2f})"


def in_turns(who, sample, rounds):
    """The results of sample(one) for each of `who` in each round; the order of a round is turned around from one to the next."""
    samples = {name: [] for name in who}
    for i in range(rounds):
        for name in (list(who), list(reversed(who)))[i % 2]:
            samples[name].append(sample(who[name]))
    return samples


def seconds_of(call, idle=0, times=1):
    """Seconds of a call; idle: milliseconds of sleep before each, which do not count."""
    spent = 0
    for _ in range(times):
        if idle:
            time.sleep(idle / 1e3)
        start = time.perf_counter()
        call()
        spent += time.perf_counter() - start
    return spent / times


class Lines:
    """Cases that were measured: {"case": {...}, "unit": ..., "to": one of those in "samples", "samples": {who: [...]}} a line."""

    def __init__(self, path):
        self.path = path
        self.all = [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []
        self.printed = None

    def __contains__(self, case):
        return any(line["case"] == case for line in self.all)

    def keep(self, line):
        self.all.append({**line, "date": str(datetime.date.today())})
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(self.all[-1]) + "\n")

    def add(self, case, unit, to, samples):
        line = {"case": case, "unit": unit, "to": to, "samples": samples}
        self.keep(line)
        if self.printed != header(line):
            self.printed = header(line)
            print(self.printed)
        print(rows(line), flush=True)


def header(line):
    names = [*line["case"], "who", f"{line['unit']} (quartiles)", f"to {line['to']} (quartiles)"]
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|"


def rows(line):
    of = " | ".join(str(x) for x in line["case"].values())
    return "\n".join(f"| {of} | {name} | {cells(values, line['samples'][line['to']])} |" for name, values in line["samples"].items())


def table(lines):
    """All lines as one table in markdown for each set of columns."""
    tables = {}
    for line in lines:
        tables.setdefault(header(line), []).append(rows(line))
    return "\n\n".join("\n".join([head, *body]) for head, body in tables.items())
