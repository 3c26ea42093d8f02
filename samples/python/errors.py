"""Shows errors.   errors.py MODEL.toml "text" [FOLDER]

FOLDER: where fails.so of samples/failing_plugin is, for an error of every class; absolute.
"""

import sys

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
        elif error.code == attnkit.NO_MEMORY:
            print(f"no memory: {error}")
        elif error.code == attnkit.DEVICE:
            print(f"device: {error}")
        elif error.code == attnkit.INTERNAL:
            print(f"internal: {error}")


model, _ = opened()
runtime = attnkit.Runtime()
show(attnkit.Model.from_text, runtime, "[model]\nkind = 3\n[what]\n")
show(model.tokenize, attnkit.SOURCE, "zebra")
block = attnkit.Block(runtime, "softmax", "encoder.self", d_model=8, heads=1)
show(block.plan, block.request(flags=attnkit.STREAM))
if len(sys.argv) > 3:
    failing = attnkit.Runtime(plugin_path=sys.argv[3])
    for code in range(attnkit.INVALID, attnkit.INTERNAL + 1):
        show(lambda: attnkit.Block(failing, "fails", "encoder.self", d_model=8, heads=1, options=f"code = {code}"))
