"""attnkit::forward and attnkit::backward: tensors of torch to attnkit_block_run and attnkit_block_backward, without a copy."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch
from torch.autograd import forward_ad

from .._abi import (ATTN_KNOWS_K_TOTAL, ATTN_KNOWS_Q_TOTAL, ATTN_LEARNED, ATTN_OUTPUT, ATTN_PREFIX,
                    ATTN_TABLE, ATTN_TRAIN, attn_grad, attn_run, attn_tensor, sized)
from .._call import call
from ..error import INVALID, UNSUPPORTED, Error
from ..block import Port
from ._bound import CPU, CUDA, Bound, bound

# inputs: by port, without the outputs.  rows: q_len, k_len, q_total, k_total, visible.  Both give the outputs, OUTPUT first,
# and under train what backward needs to have saved; of backward the gradients of those inputs that are wanted.
_library = torch.library.Library("attnkit", "DEF")
_library.define("forward(str block, Tensor?[] inputs, Tensor?[] rows, SymInt queries, SymInt keys, bool train) -> Tensor[]",
                tags=(torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag))
_library.define("backward(str block, Tensor?[] inputs, Tensor[] made, Tensor?[] grads, Tensor?[] rows, SymInt queries, SymInt keys, "
                "bool[] wanted) -> Tensor[]", tags=(torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag))

_TENSOR, _RUN, _EXEC = struct.Struct("Q4q4qBBHIii"), struct.Struct("IIQqqq12Q"), struct.Struct("IIQQQQQ")
_TYPES = {torch.float32: (2, 32), torch.float64: (2, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.int32: (0, 32),
          torch.int64: (0, 64)}
HALVES = (torch.float16, torch.bfloat16)
_TABLES = {code: dtype for dtype, code in _TYPES.items()}
_ROWS = (("q_len", torch.int32), ("k_len", torch.int32), ("q_total", torch.float64), ("k_total", torch.float64),
         ("visible", torch.int32))
_FLAGS = (0, 0, ATTN_KNOWS_Q_TOTAL, ATTN_KNOWS_K_TOTAL, ATTN_PREFIX)
_NONE = bytes(_TENSOR.size)
_NO_ROWS = ctypes.create_string_buffer(8)  # for a batch of none, whose tensors have no address


def _takes_halves(block: str, dtype: torch.dtype, train: bool) -> bool:
    """Does the CUDA variant take sequences of this type of 16 bits?"""
    return bound(block, CUDA).takes(*_TYPES[dtype], train)


# A graph holds the answer.
takes_halves: Callable[[str, torch.dtype, bool], bool] = torch.compiler.assume_constant_result(_takes_halves)


def port_type(port: Port, dtype: torch.dtype) -> torch.dtype:
    """The type of a port's tensors where queries, keys and values have this one."""
    if port.kind == ATTN_TABLE or port.bits and dtype != torch.float64:
        return _TABLES[port.code, port.bits]
    return dtype


def _device(block: str, tensors: list[Any]) -> tuple[int, int, torch.device]:
    """The device of the tensors: the DLPack type, the index, and torch's device."""
    devices = {t.device for t in tensors if t is not None}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        raise Error(INVALID, f"{block.split(' ')[0]}: tensors are on {', '.join(sorted(map(str, devices)))}; all of a block must be on "
                             "the CPU, or all on one CUDA device")
    device, = devices
    return (CUDA, device.index, device) if device.type == "cuda" else (CPU, 0, device)


def _packed(port: Port, t: torch.Tensor, dtype: torch.dtype, device: tuple[int, int, torch.device]) -> bytes:
    shape, stride, n = t.shape, t.stride(), t.dim()
    if t.dtype != dtype:
        raise Error(INVALID, f"port \"{port.name}\": {t.dtype} where this call has {dtype}")
    if n and stride[-1] != 1:
        if shape[-1] > 1 and t.numel():
            raise Error(INVALID, f"port \"{port.name}\": the innermost stride must be 1, not {stride[-1]}: call .contiguous() on it")
        stride = (*stride[:-1], 1)
    if n > 4:
        raise Error(INVALID, f"port \"{port.name}\": a tensor of {n} dimensions fits no port")
    none = (0,) * (4 - n)
    return _TENSOR.pack(t.data_ptr(), *shape, *none, *stride, *none, *_TYPES[t.dtype], 1, n, *device[:2])


def _absent(port: Port, batch: int, dtype: torch.dtype, device: tuple[int, int, torch.device]) -> bytes:
    return _TENSOR.pack(0, batch, *port.shape[1:], 0, 0, port.shape[-1], 1, *_TYPES[dtype], 1, 4, *device[:2])


class _Call:
    """One run: its memory is held by this object and by what the caller passed."""

    def __init__(self, key: str, inputs: list[torch.Tensor], rows: list[Any], queries: int, keys: int, train: bool) -> None:
        self.device = _device(key, [*inputs, *rows])
        self.on = bound(key, self.device[0])
        first = inputs[self.on.sequence]
        if len(inputs) != len(self.on.inputs) or first is None or first.dim() != 4:
            raise Error(INVALID, f"{key.split(' ')[0]}: one tensor for each input port is needed, sequences as (B, heads, rows, width)")
        self.inputs, self.batch, self.dtype, self.sizes = inputs, first.shape[0], first.dtype, (queries, keys)
        flags = ATTN_TRAIN if train else 0
        self.rows = []
        for values, flag, (name, kind) in zip(rows, _FLAGS, _ROWS):
            shape = (self.batch, queries) if name == "visible" else (self.batch,)
            if values is not None and (values.dtype != kind or values.shape != shape or not values.is_contiguous()):
                raise Error(INVALID, f"{name} must be a contiguous {kind} tensor of shape {tuple(shape)}")
            self.rows.append(0 if values is None else values.data_ptr() or ctypes.addressof(_NO_ROWS))
            flags |= flag if values is not None else 0
        if self.dtype not in _TYPES or not self.dtype.is_floating_point:
            raise Error(UNSUPPORTED, f"{key.split(' ')[0]}: sequences are float32, float64 or, on CUDA, float16 or bfloat16, not {self.dtype}")
        self.request, self.info = self.on.plan(flags, _TYPES[self.dtype], self.device[1], self.batch, queries, keys)

    def tensors(self, inputs: Sequence[torch.Tensor | None], outputs: list[torch.Tensor], absent: Callable[..., Any]) -> Any:
        """An array of attn_tensor by port; absent(port): what stands for an input that is None."""
        packed = [_NONE] * len(self.on.block.ports)
        for port, t in zip((*self.on.inputs, *self.on.outputs), (*inputs, *outputs)):
            packed[port.index] = absent(port) if t is None else _packed(port, t, port_type(port, self.dtype), self.device)
        return (attn_tensor * len(packed)).from_buffer_copy(b"".join(packed))

    def run(self, outputs: list[torch.Tensor], saved: torch.Tensor | None, scratch_bytes: int) -> Any:
        """An attn_run."""
        self.ports = self.tensors(self.inputs, outputs, lambda port: _absent(port, self.batch, port_type(port, self.dtype), self.device))
        self.exec = self._exec(scratch_bytes)
        q_len, k_len, q_total, k_total, visible = self.rows
        return attn_run.from_buffer_copy(_RUN.pack(
            _RUN.size, 0, ctypes.addressof(self.exec) if self.exec else 0, self.batch, *self.sizes, ctypes.addressof(self.ports),
            q_len, k_len, 0, 0, q_total, k_total, visible, 0, 0, 0, 0 if saved is None else saved.data_ptr()))

    def _exec(self, scratch_bytes: int) -> Any:
        # On the CPU the library brings threads and scratch.
        if self.device[0] == CPU:
            return None
        self.scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=self.device[2])
        stream = torch.cuda.current_stream(self.device[2]).cuda_stream
        return ctypes.create_string_buffer(
            _EXEC.pack(_EXEC.size, 1, self.scratch.data_ptr(), scratch_bytes, stream, 0, 0), _EXEC.size)

    def call(self, function: str, argument: Any) -> None:
        block = self.on.block
        with torch.cuda.device(self.device[2]) if self.device[0] == CUDA else contextlib.nullcontext():
            call(getattr(block._library, function), block.pointer, ctypes.byref(self.request), ctypes.byref(argument))


def _outputs(on: Bound, first: Any, queries: Any) -> list[Any]:
    """Makes tensors for the outputs; the heads of a row of OUTPUT lie side by side, as its projection wants them."""
    made = []
    for p in on.outputs:
        if p.kind == ATTN_OUTPUT:
            made.append(first.new_empty((first.shape[0], queries, p.shape[1], p.shape[3])).transpose(1, 2))
        else:
            made.append(first.new_empty((first.shape[0], *p.shape[1:]), dtype=port_type(p, first.dtype)))
    return made


def _forward(block: str, inputs: list[torch.Tensor], rows: list[Any], queries: int, keys: int, train: bool) -> list[torch.Tensor]:
    it = _Call(block, inputs, rows, queries, keys, train)
    made = _outputs(it.on, inputs[it.on.sequence], queries)
    saved = torch.empty(it.info.saved_bytes, dtype=torch.uint8, device=it.device[2]) if train else None
    it.call("attnkit_block_run", it.run(made, saved, it.info.scratch_bytes))
    return made if saved is None else [*made, saved]


def _forward_shapes(block: str, inputs: list[Any], rows: list[Any], queries: Any, keys: Any, train: bool) -> list[Any]:
    on = bound(block)  # the ports of a CUDA variant are the same, what it saves is not
    first = inputs[on.sequence]
    made = _outputs(on, first, queries)
    if not train:
        return made
    flags = ATTN_TRAIN | sum(flag for values, flag in zip(rows, _FLAGS) if values is not None)
    # The mechanism says how much it saves, of sizes that are known: dynamic ones become fixed here.
    on = bound(block, CUDA) if first.device.type == "cuda" else on
    info = on.plan(flags, _TYPES[first.dtype], 0, int(first.shape[0]), int(queries), int(keys))[1]
    return [*made, first.new_empty((info.saved_bytes,), dtype=torch.uint8)]


def _gradient_of(port: Port, t: Any) -> Any:
    return torch.zeros_like(t) if port.kind == ATTN_LEARNED else torch.empty_like(t)


def _given(made: list[torch.Tensor], grads: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Gradients of the outputs, zeros where autograd has none."""
    for t, grad in zip(made, grads):
        if grad is None:
            yield torch.zeros_like(t)
        else:
            yield grad if grad.stride(-1) == 1 or grad.shape[-1] == 1 else grad.contiguous()


def _backward(block: str, inputs: list[torch.Tensor], made: list[torch.Tensor], grads: list[torch.Tensor], rows: list[Any], queries: int,
              keys: int, wanted: list[bool]) -> list[torch.Tensor]:
    it = _Call(block, inputs, rows, queries, keys, True)
    *outputs, saved = made
    given = list(_given(outputs, grads))
    mine = [_gradient_of(p, t) if want else None for p, t, want in zip(it.on.inputs, inputs, wanted)]
    run = it.run(outputs, saved, it.info.backward_scratch_bytes)
    gradients = it.tensors(mine, given, lambda port: _NONE)
    it.call("attnkit_block_backward", sized(attn_grad, run=ctypes.pointer(run), grads=gradients))
    return [grad for grad in mine if grad is not None]


def _backward_shapes(block: str, inputs: list[Any], made: list[Any], grads: list[Any], rows: list[Any], queries: int, keys: int,
                     wanted: list[bool]) -> list[Any]:
    return [_gradient_of(p, t) for p, t, want in zip(bound(block).inputs, inputs, wanted) if want]


for _name, _impl, _shapes in (("forward", _forward, _forward_shapes), ("backward", _backward, _backward_shapes)):
    _library.impl(_name, _impl, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attnkit::{_name}", _shapes)


class _Once(torch.autograd.Function):
    """A gradient whose own is refused."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, *of: torch.Tensor | None) -> torch.Tensor:
        return grad.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise Error(UNSUPPORTED, "mechanisms and their losses have no second derivative: take the first without create_graph, or detach it")


def once(grads: Iterable[torch.Tensor | None], of: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Gradients that were made of these tensors.  Where gradients of them are taken in their turn, torch would take them for constants."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # what is compiled has none
        return list(grads)
    return [None if grad is None else _Once.apply(grad, *of) for grad in grads]


class _Run(torch.autograd.Function):
    """rows: which of the tensors is q_len, k_len ..., or -1; the inputs come behind them."""

    @staticmethod
    def forward(ctx: Any, block: str, queries: int, keys: int, rows: tuple[int, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call, ctx.rows, ctx.count = (block, queries, keys), rows, len(tensors)
        given, inputs = _split(rows, tensors)
        made = torch.ops.attnkit.forward.default(block, inputs, given, queries, keys, True)
        ctx.save_for_backward(*tensors, *made)
        ctx.set_materialize_grads(False)
        return tuple(made[:-1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        block, queries, keys = ctx.call
        saved = ctx.saved_tensors  # checkpointing gives them once
        tensors, made = saved[:ctx.count], list(saved[ctx.count:])
        given, inputs = _split(ctx.rows, tensors)
        first = 4 + ctx.count - len(inputs)
        wanted = list(ctx.needs_input_grad[first:])
        with torch.no_grad():
            found = iter(torch.ops.attnkit.backward.default(block, inputs, made, list(grads), given, queries, keys, wanted))
        return (None,) * first + tuple(once([next(found) if want else None for want in wanted], [*inputs, *grads]))


def _split(rows: tuple[int, ...], tensors: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    return [None if i < 0 else tensors[i] for i in rows], list(tensors[max(rows) + 1:])


def run(block: str, inputs: Sequence[torch.Tensor | None], rows: Sequence[torch.Tensor | None], queries: int,
        keys: int) -> Sequence[torch.Tensor]:
    """The outputs, OUTPUT first, then AUX_OUT in their order."""
    if forward_ad._current_level >= 0 and any(
            t is not None and t.is_floating_point() and forward_ad.unpack_dual(t).tangent is not None for t in inputs):
        raise Error(UNSUPPORTED, f"{block.split(' ')[0]} has no derivative forwards (jvp, jacfwd): take it backwards, by autograd.grad")
    if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)):
        return torch.ops.attnkit.forward.default(block, inputs, rows, queries, keys, False)
    for port, t in zip(bound(block).inputs, inputs):
        if port.kind == ATTN_TABLE and t is not None and t.requires_grad:
            raise Error(INVALID, f"port \"{port.name}\" is a table, which has no gradient: leave its requires_grad off")
    # Each once: self attention has the same lengths on both sides, and torch.compile takes no tensor twice.
    distinct: list[torch.Tensor] = []
    places = []
    for t in rows:
        same = [i for i, other in enumerate(distinct) if other is t]
        places.append(-1 if t is None else same[0] if same else len(distinct))
        if t is not None and not same:
            distinct.append(t)
    return _Run.apply(block, queries, keys, tuple(places), *distinct, *inputs)
