"""Ids, samples and logits as tensors of the ABI."""

import array
import ctypes

from ._abi import attn_tensor
from .error import INVALID, Error

assert array.array("i").itemsize == 4 and array.array("f").itemsize == 4


class Tensor:
    """A contiguous CPU tensor over `values`, a writable array.array that it keeps."""

    def __init__(self, values, shape):
        self.values, self.shape = values, tuple(shape)
        t = self.struct = attn_tensor(dtype_code=2 if values.typecode == "f" else 0, dtype_bits=32, dtype_lanes=1,
                                      ndim=len(self.shape), device_type=1)
        t.values = values  # a reference to the struct keeps them as well
        # An empty array still needs a place: NULL means that there is no tensor.
        t.data = values.buffer_info()[0] or ctypes.addressof(t)
        t.shape[:t.ndim] = self.shape
        stride = 1
        for d in reversed(range(t.ndim)):
            t.stride[d] = stride
            stride *= self.shape[d]

    @property
    def reference(self):
        return ctypes.byref(self.struct)

    def view(self):
        """The values as a memoryview of this shape, which numpy takes as it is; flat where there are none."""
        if 0 in self.shape:
            return memoryview(self.values)
        return memoryview(self.values).cast("B").cast(self.values.typecode, self.shape)


def _buffer(values, kinds):
    """A memoryview of values if these are an array of four-byte numbers of one of the kinds ("i", "f"), else None."""
    if isinstance(values, (bytes, bytearray, str)):
        raise Error(INVALID, f"numbers are needed, not {type(values).__name__}")
    try:
        view = memoryview(values)
    except TypeError:
        return None
    return view if view.itemsize == 4 and view.ndim > 0 and view.format.lstrip("@=<") in kinds else None


def _copy(view, kind):
    return array.array(kind, view.tobytes())


def ids(values):
    """A sequence of ids, or a buffer of them of shape (S) or (1, S), as array("i")."""
    view = _buffer(values, ("i", "l"))
    if view is not None and view.shape[:-1] in ((), (1,)):
        return _copy(view, "i")
    try:
        return array.array("i", values)
    except OverflowError:
        raise Error(INVALID, "ids must fit in 32 bits") from None


def zeros(kind, shape):
    count = 1
    for n in shape:
        count *= n
    return Tensor(array.array(kind, bytes(4 * count)), shape)


class Batch:
    """Sequences of ids side by side, (rows, length), the shorter ones padded with 0."""

    def __init__(self, rows):
        rows = [ids(row) for row in rows]
        length = max(map(len, rows), default=0)
        padded = array.array("i")
        for row in rows:
            padded.extend(row)
            padded.extend([0] * (length - len(row)))
        self.tensor = Tensor(padded, (len(rows), length))
        self._lengths = (ctypes.c_int32 * max(len(rows), 1))(*map(len, rows))

    def arguments(self):
        """Tensor and lengths, as functions of the ABI take them; none for no rows."""
        return (self.tensor.reference, self._lengths) if self.tensor.shape[0] else (None, None)


def source(values):
    """Ids (1, S), or speech: float32 samples (S) or (1, S), or frames (1, T, F)."""
    view = _buffer(values, ("f",))
    if view is None:
        row = ids(values)
        return Tensor(row, (1, len(row)))
    shape = view.shape if view.ndim > 1 else (1, *view.shape)
    if shape[0] != 1 or len(shape) > 3:
        raise Error(INVALID, f"speech of shape {view.shape}: samples are (S) or (1, S), frames (1, T, F)")
    return Tensor(_copy(view, "f"), shape)
