"""Shows refusals.   errors.py MODEL.toml "text" """

import attnkit
from common import opened


def show(function, *arguments):
    try:
        function(*arguments)
    except attnkit.Error as error:
        if error.code == attnkit.INVALID:
            print(f"invalid, {len(error.diagnostics)} diagnostics: {error}")
        elif error.code == attnkit.UNSUPPORTED:
            print(f"unsupported: {error}")
        else:  # NO_MEMORY, DEVICE, INTERNAL
            print(f"not the caller's fault: {error}")


model, _ = opened()
runtime = attnkit.Runtime()
show(attnkit.Model.from_text, runtime, "[model]\nkind = 3\n[what]\n")
show(model.tokenize, attnkit.SOURCE, "zebra")
block = attnkit.Block(runtime, "softmax", "encoder.self", d_model=8, heads=1)
show(block.plan, block.request(flags=attnkit.STREAM))
