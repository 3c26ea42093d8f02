"""A sampler of attnkit search: MODE LOG.  It proposes at random, by its seed, four placements at a time, and writes down what it is asked.

MODE: random; unsteady (another seed in every run); repeats (what it proposed before, for ever); done (has no more after one answer), or what is
wrong with its second answer: dies, garbage, silent, refuses, unknown, lacking, many, list.
"""

import json
import os
import random
import sys

mode, log = sys.argv[1:]
units, rng, answers = [], random.Random(), 0


def answer(request):
    proposals = [{u["name"]: rng.choice(u["choices"]) for u in units} for _ in range(min(4, request["most"]))]
    if answers == 1:
        return proposals
    if mode == "dies":
        sys.exit("no more ideas")
    if mode == "silent":
        sys.exit(sys.stdin.read())
    wrong = {"repeats": [o["placement"] for o in request["finished"]][:1], "done": [], "unknown": [{u["name"]: "nope" for u in units}],
             "lacking": [{units[0]["name"]: units[0]["choices"][0]}], "many": proposals * 20, "list": {"a": 1}}
    return wrong.get(mode, proposals)


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
        if mode == "refuses" and answers == 2:
            reply = {"id": request["id"], "ok": False, "error": {"kind": "sampler", "message": "this space is not to my taste"}}
        if mode == "garbage" and answers == 2:
            print("Warning: ", end="")
    print(json.dumps(reply), flush=True)
