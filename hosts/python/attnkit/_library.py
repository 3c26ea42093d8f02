"""Finds libattnkit and loads it once."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import TYPE_CHECKING, Optional

from ._abi import FUNCTIONS
from ._arguments import path_text
from .error import INVALID, UNSUPPORTED, Error

if TYPE_CHECKING:
    from ._types import Path

NAME = "libattnkit.so.1"
_loaded: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def find(path: Optional[Path] = None) -> pathlib.Path:
    """The library's path: the one given, ATTNKIT_LIBRARY, or that of the tree this package was installed or built into."""
    given = path or os.environ.get("ATTNKIT_LIBRARY")
    if given:
        file = pathlib.Path(os.path.abspath(path_text(given, "library")))
        if not file.is_file():
            raise Error(INVALID, f"{file} is no file: it was named as libattnkit{'' if path else ' by ATTNKIT_LIBRARY'}")
        return file
    package = pathlib.Path(__file__).resolve().parent
    # A wheel carries an installed tree.
    for file in (package / "prefix").glob(f"lib*/**/{NAME}"):
        return file
    # <lib>/attnkit/python/attnkit is this package, <lib>/attnkit/1 has the plugins.
    file = package.parents[2] / NAME
    if package.parents[1].name == "attnkit" and file.is_file():
        return file
    raise Error(INVALID, f"no {NAME} beside the package in {package}: set ATTNKIT_LIBRARY to the library's path")


def load(path: Optional[Path] = None) -> ctypes.CDLL:
    """The library with its functions declared; the same object for the same file."""
    file = str(find(path).resolve())
    with _lock:
        if file not in _loaded:
            _loaded[file] = _declare(file)
        return _loaded[file]


def _declare(file: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(file)
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as e:
        raise Error(UNSUPPORTED, f"{file} is no libattnkit that this package can use: {e}") from None
    return library
