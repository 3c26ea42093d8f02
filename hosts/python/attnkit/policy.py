"""When to read on and when to write: the policies of attnkit stream."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Union

from ._abi import ATTNKIT_READ, ATTNKIT_STOP, ATTNKIT_WRITE
from ._arguments import c_text
from .error import INVALID, Error

READ, WRITE, STOP = ATTNKIT_READ, ATTNKIT_WRITE, ATTNKIT_STOP


class View(NamedTuple):
    """Units of the source read, tokens of the target written, and whether the source has ended."""

    read: int
    written: int
    ended: int


class Policy(Protocol):
    """Answers READ, WRITE or STOP."""

    def __call__(self, view: View) -> int: ...


_LARGEST = 1 << 20  # as in manifests


class WaitK:
    """Token i of the target is written once (k + i - 1) units of `pre_decision` were read, or all."""

    def __init__(self, k: int, pre_decision: int = 1) -> None:
        for value, what in ((k, "k"), (pre_decision, "the pre-decision")):
            if not 1 <= value <= _LARGEST:
                raise Error(INVALID, f"wait-k: {what} is {value}; it must be 1 to {_LARGEST}")
        self.k, self.pre_decision = k, pre_decision

    def __call__(self, view: View) -> int:
        return WRITE if view.ended or view.read >= (self.k + view.written) * self.pre_decision else READ

    def __str__(self) -> str:
        return f"wait-k:{self.k}" + (f":{self.pre_decision}" if self.pre_decision > 1 else "")


class Offline:
    """Everything is read before anything is written."""

    def __call__(self, view: View) -> int:
        return WRITE if view.ended else READ

    def __str__(self) -> str:
        return "offline"


def policy_named(text: str) -> Union[Offline, WaitK]:
    """"wait-k:3", "wait-k:3:7" (k, then pre-decision) or "offline"."""
    c_text(text, "policy")
    if text == "offline":
        return Offline()
    name, *numbers = text.split(":")
    if name != "wait-k" or len(numbers) not in (1, 2) or not all(n.isascii() and n.isdigit() for n in numbers):
        raise Error(INVALID, f'"{text}" is no policy: wait-k:K, wait-k:K:PRE_DECISION and offline are')
    return WaitK(*map(int, numbers))
