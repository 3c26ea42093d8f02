"""TOML to tables and back."""

from __future__ import annotations

import json
import platform
from typing import Any

from .error import UNSUPPORTED, Error


def tables_of(text: str) -> dict[str, Any]:
    """The tables of TOML, by tomllib, which Python has from 3.11 on."""
    try:
        import tomllib
    except ModuleNotFoundError:
        raise Error(UNSUPPORTED, f"manifests are read by tomllib, which Python has from 3.11 on, and this is {platform.python_version()}: "
                                 "Supernet, export, attnkit.train and attnkit.ray need a later one") from None
    return tomllib.loads(text.removeprefix("\ufeff"))


def toml_text(tables: dict[str, Any], prefix: str = "") -> str:
    """Tables as TOML: values first, then tables."""
    lines, inner = [], []
    for key, value in tables.items():
        if isinstance(value, dict) and not prefix:
            inner.append(f"\n[{_key(key)}]\n{toml_text(value, key)}")
        else:
            lines.append(f"{_key(key)} = {_value(value)}\n")
    return "".join(lines + inner)


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON has as it is, and TOML has not


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return _string(value)
    return json.dumps(value) if isinstance(value, bool) else repr(value)
