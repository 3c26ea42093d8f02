"""What the comparisons share: attnkit models from text, weights by name, rounds in turns."""

import json
import statistics

import numpy

import attnkit


def numbers(text):
    return [int(n) for n in text.split(",")]


def open_model(text, threads):
    return attnkit.Model.from_text(attnkit.Runtime(threads=threads), text)


def tensors(model):
    """The model's weights by name."""
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
