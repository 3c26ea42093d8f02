"""The table of [length] predict = "lut": target positions that each source token makes on average."""

from __future__ import annotations

import pathlib
from typing import Any

from .error import UNSUPPORTED, Error


def means_of(described: dict[str, Any], vocabulary: str | None, tokens: int) -> list[float]:
    """By id.  described: "length" of "attnkit.model-description/1"; vocabulary: of so many tokens, one on each line."""
    means = dict(line.rsplit("\t", 1) for line in _lines(described["file"]))
    try:
        names = _lines(vocabulary or "")
    except UnicodeDecodeError:
        names = []
    if not 1 < len(names) <= tokens:
        raise Error(UNSUPPORTED, f"[length] predict = \"lut\": {vocabulary} does not have one token on each line, by which Python finds the {tokens} tokens' "
                                 "lengths: take another prediction here")
    mean = float(described["mean"])
    return [float(means.get(name, mean)) for name in names] + [mean] * (tokens - len(names))  # rows that no token has


def _lines(path: str) -> list[str]:
    lines = pathlib.Path(path).read_bytes().decode("utf-8-sig").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
