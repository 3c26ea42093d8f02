"""Numbers as tensors of the ABI: arrays are lent without a copy, by the buffer protocol or DLPack; lists are copied."""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

from ._abi import ATTN_ALIGN, attn_tensor
from ._arguments import integers
from .error import INVALID, Error

if TYPE_CHECKING:
    from ._types import Array, Batch, Ids

assert array.array("i").itemsize == 4 and array.array("f").itemsize == 4

CPU = 1
INT32, FLOAT32, FLOAT64, BYTE = (0, 32), (2, 32), (2, 64), (1, 8)  # code of DLPack, bits
_KINDS = {INT32: "i", FLOAT32: "f", FLOAT64: "d", BYTE: "B", (0, 64): "q"}
_TYPES = {"i": ctypes.c_int32, "f": ctypes.c_float, "d": ctypes.c_double, "B": ctypes.c_uint8, "q": ctypes.c_int64}
_CODES = {**dict.fromkeys("bhilq", 0), **dict.fromkeys("BHILQ", 1), **dict.fromkeys("efd", 2)}


def name_of(dtype: tuple[int, int]) -> str:
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}.get(dtype[0], "a type of code ")
    return f"{kind}{dtype[1]}"


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        stride[d] = stride[d + 1] * shape[d + 1]
    return tuple(stride)


class Tensor:
    """An attn_tensor over the memory of `keep`, which it keeps alive."""

    def __init__(self, keep: Any, address: int, shape: Sequence[int], dtype: tuple[int, int],
                 stride: Optional[Sequence[int]] = None, device: tuple[int, int] = (CPU, 0)) -> None:
        if len(shape) > 4:
            raise Error(INVALID, f"an array of {len(shape)} dimensions: tensors have at most 4")
        self.keep, self.shape, self.dtype = keep, tuple(shape), dtype
        self.contiguous = stride is None or 0 in shape or all(
            mine == dense for mine, dense, n in zip(stride, _contiguous(shape), shape) if n > 1)
        if self.contiguous:
            stride = _contiguous(shape)
        elif shape and shape[-1] == 1:
            stride = (*stride[:-1], 1)  # type: ignore[index]
        t = self.struct = attn_tensor(dtype_code=dtype[0], dtype_bits=dtype[1], dtype_lanes=1, ndim=len(shape),
                                      device_type=device[0], device_id=device[1])
        t.keep = keep  # a reference to the struct keeps them as well
        # An empty array still needs a place: NULL means that there is no tensor.
        t.data = address or ctypes.addressof(t)
        t.shape[:len(shape)] = self.shape
        t.stride[:len(shape)] = stride

    def reshaped(self, shape: Sequence[int]) -> Tensor:
        """The same numbers, contiguous, in another shape."""
        return Tensor(self.keep, self.struct.data, shape, self.dtype)

    @property
    def reference(self) -> Any:
        return ctypes.byref(self.struct)

    def view(self) -> Result:
        """The values of a tensor that zeros() made, in this shape; flat where there are none."""
        made: Result = _results(self.keep.typecode, (0,) if 0 in self.shape else self.shape).from_buffer(self.keep)
        return made


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_ssize_t)), ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
                ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)), ("internal", ctypes.c_void_p)]


_STRIDED_WITH_FORMAT = 0x1C
_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_get_buffer.argtypes, _get_buffer.restype = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int), ctypes.c_int
_release_buffer.argtypes, _release_buffer.restype = (ctypes.POINTER(_PyBuffer),), None


def address_of(view: memoryview) -> int:
    """The address of a view's bytes, writable or not."""
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), _STRIDED_WITH_FORMAT)
    found = buffer.buf or 0
    _release_buffer(ctypes.byref(buffer))
    return int(found)


@contextlib.contextmanager
def bytes_of(values: Any) -> Iterator[tuple[int, int]]:
    """Address and number of the bytes of a contiguous buffer, while the `with` block lasts."""
    view = memoryview(values).cast("B")
    yield address_of(view), len(view)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
# A capsule that goes has no references left, and must not get one.
_going = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_going_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_lent_out: dict[int, Any] = {}  # what others hold by DLPack, by the address of its _Managed


def _forget(capsule: int) -> None:
    if _going(capsule, b"dltensor"):  # nobody took it
        _lent_out.pop(_going_pointer(capsule, b"dltensor"), None)


def _give_back(managed: int) -> None:
    _lent_out.pop(managed, None)


_capsule_goes = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget)
_given_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_give_back)


class Result:
    """Numbers that a call made: a memoryview, by its attributes and indices, that NumPy and DLPack take without a copy.

    It has a buffer: memoryview, numpy.asarray, numpy.from_dlpack, torch.from_dlpack and the like share its numbers and keep them alive.
    """

    _layout: tuple[str, Sequence[int]]

    @property
    def memory(self) -> memoryview:
        """The numbers; the formats of ctypes, which say the order of bytes, are for no index."""
        code, shape = self._layout
        return memoryview(self).cast("B").cast(code, shape) if 0 not in shape else memoryview(array.array(code))  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def __getitem__(self, index: Any) -> Any:
        return self.memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.memory[index] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.memory)

    def __eq__(self, other: object) -> bool:
        return self.memory == (other.memory if isinstance(other, Result) else other)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Optional[bool] = None) -> Any:
        if stream is not None or dl_device not in (None, (CPU, 0)):
            raise BufferError(f"results are on the CPU, not in stream {stream} or on device {dl_device}")
        memory = self.memory
        shape, code = memory.shape or (), _CODES[memory.format]
        if copy:
            memory = memoryview(array.array(memory.format, memory.tobytes()))
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        managed = _Managed(_DLTensor(address_of(memory), CPU, 0, len(shape), code, 8 * memory.itemsize, 1, sizes, None, 0), None,
                           ctypes.cast(_given_back, ctypes.c_void_p))
        address = ctypes.addressof(managed)
        _lent_out[address] = managed, sizes, memory
        return _new_capsule(address, b"dltensor", ctypes.cast(_capsule_goes, ctypes.c_void_p))


@functools.lru_cache(maxsize=256)
def _results(code: str, shape: tuple[int, ...]) -> Any:
    """The class of results of a shape: an array of ctypes, since before Python 3.12 no other class lends a buffer."""
    base: Any = _TYPES[code]
    for n in reversed(shape):
        base = base * n
    return type("Result", (Result, base), {"_layout": (code, shape)})


def _lent(values: Any) -> Optional[Tensor]:
    """The tensor over the memory of an array of numbers on the CPU; None for what is no such array."""
    found = _lent_anywhere(values)
    if found is not None and found.struct.device_type != CPU:
        raise Error(INVALID, f"an array on the device {found.struct.device_type}:{found.struct.device_id}: models take arrays on the CPU")
    return found


def _lent_anywhere(values: Any) -> Optional[Tensor]:
    if isinstance(values, (bytes, bytearray, str)):
        raise Error(INVALID, f"numbers are needed, not {type(values).__name__}")
    try:
        view = memoryview(values)
    except TypeError:
        return _by_dlpack(values) if hasattr(values, "__dlpack__") else None
    form = view.format.lstrip("@=<")
    if view.ndim == 0 or form not in _CODES:
        return None
    shape = view.shape or ()
    if 0 not in shape and any(n > 1 and stride % view.itemsize for n, stride in zip(shape, view.strides or ())):
        raise Error(INVALID, f"an array with strides of {view.strides} bytes, no multiples of its items' {view.itemsize}, as a field of packed "
                             "records: make it contiguous first")
    strides = [n // view.itemsize for n in view.strides or ()]
    return Tensor(view, address_of(view), shape, (_CODES[form], 8 * view.itemsize), strides)


def _by_dlpack(values: Any) -> Optional[Tensor]:
    # The capsule is not consumed: it gives the array back when it goes.
    capsule = values.__dlpack__()
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if t.ndim == 0 or t.lanes != 1:
        return None
    shape = t.shape[:t.ndim]
    return Tensor((capsule, values), (t.data or 0) + t.byte_offset, shape, (t.code, t.bits), t.strides[:t.ndim] if t.strides else None,
                  (t.device_type, t.device_id))


def _check_writable(values: Any, what: str) -> None:
    try:
        readonly = memoryview(values).readonly
    except TypeError:
        return
    if readonly:
        raise Error(INVALID, f"{what} is written to: it must not be read-only")


def numbers(kind: str, values: Any, shape: Optional[Sequence[int]] = None) -> Tensor:
    """A tensor over an array.array."""
    made = array.array(kind, values)
    dtype = next(dtype for dtype, letter in _KINDS.items() if letter == kind)
    return Tensor(made, made.buffer_info()[0], (len(made),) if shape is None else shape, dtype)


def zeros(dtype: tuple[int, int], shape: Sequence[int]) -> Tensor:
    count = 1
    for n in shape:
        count *= n
    return numbers(_KINDS[dtype], bytes(dtype[1] // 8 * count), shape)


def aligned(bytes: int, rows: int = 1) -> memoryview:
    """Zero bytes (rows, stride) for the state of a block, or for saved: every row begins at a multiple of ATTN_ALIGN."""
    if bytes < 1 or rows < 1:
        raise Error(INVALID, f"{rows} rows of {bytes} bytes: both must be at least 1")
    stride = -(-bytes // ATTN_ALIGN) * ATTN_ALIGN
    memory = bytearray(rows * stride + ATTN_ALIGN)
    skip = -address_of(memoryview(memory)) % ATTN_ALIGN
    return memoryview(memory)[skip:skip + rows * stride].cast("B", (rows, stride))


def lent(values: Array, what: str, shape: Sequence[int], dtype: tuple[int, int], written: bool = False) -> Tensor:
    """The tensor over an array that must be contiguous and of that shape and type."""
    found = _lent(values)
    if found is None or found.dtype != dtype or found.shape != tuple(shape) or not found.contiguous:
        got = type(values).__name__ if found is None else f"{name_of(found.dtype)} {found.shape}{'' if found.contiguous else ' with gaps'}"
        raise Error(INVALID, f"{what} must be a contiguous array of {name_of(dtype)} {tuple(shape)}, not {got}")
    if written:
        _check_writable(values, what)
    return found


def strided(values: Array, what: str, written: bool = False) -> Tensor:
    """The tensor over any array, on any device."""
    found = _lent_anywhere(values)
    if found is None:
        raise Error(INVALID, f"{what} must be an array of numbers, not {type(values).__name__}")
    if written:
        _check_writable(values, what)
    return found


def result(out: Optional[Array], what: str, shape: Sequence[int]) -> tuple[Tensor, Any]:
    """The place of f32 results, and what the caller gets: the array that was given, or a Result that is made."""
    if out is not None:
        return lent(out, what, shape, FLOAT32, written=True), out
    made = zeros(FLOAT32, shape)
    return made, made.view()


def ids(values: Ids) -> Tensor:
    """Ids as int32 (1, S): an array of them (S) or (1, S) as it is, anything else copied."""
    found = _lent(values)
    if found is not None and found.dtype == INT32 and found.shape[:-1] in ((), (1,)):
        return _dense(found, (1, found.shape[-1]))
    try:
        made = numbers("i", values)
    except OverflowError:
        raise Error(INVALID, "ids must fit in 32 bits") from None
    return made.reshaped((1, made.shape[0]))


def source(values: Ids) -> Tensor:
    """Ids (1, S), or speech: float32 samples (S) or (1, S), or frames (1, T, F)."""
    found = _lent(values)
    if found is None or found.dtype != FLOAT32:
        return ids(values)
    shape = found.shape if len(found.shape) > 1 else (1, *found.shape)
    if shape[0] != 1 or len(shape) > 3:
        raise Error(INVALID, f"speech of shape {found.shape}: samples are (S) or (1, S), frames (1, T, F)")
    return _dense(found, shape)


def _dense(found: Tensor, shape: Sequence[int]) -> Tensor:
    if found.contiguous:
        return found.reshaped(shape)
    if isinstance(found.keep, memoryview):
        return numbers(_KINDS[found.dtype], found.keep.tobytes(), shape)
    raise Error(INVALID, f"an array {found.shape} with gaps: make it contiguous first")


class Rows:
    """Sources or targets side by side, (rows, length): an array as it is, sequences of ids padded with 0."""

    def __init__(self, values: Batch, lengths: Optional[Sequence[int]] = None) -> None:
        found = None if isinstance(values, (list, tuple)) else _lent(values)
        if found is not None and len(found.shape) > 1 and found.dtype in (INT32, FLOAT32):
            self.tensor = _dense(found, found.shape)
            rows = self.tensor.shape[0]
            counts = [self.tensor.shape[1]] * rows if lengths is None else list(lengths)
            if len(counts) != rows:
                raise Error(INVALID, f"{len(counts)} lengths for {rows} rows")
        else:
            if lengths is not None:
                raise Error(INVALID, "lengths are those of an array of rows, int32 or float32; a list of sequences has its own")
            sequences = [ids(row) for row in values]  # type: ignore[union-attr]
            counts = [row.shape[1] for row in sequences]
            longest = max(counts, default=0)
            padded = array.array("i")
            for row, n in zip(sequences, counts):
                padded.frombytes(ctypes.string_at(row.struct.data, 4 * n))
                padded.frombytes(bytes(4 * (longest - n)))
            self.tensor = Tensor(padded, padded.buffer_info()[0], (len(counts), longest), INT32)
        self._lengths = integers(counts or [0], "lengths", ctypes.c_int32)

    def arguments(self) -> tuple[Any, Any]:
        """Tensor and lengths, as functions of the ABI take them; none for no rows."""
        return (self.tensor.reference, self._lengths) if self.tensor.shape[0] else (None, None)
