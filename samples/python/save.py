"""Saves a session after its first token and goes on from the file.   save.py MODEL.toml "text" FILE"""

import pathlib
import sys

import attnkit
from common import need, opened

need(3)
model, ids = opened()
session = attnkit.Session(model, 1)
session.read(ids)
made = session.generate(1)
file = pathlib.Path(sys.argv[3])
file.write_bytes(session.save())

restored = attnkit.Session.load(model, file.read_bytes())
print(model.detokenize(attnkit.TARGET, made + restored.generate()))
