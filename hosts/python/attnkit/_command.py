"""The command attnkit of a wheel."""

import os
import pathlib
import sys


def main() -> None:
    """Becomes the program that the wheel carries."""
    program = str(pathlib.Path(__file__).resolve().parent / "prefix/bin/attnkit")
    os.execv(program, [program, *sys.argv[1:]])
