"""Carries Python's policy into the library, and its exceptions around the C call."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

from ._abi import ATTNKIT_STOP, attnkit_decide, attnkit_observe


class Simulation:
    """decide and observe as C callbacks.  What they raise is raised where the `with` block ends."""

    def __init__(self, decide: Callable[[Any], int], observe: Optional[Callable[[Any], object]]) -> None:
        self._raised: Optional[BaseException] = None
        self.decide: Any = attnkit_decide(lambda _, view: self._guarded(lambda v: int(decide(v) or 0), view.contents))
        self.observe: Any = attnkit_observe()
        if observe is not None:
            self.observe = attnkit_observe(lambda _, event: self._guarded(observe, event.contents))

    def _guarded(self, function: Callable[[Any], Any], argument: ctypes.Structure) -> Any:
        if self._raised is None:
            try:
                return function(_copy(argument))
            except BaseException as e:  # KeyboardInterrupt included: nothing may pass through C
                self._raised = e
        return ATTNKIT_STOP

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        raised, self._raised = self._raised, None
        self.decide = self.observe = None
        if raised is not None:
            raise raised


def _copy(struct: ctypes.Structure) -> ctypes.Structure:
    """The callback may keep what it is given; C's is gone when it returns."""
    return type(struct).from_buffer_copy(struct)
