"""What a failing call becomes."""

from collections import namedtuple

# Codes of Error.
INVALID, UNSUPPORTED, NO_MEMORY, DEVICE, INTERNAL = 1, 2, 3, 4, 5

# One problem of a manifest or of what it names; severity "error" or "warning", line and column from 1, 0: no place.
Diagnostic = namedtuple("Diagnostic", "severity area code line column message help")


class Error(Exception):
    """A call that was refused or failed.

    code: INVALID, ...; message: one line; where: index of the option or port at fault, or -1; diagnostics: everything that
    is wrong with a manifest, sorted by place.
    """

    def __init__(self, code, message, where=-1, diagnostics=()):
        super().__init__(message)
        self.code, self.message, self.where, self.diagnostics = code, message, where, tuple(diagnostics)
