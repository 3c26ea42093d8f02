"""Arguments checked before C sees them: ctypes wraps a number that does not fit, and says nothing."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
from typing import Any, Optional, Sequence

from .error import INVALID, Error

MOST_ROWS = MOST_THREADS = 1024  # those of the library
_INTEGERS = {ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64}


def whole(value: Any, what: str) -> int:
    """An int of any size."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {type(value).__name__}") from None


def integer(value: Any, what: str, kind: Any, most: Optional[int] = None) -> int:
    """An int that a type of C holds, up to `most`."""
    n = whole(value, what)
    low, high = bounds(kind)
    if most is not None:
        high = most
    if not low <= n <= high:
        raise Error(INVALID, f"{what} {n}: it must be {low} to {high}")
    return n


def real(value: Any, what: str) -> float:
    """A number as C's double."""
    try:
        return ctypes.c_double(value).value
    except TypeError:
        raise TypeError(f"{what} must be a number, not {type(value).__name__}") from None


def limit_of(value: Any) -> int:
    """The most tokens of an output."""
    n = whole(value, "limit")
    if n < 0:
        raise Error(INVALID, f"limit {n}: it must be 1 or more, or 0 for the default")
    return n


def integers(values: Sequence[Any], what: str, kind: Any) -> Any:
    """An array of C."""
    return (kind * len(values))(*(integer(value, f"{what}[{i}]", kind) for i, value in enumerate(values)))


@functools.lru_cache(maxsize=None)
def bounds(kind: Any) -> tuple[int, int]:
    """The least and the greatest number of a type of ctypes."""
    bits = 8 * ctypes.sizeof(kind)
    return (-1 << bits - 1, (1 << bits - 1) - 1) if kind(-1).value < 0 else (0, (1 << bits) - 1)


@functools.lru_cache(maxsize=None)
def integer_fields(struct: Any) -> dict[str, Any]:
    """The fields of a struct that are integers, with their types."""
    return {name: kind for name, kind, *_ in struct._fields_ if kind in _INTEGERS}


def c_text(text: str, what: str) -> bytes:
    """A str as the NUL-terminated UTF-8 that C takes."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise Error(INVALID, f"{what} holds {text[e.start]!r}, half of a surrogate pair, which UTF-8 does not have") from None
    if b"\0" in raw:
        raise Error(INVALID, f"{what} holds a NUL byte")
    return raw


def path_text(path: Any, what: str) -> str:
    """A path of any kind as a str."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TypeError(f"{what} must be a path, not {type(path).__name__}") from None


def c_path(path: Any, what: str) -> bytes:
    """A path of any kind as C takes it."""
    return c_text(path_text(path, what), what)


def instance(value: Any, kind: type, what: str) -> None:
    """Refuses what is not of a class of this package."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be an attnkit.{kind.__name__}, not {type(value).__name__}")
