"""An attention block as a module: any mechanism, with the projections that a model of attnkit has around it."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .._abi import ATTN_AUX_IN, ATTN_KEY, ATTN_LEARNED, ATTN_NO_BIAS, ATTN_OUTPUT, ATTN_PER_MODEL, ATTN_QUERY, ATTN_RAW, ATTN_TABLE
from .._arguments import whole
from ..block import Block, Port
from ..error import INVALID, UNSUPPORTED, Error
from ._bound import bound, key_of
from ._ops import HALVES, port_type, run, takes_halves

PROJECTED = (ATTN_QUERY, ATTN_KEY, ATTN_OUTPUT)
_INTEGERS = {32: torch.int32, 64: torch.int64}
_INT32 = (torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max)


def projection(inputs: int, outputs: int, bias: bool = True, gain: float = 1.0) -> nn.Linear:
    """A linear layer as core initialises it (Glorot and Bengio 2010)."""
    made = nn.Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(made.weight, gain)
    if bias:
        nn.init.zeros_(made.bias)
    return made


def filled(block: Block, port: Port) -> torch.Tensor:
    """The plugin's initial values of a LEARNED or TABLE port, by a seed of torch's generator."""
    tensor = torch.empty(port.shape, dtype=torch.float32 if port.code == 2 else _INTEGERS[port.bits])
    block.fill(port, int(torch.randint(1 << 62, ()).item()), tensor)
    return tensor


class Rotary:
    """Positions that turn pairs of channels of q and k (Su et al. 2021); described: the `rotary` of a model's description."""

    def __init__(self, described: dict[str, Any]) -> None:
        known = {"none": self._speed, "linear": lambda i: self._speed(i) / described["factor"], "llama3": self._llama3, "longrope": self._speed}
        longer = "slower_long" if described["scaling"] == "longrope" else None
        if described["scaling"] not in known:
            raise Error(INVALID, f"attnkit.torch has no rotary positions of scaling {described['scaling']}: {', '.join(known)} are there")
        self._described, self.pairs = described, described["width"] // 2
        self._slower = described["slower"] or [1.0] * self.pairs
        self.speeds = [known[described["scaling"]](i) for i in range(self.pairs)]
        # Of texts of more than original_length.
        self.long_speeds = [self._own_speed(i) / described[longer][i] for i in range(self.pairs)] if longer else self.speeds
        self.halves = described["layout"] == "halves"

    def _speed(self, i: int) -> float:
        return self._own_speed(i) / self._slower[i]

    def _own_speed(self, i: int) -> float:
        return self._described["base"] ** (-2.0 * i / self._described["width"])

    def _llama3(self, i: int) -> float:
        """Only what training never saw turn as a whole is slower."""
        d, speed = self._described, self._speed(i)
        low, high = d["low_frequency_factor"], d["high_frequency_factor"]
        kept = min(1.0, max(0.0, (d["original_length"] * speed / (2 * math.pi) - low) / (high - low)))
        slow = speed / d["factor"]
        return slow + kept * (speed - slow)

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """x (B, heads, N, width), turned by the positions 0 to N - 1.  lengths (B): as Attention.forward."""
        speeds = torch.tensor(self.speeds, device=x.device, dtype=torch.float64)
        if self.long_speeds is not self.speeds:  # of each text its own, whatever is beside it
            real = torch.full((len(x),), x.shape[2], device=x.device) if lengths is None else torch.as_tensor(lengths, device=x.device)
            speeds = torch.where(real[:, None, None, None] > self._described["original_length"], speeds.new_tensor(self.long_speeds), speeds)
        angles = torch.arange(x.shape[2], device=x.device, dtype=torch.float64)[:, None] * speeds
        cosine, sine = ((self._described["attention_factor"] * f(angles)).to(x.dtype) for f in (torch.cos, torch.sin))
        turned, rest = x[..., :2 * self.pairs], x[..., 2 * self.pairs:]
        pairs = turned.unflatten(-1, (2, self.pairs)) if self.halves else turned.unflatten(-1, (self.pairs, 2)).transpose(-1, -2)
        a, b = pairs.unbind(-2)
        pairs = torch.stack((a * cosine - b * sine, b * cosine + a * sine), -2)
        turned = (pairs if self.halves else pairs.transpose(-1, -2)).flatten(-2)
        return torch.cat((turned, rest), -1)


class Adapter(nn.Module):
    """Fits shared projections to a mechanism: a scale and shift of q and k, a gain of the output."""

    def __init__(self, widths: dict[str, int]) -> None:
        super().__init__()
        for name, width in widths.items():
            values = torch.zeros(width) if name.endswith("_shift") else torch.ones(width)
            self.register_parameter(name, nn.Parameter(values))


class Mechanism(nn.Module):
    """One mechanism in one block: what it has for itself, under the names of its ports."""

    def __init__(self, name: str, around: Attention, options: dict[str, Any], common: nn.Module | None = None) -> None:
        """around: the Attention it is in.  common: a module for tensors that are one for all blocks of a model; without it they are
        this block's own."""
        super().__init__()
        d_model, heads = around.d_model, around.heads
        self._key = key_of(name, around.role, d_model, heads, around.causal, around.head_width, options, around.kv_heads, around.key_width)
        on = bound(self._key)
        block, self._ports, self._outputs = on.block, on.inputs, on.outputs
        self._name, self._heads, self._kv_heads, self._widths = name, heads, around.kv_heads, (around.key_width, block.head_width)
        self._output = on.outputs[0]
        # In a tuple, so that its tensors do not become this module's as well.
        self._common = (self if common is None else common,)
        for port in block.ports:
            if port.kind in PROJECTED and not self._is_shared(port) and not port.flags & ATTN_RAW:
                width = port.shape[1] * port.shape[3]
                ends = (width, d_model) if port.kind == ATTN_OUTPUT else (d_model, width)
                gain = 1 if port.kind == ATTN_OUTPUT else 0.5 ** 0.5
                self.add_module(port.name, projection(*ends, around.has_bias(port), gain))
            elif port.kind in (ATTN_LEARNED, ATTN_TABLE):
                self._store(block, port)
        raw, width = self._output.flags & ATTN_RAW, self._output.shape[1] * self._output.shape[3]
        if raw and width != d_model:
            raise Error(UNSUPPORTED, f"{name}: its unprojected output is {width} wide, the model {d_model}")
        adapted = {f"{p.name}_{part}": self.heads_of(p) * p.shape[3] for p in on.inputs if self._is_shared(p) and p.name != "v"
                   for part in ("scale", "shift")}
        self.adapter = Adapter(adapted if raw else {**adapted, "gain": width}) if around.adapters else None

    def _store(self, block: Block, port: Port) -> None:
        owner = self._common[0] if port.flags & ATTN_PER_MODEL else self
        known = {**owner._parameters, **owner._buffers}.get(port.name)
        if known is not None:
            if tuple(known.shape) != port.shape:
                raise Error(INVALID, f"{self._name}: \"{port.name}\" is one for all blocks, and one wants it {tuple(known.shape)}, another "
                                     f"{port.shape}: give the mechanism the same options in these blocks")
        elif port.kind == ATTN_LEARNED:
            owner.register_parameter(port.name, nn.Parameter(filled(block, port)))
        else:
            owner.register_buffer(port.name, filled(block, port))

    def _is_shared(self, port: Port) -> bool:
        """Does this port use the block's own q, k, v or o?"""
        if port.kind not in PROJECTED or port.flags & ATTN_RAW:
            return False
        key = port.kind == ATTN_KEY and port.name in ("k", "v")
        if port.shape[1] != self._heads and not (key and port.shape[1] == self._kv_heads):
            return False
        key_width, head_width = self._widths
        if port.kind == ATTN_OUTPUT or port.name == "v":
            return port.shape[3] == head_width
        return port.name in ("q", "k") and port.shape[3] == key_width

    def heads_of(self, port: Port) -> int:
        """The heads that are projected: keys and values of fewer heads are repeated for a mechanism that does not share them."""
        return self._kv_heads if port.kind == ATTN_KEY and self._is_shared(port) else port.shape[1]

    def _stored(self, port: Port) -> torch.Tensor:
        owner = self._common[0] if port.flags & ATTN_PER_MODEL else self
        tensor: torch.Tensor = getattr(owner, port.name)
        return tensor


_PROJECTIONS = {"q", "k", "v", "o", "in", "gate", "out"}
BIASES = {"all": _PROJECTIONS, "all_but_k": _PROJECTIONS - {"k"}, "qkv": {"q", "k", "v"}, "none": set()}


def biased(bias: str) -> set[str]:
    """The projections that have a bias, of a manifest's word or list of them."""
    found = BIASES.get(bias, set()) if isinstance(bias, str) else set(bias)
    if isinstance(bias, str) and bias not in BIASES or found - _PROJECTIONS:
        raise Error(INVALID, f"bias {bias!r}: one of {', '.join(BIASES)}, or a list of {', '.join(sorted(_PROJECTIONS))}, is needed")
    return found


class Attention(nn.Module):
    """Attention("leap", role="decoder.cross", d_model=128, heads=4, factor=4): options are those of the plugin.

    Any plugin in the search path.  More mechanisms may share the projections: add; the last one named is used.  head_norm,
    adapters, kv_heads, bias, qk_norm, attention_scale: as in a manifest, whose head_width is key_width and head_width here; rotary:
    a Rotary, for self attention.
    """

    def __init__(self, mechanism: str, *, role: str = "encoder.self", d_model: int, heads: int, causal: bool | None = None,
                 head_width: int | None = None, key_width: int | None = None, kv_heads: int | None = None, head_norm: bool = False,
                 adapters: bool = False, bias: str = "all", qk_norm: bool = False, norm_eps: float = 1e-5,
                 attention_scale: float | None = None, rotary: Rotary | None = None, common: nn.Module | None = None,
                 **options: Any) -> None:
        super().__init__()
        d_model, heads = whole(d_model, "d_model"), whole(heads, "heads")
        head_width, key_width, kv_heads = (value and whole(value, what) for value, what in (
            (head_width, "head_width"), (key_width, "key_width"), (kv_heads, "kv_heads")))
        if causal not in (None, True, False):
            raise Error(INVALID, f"causal {causal!r}: True, False or None is needed")
        for what, number, low, high in (("attention_scale", attention_scale, 1e-6, 1e6), ("norm_eps", norm_eps, 1e-15, 1)):
            if number is not None and not isinstance(number, Real):
                raise TypeError(f"{what} must be a number, not {type(number).__name__}")
            if number is not None and not low <= number <= high:
                raise Error(INVALID, f"{what} {number}: it must be {low:g} to {high:g}")
        self.role, self.d_model, self.heads, self.head_norm, self.adapters = role, d_model, heads, head_norm, adapters
        self.causal = role == "decoder.self" if causal is None else bool(causal)
        if not key_width and heads and d_model % heads:
            raise Error(INVALID, f"{heads} heads do not divide d_model {d_model}")
        self.key_width = key_width or (d_model // heads if heads else 0)
        self.head_width, self.kv_heads, self.bias = head_width or self.key_width, kv_heads or heads, bias
        alone = role != "decoder.cross"  # positions and norms of q and k are of self attention
        self.qk_norm, self.norm_eps, self.rotary = qk_norm and alone, norm_eps, rotary if alone else None
        self.query_scale = 1.0 if attention_scale is None else attention_scale * math.sqrt(self.key_width)
        self.add(mechanism, common, **options)

    def has_bias(self, port: Port) -> bool:
        """Does the projection of this port have one?"""
        if port.flags & ATTN_NO_BIAS:
            return False
        name = "o" if port.kind == ATTN_OUTPUT else port.name if port.name in ("q", "k") else "v"
        return name in biased(self.bias)

    def add(self, mechanism: str, common: nn.Module | None = None, /, **options: Any) -> None:
        """Adds a mechanism to the block, with whatever projections the others do not have, and uses it from now on."""
        if hasattr(self, mechanism):
            raise Error(INVALID, f"the block has {mechanism} already, whose tensors another one would take the place of: set its `mechanism` to use it")
        made = Mechanism(mechanism, self, options, common)
        for port in (*made._ports, *made._outputs):
            name = "o" if port.kind == ATTN_OUTPUT else port.name
            if not made._is_shared(port) or hasattr(self, name):
                continue
            width = made.heads_of(port) * port.shape[3]
            ends = (width, self.d_model) if name == "o" else (self.d_model, width)
            layer = projection(*ends, self.has_bias(port), 1 if name == "o" else 0.5 ** 0.5)
            if self.qk_norm and name in ("q", "k"):
                layer.norm = nn.RMSNorm(port.shape[3], self.norm_eps)
            self.add_module(name, layer)
        self.add_module(mechanism, made)
        self.mechanism = mechanism

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None, *, lengths: torch.Tensor | None = None,
                context_lengths: torch.Tensor | None = None, total: torch.Tensor | None = None, context_total: torch.Tensor | None = None,
                visible: torch.Tensor | None = None, aux: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """(B, N, d_model) of x (B, N, d_model) and, in cross attention, context (B, M, d_model).

        lengths, context_lengths (B): rows that are real, at the front; None: all.  total, context_total (B): length of the whole
        sequences, for mechanisms that need them.  visible (B, N): query i sees the first visible[b, i] keys (wait-k).  aux: a dict
        of the sequences that mechanisms carry from block to block, which is read and updated; under torch.utils.checkpoint one that the
        checkpointed function makes of its arguments, and whose sequences it returns: another has, at recomputation, what later blocks left in it.
        """
        if context is None:
            if self.role == "decoder.cross":
                raise Error(INVALID, "cross attention needs the context that its keys are made of")
            context, context_lengths, context_total = x, lengths, total
        for name, t in (("x", x), ("context", context)):
            if t.dim() != 3 or t.shape[2] != self.d_model or not t.is_floating_point():
                raise Error(INVALID, f"{name} must be rows (B, N, {self.d_model}) of a floating-point type, not {tuple(t.shape)} of {t.dtype}")
        mechanism = getattr(self, self.mechanism)
        dtype, aux = sequence_type(mechanism._key, x), {} if aux is None else aux
        inputs: list[torch.Tensor | None] = []
        for port in mechanism._ports:
            if port.kind == ATTN_QUERY or port.kind == ATTN_KEY:
                inputs.append(self._heads(mechanism, port, x if port.kind == ATTN_QUERY else context, lengths).to(dtype))
            elif port.kind == ATTN_AUX_IN:
                inputs.append(None if aux.get(port.name) is None else aux[port.name].to(port_type(port, dtype)))
            else:
                inputs.append(mechanism._stored(port).to(port_type(port, dtype)))
        rows = [_numbers(name, values, dtype, x.device) for name, values, dtype in (
            ("lengths", lengths, torch.int32), ("context_lengths", context_lengths, torch.int32), ("total", total, torch.float64),
            ("context_total", context_total, torch.float64), ("visible", visible, torch.int32))]
        out, *carried = run(mechanism._key, inputs, rows, x.shape[1], context.shape[1])
        for port, value in zip(mechanism._outputs[1:], carried):
            aux[port.name] = value
        return self._project_out(mechanism, out).to(x.dtype)

    def _heads(self, mechanism: Mechanism, port: Port, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """The input of a QUERY or KEY port, (B, heads, rows, width).  lengths: of self attention."""
        if port.flags & ATTN_RAW:
            return (x if x.stride(-1) == 1 else x.contiguous()).unsqueeze(1)
        shared = mechanism._is_shared(port)
        layer = getattr(self if shared else mechanism, port.name)
        weight, bias = layer.weight, layer.bias
        if shared and mechanism.adapter is not None and port.name != "v":
            scale, shift = (getattr(mechanism.adapter, f"{port.name}_{part}") for part in ("scale", "shift"))
            weight, bias = weight * scale[:, None], shift if bias is None else bias * scale + shift
        heads = mechanism.heads_of(port)
        y = F.linear(x, weight, bias).unflatten(-1, (heads, port.shape[3])).transpose(1, 2)
        if shared and port.name != "v":
            y = layer.norm(y.to(layer.norm.weight.dtype)) if self.qk_norm else y
            y = y if self.rotary is None else self.rotary(y, lengths)
            y = y * self.query_scale if port.kind == ATTN_QUERY and self.query_scale != 1 else y
        return y if heads == port.shape[1] else y.repeat_interleave(port.shape[1] // heads, 1)

    def _project_out(self, mechanism: Mechanism, out: torch.Tensor) -> torch.Tensor:
        if mechanism._output.flags & ATTN_RAW:
            return out.transpose(1, 2).flatten(2)
        if self.head_norm:
            out = out.float() if out.dtype in HALVES else out
            out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5)
        layer: Any = self.o if mechanism._is_shared(mechanism._output) else getattr(mechanism, mechanism._output.name)
        weight = layer.weight if mechanism.adapter is None else layer.weight * getattr(mechanism.adapter, "gain")
        return F.linear(out.transpose(1, 2).flatten(2).to(weight.dtype), weight, layer.bias)


def sequence_type(block: str, x: torch.Tensor) -> torch.dtype:
    """The type in which a block takes its sequences: on CUDA that of autocast or of x where its variant has it; else float64 or float32."""
    device = x.device.type
    autocast = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    wanted = torch.get_autocast_dtype(device) if autocast else x.dtype
    if wanted in HALVES:
        return wanted if device == "cuda" and takes_halves(block, wanted, torch.is_grad_enabled()) else torch.float32
    return torch.float64 if wanted == torch.float64 else torch.float32


def _numbers(name: str, values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """A tensor stays where it is; a list goes to the device."""
    if values is None:
        return None
    given = values if torch.is_tensor(values) else _tensor(name, values, device)
    if dtype == torch.int32 and given.element_size() > 4 and not given.is_floating_point():
        given = given.to(torch.int64).clamp(*_INT32)  # what does not fit stays too much, where it would wrap
    made = given.to(dtype).contiguous()
    if given.is_floating_point() and not dtype.is_floating_point and not made.to(given.dtype).equal(given):
        raise Error(INVALID, f"{name} {given.tolist()}: rows are counted in whole numbers")
    return made


def _tensor(name: str, values: Any, device: torch.device) -> torch.Tensor:
    try:
        return torch.as_tensor(values, device=device)
    except (RuntimeError, TypeError, ValueError):
        said = " ".join(repr(values).split())[:60]
        raise Error(INVALID, f"{name} {said}: a tensor or a list of numbers is needed") from None
