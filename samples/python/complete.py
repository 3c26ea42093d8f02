"""Continues a text; what is drawn is shown at once.   complete.py MODEL.toml "text" [TOKENS [TEMPERATURE]]"""

import sys

import attnkit

model = attnkit.Model(attnkit.Runtime(), sys.argv[1])
prompt = model.tokenize(attnkit.TARGET, sys.argv[2])
if model.info.begin_id >= 0:
    prompt.insert(0, model.info.begin_id)
limit = int(sys.argv[3]) if len(sys.argv) > 3 else 64
temperature = float(sys.argv[4]) if len(sys.argv) > 4 else 0.8
made, shown = [], ""


def show(all=False):
    global shown
    text = model.detokenize(attnkit.TARGET, made)
    if all or not text.endswith("\ufffd"):  # a character may take several tokens; until the last of them it is this one
        print(text[len(shown):], end="", flush=True)
        shown = text


def take(id):
    made.append(id)
    show()


attnkit.Session(model, 1).sample(prompt, temperature=temperature, top_p=0.95, seed=1, limit=limit, each=take)
show(all=True)
print()
