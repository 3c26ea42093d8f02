"""Translates while the source arrives, three tokens behind.   stream.py MODEL.toml "text" """

import attnkit
from common import opened

model, ids = opened(streaming=True)
session = attnkit.Session(model, 1)
made = session.simulate(ids, attnkit.WaitK(3), lambda event: event.action == attnkit.WRITE and print(event.read, event.written))
print(model.detokenize(attnkit.TARGET, made))
