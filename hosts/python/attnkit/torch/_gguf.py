"""GGUF files, of which the metadata alone is a vocabulary."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._types import Path

_MAGIC = b"GGUF"
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of numbers, by their type
_STRING, _ARRAY = 8, 9


def vocabulary_bytes(path: Path) -> bytes:
    """A vocabulary's file, which libattnkit has checked; of a GGUF file without the tensors, as attnkit bundle copies it."""
    with open(path, "rb") as file:
        def number(size: int) -> int:
            return int.from_bytes(file.read(size), "little")

        def skip(kind: int, count: int = 1) -> None:
            if kind == _ARRAY:
                skip(number(4), number(8))
            elif kind == _STRING:
                for _ in range(count):
                    file.seek(number(8), os.SEEK_CUR)
            else:
                file.seek(count * _SIZES[kind], os.SEEK_CUR)

        if file.read(len(_MAGIC)) != _MAGIC:
            file.seek(0)
            return file.read()
        version, _, values = file.read(4), number(8), number(8)
        for _ in range(values):
            skip(_STRING)
            skip(number(4))
        end = file.tell()
        file.seek(16)
        return _MAGIC + version + bytes(8) + file.read(end - 16)  # of 0 tensors
