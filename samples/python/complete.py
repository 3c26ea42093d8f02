"""Continues a text; what is drawn is shown at once.   complete.py MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]]"""

import sys

import attnkit
from common import need

need(2)
model = attnkit.Model(attnkit.Runtime(), sys.argv[1])
prompt = model.tokenize(attnkit.TARGET, sys.argv[2])
if model.info.begin_id >= 0:
    prompt.insert(0, model.info.begin_id)
limit = int(sys.argv[3]) if len(sys.argv) > 3 else 64
temperature = float(sys.argv[4]) if len(sys.argv) > 4 else 0.8
stop = sys.argv[5] if len(sys.argv) > 5 else ""
made, shown = [], 0


def show(all=False):
    global shown
    text = model.detokenize(attnkit.TARGET, made)
    # A character may take several tokens; until the last of them it is U+FFFD.  So may the stop, which is not shown.
    if not all and text.endswith("\ufffd"):
        return
    end = text.find(stop) if stop else -1
    if end < 0:
        end = len(text) if all or not stop else len(text) - len(stop) + 1
    if end > shown:
        print(text[shown:end], end="", flush=True)
        shown = end


def take(id):
    made.append(id)
    show()


attnkit.Session(model, 1).sample(prompt, temperature=temperature, top_p=0.95, seed=1, limit=limit, each=take, stops=[stop] if stop else [])
show(all=True)
print()
