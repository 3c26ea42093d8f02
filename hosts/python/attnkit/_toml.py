"""TOML of what tomllib reads."""

from __future__ import annotations

import json
from typing import Any


def toml_text(tables: dict[str, Any], prefix: str = "") -> str:
    """Tables of tomllib as TOML: values first, then tables."""
    lines, inner = [], []
    for key, value in tables.items():
        if isinstance(value, dict) and not prefix:
            inner.append(f"\n[{_key(key)}]\n{toml_text(value, key)}")
        else:
            lines.append(f"{_key(key)} = {_value(value)}\n")
    return "".join(lines + inner)


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else repr(value)
