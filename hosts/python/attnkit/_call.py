"""Calls: codes become exceptions, documents and bytes become Python's, handles are freed exactly once."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Optional, TypeVar

from ._abi import ATTN_OK, attn_error, sized
from .error import INVALID, Error


Self = TypeVar("Self", bound="Handle")


def call(function: Callable[..., int], *arguments: Any) -> None:
    """function(*arguments, &err); a code other than ATTN_OK is raised."""
    err = sized(attn_error, where=-1)
    check(function(*arguments, ctypes.byref(err)), err)


def check(code: int, err: attn_error) -> None:
    """Raises what a call has put into err, unless its code is ATTN_OK."""
    if code != ATTN_OK:
        raise Error(code, err.message.decode("utf-8", "replace"), err.where)


class Pointer:
    """A C handle.  Destroyed when nothing refers to it any more, so a call that runs keeps it alive."""

    def __init__(self, destroy: Callable[[int], None], value: int) -> None:
        self._as_parameter_ = ctypes.c_void_p(value)
        # Not at exit: another thread may still be in a call, and the process gives everything back anyway.
        weakref.finalize(self, destroy, value).atexit = False


def make(destroy: Callable[[int], None], function: Callable[..., int], *arguments: Any) -> Pointer:
    """The handle that function(*arguments, &handle, &err) makes."""
    made = ctypes.c_void_p()
    call(function, *arguments, ctypes.byref(made))
    return Pointer(destroy, made.value or 0)


def _bytes_of(pointer: Pointer, data: Callable[..., int]) -> bytes:
    n = ctypes.c_uint64()
    first = data(pointer, ctypes.byref(n))
    return ctypes.string_at(first, n.value) if n.value else b""


def text_of(library: ctypes.CDLL, function: Callable[..., int], *arguments: Any) -> str:
    text = make(library.attnkit_text_destroy, function, *arguments)
    return _bytes_of(text, library.attnkit_text_data).decode("utf-8")


def blob_of(library: ctypes.CDLL, function: Callable[..., int], *arguments: Any) -> bytes:
    return _bytes_of(make(library.attnkit_blob_destroy, function, *arguments), library.attnkit_blob_data)


class Handle:
    """Something of the library.  close() or `with` ends it; a later use raises Error."""

    def __init__(self, library: ctypes.CDLL, pointer: Pointer) -> None:
        self._library = library
        self._pointer: Optional[Pointer] = pointer

    @property
    def pointer(self) -> Pointer:
        """The pointer for C functions.  Hold on to it while they run."""
        pointer = self._pointer
        if pointer is None:
            raise Error(INVALID, f"this {type(self).__name__} is closed")
        return pointer

    def close(self) -> None:
        """Lets go of the handle; a call that another thread is in ends first.  Closing twice is fine."""
        self._pointer = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
