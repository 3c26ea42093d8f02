"""Carries Python's policy into the library, and its exceptions around the C call."""

from ._abi import ATTNKIT_STOP, attnkit_decide, attnkit_observe


class Simulation:
    """decide and observe as C callbacks.  What they raise is raised where the `with` block ends."""

    def __init__(self, decide, observe):
        self._raised = None
        self.decide = attnkit_decide(lambda _, view: self._guarded(decide, view.contents))
        self.observe = attnkit_observe(lambda _, event: self._guarded(observe, event.contents)) if observe else attnkit_observe()

    def _guarded(self, function, argument):
        if self._raised is None:
            try:
                return int(function(_copy(argument)) or 0)
            except BaseException as e:  # KeyboardInterrupt included: nothing may pass through C
                self._raised = e
        return ATTNKIT_STOP

    def __enter__(self):
        return self

    def __exit__(self, *_):
        raised, self._raised = self._raised, None
        self.decide = self.observe = None
        if raised is not None:
            raise raised


def _copy(struct):
    """The callback may keep what it is given; C's is gone when it returns."""
    return type(struct).from_buffer_copy(struct)
