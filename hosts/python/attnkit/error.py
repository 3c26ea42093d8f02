"""The exception that a failing call becomes."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

# Codes of Error.
INVALID, UNSUPPORTED, NO_MEMORY, DEVICE, INTERNAL = 1, 2, 3, 4, 5


class Diagnostic(NamedTuple):
    """One problem of a manifest or of what it names; severity "error" or "warning", line and column from 1, 0: no place."""

    severity: str
    area: int
    code: int
    line: int
    column: int
    message: str
    help: str


class Error(Exception):
    """A call that was refused or failed.

    code: INVALID, ...; message: one line; where: index of the option, port or session at fault, or -1; diagnostics: everything that
    is wrong with a manifest, sorted by place.
    """

    def __init__(self, code: int, message: str, where: int = -1, diagnostics: Sequence[Diagnostic] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.where, self.diagnostics = code, message, where, tuple(diagnostics)

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes it picklable, as results of other processes must be."""
        return type(self), (self.code, self.message, self.where, self.diagnostics), self.__dict__
