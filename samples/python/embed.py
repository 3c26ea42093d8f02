"""Compares texts with the first: cosines of their vectors.   embed.py MODEL.toml "text" "text" ..."""

import math
import sys

import attnkit
from common import need


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


need(3)
model, texts = attnkit.Model(attnkit.Runtime(), sys.argv[1]), sys.argv[2:]
first, *others = model.forward([[*model.tokenize(attnkit.SOURCE, text), model.info.end_id] for text in texts]).tolist()
for vector, text in zip(others, texts[1:]):
    print(f"{dot(first, vector) / math.sqrt(dot(first, first) * dot(vector, vector)):.4f} {text}")
