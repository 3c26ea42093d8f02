"""Types of arguments, for type checkers and documents."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, Sequence, Union


class SupportsDLPack(Protocol):
    """An array that can be lent by DLPack: of numpy, torch, jax, cupy."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


if TYPE_CHECKING:
    from typing_extensions import Buffer

    Array = Union[Buffer, SupportsDLPack]
    Ids = Union[Sequence[int], Array]
    Batch = Union[Sequence[Ids], Array]
    Path = Union[str, "os.PathLike[str]"]
