"""A sampler of attnkit search: MODE LOG.  It proposes at random, by its seed, four placements at a time, and writes down what it is asked.

MODE: random; unsteady (another seed in every run), or what becomes of its second answer: dies, silent.
"""

import json
import os
import random
import sys

mode, log = sys.argv[1:]
units, rng, answers = [], random.Random(), 0


def answer(request):
    if answers > 1 and mode == "dies":
        sys.exit("no more ideas")
    if answers > 1 and mode == "silent":
        sys.exit(sys.stdin.read())
    return [{u["name"]: rng.choice(u["choices"]) for u in units} for _ in range(min(4, request["most"]))]


for line in sys.stdin:
    with open(log, "a", encoding="utf-8") as file:
        file.write(line)
    request = json.loads(line)
    reply = {"id": request["id"], "ok": True, "result": {}}
    if request["kind"] == "open":
        units = request["units"]
        rng.seed(os.urandom(8) if mode == "unsteady" else request["seed"])
    else:
        answers += 1
        reply["result"] = {"placements": answer(request)}
    print(json.dumps(reply), flush=True)
