"""Ends a call after two tokens; the event may be set by another thread.   cancel.py MODEL.toml "text" """

import threading

import attnkit
from common import opened

model, ids = opened()
cancelled = threading.Event()


def decide(view):
    return attnkit.STOP if cancelled.is_set() else attnkit.Offline()(view)


made = attnkit.Session(model, 1).simulate(ids, decide, lambda event: event.written == 2 and cancelled.set())
print(model.detokenize(attnkit.TARGET, made))
