"""The common part of the samples."""

import pathlib
import re
import sys

import attnkit


def need(n):
    """Ends the program with the usage in its docstring unless it has n arguments."""
    if len(sys.argv) <= n:
        print("usage:", sys.modules["__main__"].__doc__.split("   ")[1].splitlines()[0], file=sys.stderr)
        sys.exit(2)


def opened(streaming=False):
    """The model of the first argument and the second argument's ids; streaming: so that a source may grow."""
    need(2)
    path = pathlib.Path(sys.argv[1])
    toml = path.read_text(encoding="utf-8")
    if streaming and not re.search(r"\n\s*\[stream\]", toml):
        toml += "\n[stream]\nreplay = true\n"
    model = attnkit.Model.from_text(attnkit.Runtime(), toml, path.parent)
    return model, [*model.tokenize(attnkit.SOURCE, sys.argv[2]), model.info.end_id]
