"""One mechanism by itself: its ports, what a run of a size needs, runs and their gradients on the CPU.

attnkit.torch makes modules of PyTorch of the same, on any device.
"""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence, Union

from ._abi import (ATTN_AUX_IN, ATTN_AUX_OUT, ATTN_DECODER_CROSS, ATTN_DECODER_SELF, ATTN_ENCODER_SELF, ATTN_KEY, ATTN_OUTPUT,
                   ATTN_QUERY, ATTN_TRAIN, attn_block, attn_grad, attn_info, attn_port, attn_request, attn_run, attn_tensor, sized)
from ._arguments import c_text, instance, integer, integers
from ._call import Handle, call, make
from ._tensor import BYTE, CPU, FLOAT32, FLOAT64, INT32, Tensor, aligned, lent, strided, zeros
from .error import INVALID, Error
from .runtime import Runtime

if TYPE_CHECKING:
    from ._types import Array

ROLES = {"encoder.self": ATTN_ENCODER_SELF, "decoder.self": ATTN_DECODER_SELF, "decoder.cross": ATTN_DECODER_CROSS}
_DTYPES = {"float32": FLOAT32, "float64": FLOAT64}


def role_number(role: str) -> int:
    """The number of a role of ROLES by its name."""
    if role not in ROLES:
        raise Error(INVALID, f"role {role!r}: one of {', '.join(ROLES)} is needed")
    return ROLES[role]


class Port(NamedTuple):
    """attn_port of plugin.h; code and bits are 0 where the run decides the type."""

    index: int  # type: ignore[assignment]
    name: str
    kind: int
    flags: int
    code: int
    bits: int
    shape: tuple[int, ...]
    doc: str


class Run:
    """One run that was made.  output: what the OUTPUT port got, the array that was given for it or a Result."""

    def __init__(self, block: Block, asked: attn_request, struct: attn_run, keep: Sequence[Any], output: Any) -> None:
        self._block, self._request = block, attn_request.from_buffer_copy(asked)  # the caller may change it for the next run
        self._struct, self._keep, self.output = struct, keep, output


class Block(Handle):
    """options: the content of an inline table, see options_text.  kv_heads: heads of keys and values, 0: heads; key_width: of a
    query and a key in a head, 0: d_model / heads; head_width: of a value, default that of a key."""

    def __init__(self, runtime: Runtime, mechanism: str, role: str, d_model: int, heads: int, causal: Optional[bool] = None,
                 head_width: Optional[int] = None, options: str = "", kv_heads: int = 0, key_width: int = 0) -> None:
        instance(runtime, Runtime, "runtime")
        number = role_number(role)
        for what, value in (("d_model", d_model), ("heads", heads), ("key_width", key_width)):
            integer(value, what, ctypes.c_int32)
        if heads < 1 or not key_width and d_model % heads:
            raise Error(INVALID, f"{heads} heads do not divide d_model {d_model}")
        library = runtime._library
        where = sized(attn_block, role=number, causal=role == "decoder.self" if causal is None else causal, heads=heads,
                      d_model=d_model, head_width=head_width or key_width or d_model // heads, kv_heads=kv_heads, key_width=key_width)
        super().__init__(library, make(library.attnkit_block_destroy, library.attnkit_block_create, runtime.pointer,
                                       c_text(mechanism, "mechanism"), ctypes.byref(where), c_text(options, "options")))
        self._workers = runtime.threads
        self.mechanism, self.role, self.heads, self.d_model, self.head_width = mechanism, role, heads, d_model, where.head_width
        n = ctypes.c_uint32()
        declared = library.attnkit_block_ports(self.pointer, ctypes.byref(n))
        self.ports = tuple(_port(i, attn_port.from_address(declared[i])) for i in range(n.value))

    def fill(self, port: Port, seed: int, out: Optional[Array] = None) -> Any:
        """Writes the initial content of a LEARNED or TABLE port to `out`, a contiguous array, or to a Result; that."""
        instance(port, Port, "port")
        shape, dtype = port.shape, (port.code, port.bits)
        made = zeros(dtype, shape) if out is None else lent(out, f'port "{port.name}"', shape, dtype, written=True)
        call(self._library.attnkit_block_fill, self.pointer, port.index, integer(seed, "seed", ctypes.c_uint64), made.reference)
        return made.view() if out is None else out

    def request(self, batch: int = 1, queries: int = 1, keys: int = 1, past: int = 0, flags: int = 0, dtype: str = "float32") -> attn_request:
        """Upper bounds of runs on the CPU, with the runtime's threads; flags: STREAM, TRAIN, ..."""
        if dtype not in _DTYPES:
            raise Error(INVALID, f"dtype {dtype!r}: float32 or float64 is needed")
        code, bits = _DTYPES[dtype]
        return sized(attn_request, flags=flags, device_type=CPU, dtype_code=code, dtype_bits=bits, dtype_lanes=1, workers=self._workers,
                     batch=batch, queries=queries, keys=keys, past=past)

    def plan(self, request: attn_request) -> attn_info:
        """The needs of runs within an attn_request, as attn_info; request() makes one."""
        info = sized(attn_info)
        call(self._library.attnkit_block_plan, self.pointer, ctypes.byref(request), ctypes.byref(info))
        return info

    def run(self, request: attn_request, tensors: Mapping[Union[str, int], Array], queries: Optional[int] = None,
            keys: Optional[int] = None, q_len: Optional[Sequence[int]] = None, k_len: Optional[Sequence[int]] = None,
            q_pos: Optional[Sequence[int]] = None, k_pos: Optional[Sequence[int]] = None,
            q_total: Optional[Sequence[float]] = None, k_total: Optional[Sequence[float]] = None,
            visible: Optional[Array] = None, state: Optional[memoryview] = None, slots: Optional[Sequence[int]] = None) -> Run:
        """One run within a request, see attn_run.

        tensors: arrays by the name of a port, or by its index where two share a name, of shape (batch, heads, rows, width), each row
        contiguous; they are read and written in place.  The OUTPUT may be left out, so may an AUX_IN that has no value yet.
        queries and keys: rows of this run, where no tensor tells them; default those of the request.  state: (slots, bytes) as
        aligned() makes it.  What backward needs is saved where the request says TRAIN.
        """
        instance(request, attn_request, "request")
        found = self._by_port(tensors)
        first = next((t for t in found if t is not None and len(t.shape) == 4), None)
        batch = request.batch if first is None else first.shape[0]
        n = self._rows(found, (ATTN_QUERY, ATTN_OUTPUT), queries, request.queries)
        m = self._rows(found, (ATTN_KEY,), keys, request.keys)
        output: Any = None
        for port, t in zip(self.ports, found):
            if port.kind == ATTN_OUTPUT:
                if t is None:
                    t = found[port.index] = zeros((request.dtype_code, request.dtype_bits), (batch, port.shape[1], n, port.shape[3]))
                    output = t.view()
                else:
                    output = tensors[port.name if port.name in tensors else port.index]
        ports = (attn_tensor * len(found))(*(self._struct(p, t, request, batch) for p, t in zip(self.ports, found)))
        numbers = [_row(values, name, kind, batch) for values, name, kind in
                   ((q_len, "q_len", ctypes.c_int32), (k_len, "k_len", ctypes.c_int32), (q_pos, "q_pos", ctypes.c_int32),
                    (k_pos, "k_pos", ctypes.c_int32), (q_total, "q_total", ctypes.c_double), (k_total, "k_total", ctypes.c_double),
                    (slots, "slots", ctypes.c_int32))]
        sight = None if visible is None else lent(visible, "visible", (batch, n), INT32)
        run = sized(attn_run, batch=batch, queries=n, keys=m, ports=ports, q_len=numbers[0], k_len=numbers[1], q_pos=numbers[2],
                    k_pos=numbers[3], q_total=numbers[4], k_total=numbers[5], slots=numbers[6])
        if sight is not None:
            run.visible = ctypes.cast(sight.struct.data, ctypes.POINTER(ctypes.c_int32))
        keep = [found, ports, numbers, sight]
        if state is not None:
            memory = strided(state, "state", written=True)
            if memory.dtype != BYTE or len(memory.shape) != 2:
                raise Error(INVALID, "state must be bytes (slots, stride), as attnkit.aligned(bytes, slots) makes them")
            if not memory.contiguous:
                raise Error(INVALID, f"state {memory.shape} has gaps: it must be contiguous")
            used = range(batch) if slots is None else slots
            wrong = [slot for slot in used if not 0 <= slot < memory.shape[0]]
            if wrong:
                raise Error(INVALID, f"slot {wrong[0]} of a state with {memory.shape[0]} rows: each row of the batch needs one")
            if m > 0 and len(set(used)) < batch:
                raise Error(INVALID, f"slots {list(used)}: rows that append keys share none")
            run.state, run.state_stride = memory.struct.data, memory.shape[1]
            keep.append(memory)
        if request.flags & ATTN_TRAIN:
            saved = strided(aligned(max(1, self.plan(request).saved_bytes)), "saved", written=True)
            run.saved = saved.struct.data
            keep.append(saved)
        call(self._library.attnkit_block_run, self.pointer, ctypes.byref(request), ctypes.byref(run))
        return Run(self, request, run, keep, output)

    def backward(self, run: Run, grads: Mapping[Union[str, int], Array]) -> None:
        """The gradients of a run under TRAIN, by port as in run: those of the outputs are given, the others written in place.

        Gradients of LEARNED ports are added to what is there; what is left out is not computed.
        """
        instance(run, Run, "run")
        if run._block is not self:
            raise Error(INVALID, f"this run is one of another block, of {run._block.mechanism}: its own block has its gradients")
        found = self._by_port(grads, gradients=True)
        structs = (attn_tensor * len(found))(*(attn_tensor() if t is None else t.struct for t in found))
        grad = sized(attn_grad, run=ctypes.pointer(run._struct), grads=structs)
        call(self._library.attnkit_block_backward, self.pointer, ctypes.byref(run._request), ctypes.byref(grad))

    def _by_port(self, tensors: Mapping[Union[str, int], Array], gradients: bool = False) -> list[Optional[Tensor]]:
        found: list[Optional[Tensor]] = [None] * len(self.ports)
        for key, values in dict(tensors).items():
            meant = [p for p in self.ports if key in (p.name, p.index)]
            if len(meant) != 1:
                known = ", ".join(p.name for p in self.ports)
                raise Error(INVALID, f"{key!r} names two ports: give their indices" if meant else
                            f"{self.mechanism} has no port {key!r}: {known}")
            written = (meant[0].kind in (ATTN_OUTPUT, ATTN_AUX_OUT)) is not gradients
            found[meant[0].index] = strided(values, f'port "{meant[0].name}"', written)
        return found

    def _rows(self, found: Sequence[Optional[Tensor]], kinds: tuple[int, ...], given: Optional[int], bound: int) -> int:
        """Rows of this run as its tensors have them, else as given, else as the request has them."""
        for port, t in zip(self.ports, found):
            if port.kind in kinds and t is not None and len(t.shape) == 4:
                return t.shape[2]
        return bound if given is None else given

    def _struct(self, port: Port, t: Optional[Tensor], request: attn_request, batch: int) -> attn_tensor:
        if t is not None:
            return t.struct
        if port.kind != ATTN_AUX_IN:
            raise Error(INVALID, f'port "{port.name}" of {self.mechanism} needs a tensor')
        shape = (batch, *port.shape[1:])
        absent = Tensor(None, 0, shape, (request.dtype_code, request.dtype_bits)).struct
        absent.data = None
        return absent


def _row(values: Optional[Sequence[Any]], name: str, kind: Any, batch: int) -> Any:
    if values is None:
        return None
    if len(values) != batch:
        raise Error(INVALID, f"{name} has {len(values)} entries for a batch of {batch}")
    return (kind * batch)(*values) if kind is ctypes.c_double else integers(values, name, kind)


def _port(index: int, p: attn_port) -> Port:
    return Port(index, p.name.decode(), p.kind, p.flags, p.dtype_code, p.dtype_bits, tuple(p.shape[:p.ndim]),
                (p.doc or b"").decode("utf-8", "replace"))


def options_text(options: Mapping[str, Any]) -> str:
    """{"factor": 4} as the content of an inline table of TOML, "factor = 4"."""
    return ", ".join(f"{name} = {_value(value)}" for name, value in options.items())


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
