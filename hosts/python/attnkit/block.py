"""One mechanism by itself: its ports, and what a run of a size needs.  attnkit.torch runs and trains them."""

import ctypes
import json
from collections import namedtuple

from ._abi import (ATTN_DECODER_CROSS, ATTN_DECODER_SELF, ATTN_ENCODER_SELF, attn_block, attn_info, attn_port, attn_request,
                   attn_tensor, sized)
from ._call import Handle, c_text, call, make
from .error import INVALID, Error

ROLES = {"encoder.self": ATTN_ENCODER_SELF, "decoder.self": ATTN_DECODER_SELF, "decoder.cross": ATTN_DECODER_CROSS}

# attn_port of plugin.h; code and bits are 0 where the run decides the type.
Port = namedtuple("Port", "index name kind flags code bits shape doc")


class Block(Handle):
    """options: the content of an inline table, see options_text."""

    def __init__(self, runtime, mechanism, role, d_model, heads, causal=None, head_width=None, options=""):
        if role not in ROLES:
            raise Error(INVALID, f"role {role!r}: one of {', '.join(ROLES)} is needed")
        if heads < 1 or d_model % heads:
            raise Error(INVALID, f"{heads} heads do not divide d_model {d_model}")
        library = runtime._library
        where = sized(attn_block, role=ROLES[role], causal=role == "decoder.self" if causal is None else causal, heads=heads,
                      d_model=d_model, head_width=head_width or d_model // heads)
        super().__init__(library, make(library.attnkit_block_destroy, library.attnkit_block_create, runtime.pointer,
                                       c_text(mechanism, "mechanism"), ctypes.byref(where), c_text(options, "options")))
        self.mechanism, self.role, self.heads, self.d_model, self.head_width = mechanism, role, heads, d_model, where.head_width
        n = ctypes.c_uint32()
        declared = library.attnkit_block_ports(self.pointer, ctypes.byref(n))
        self.ports = tuple(_port(i, attn_port.from_address(declared[i])) for i in range(n.value))

    def fill(self, port, seed, address):
        """Writes the initial content of a LEARNED or TABLE port to contiguous memory."""
        tensor = attn_tensor(data=address, dtype_code=port.code, dtype_bits=port.bits, dtype_lanes=1, ndim=len(port.shape), device_type=1)
        stride = 1
        for d in reversed(range(len(port.shape))):
            tensor.shape[d], tensor.stride[d] = port.shape[d], stride
            stride *= port.shape[d]
        call(self._library.attnkit_block_fill, self.pointer, port.index, seed, ctypes.byref(tensor))

    def plan(self, request):
        """attn_info of an attn_request."""
        info = sized(attn_info)
        call(self._library.attnkit_block_plan, self.pointer, ctypes.byref(request), ctypes.byref(info))
        return info


def _port(index, p):
    return Port(index, p.name.decode(), p.kind, p.flags, p.dtype_code, p.dtype_bits, tuple(p.shape[:p.ndim]),
                (p.doc or b"").decode("utf-8", "replace"))


def options_text(options):
    """{"factor": 4} as the content of an inline table of TOML, "factor = 4"."""
    return ", ".join(f"{name} = {_value(value)}" for name, value in options.items())


def _value(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
