"""Blocks of libattnkit by a text that names all they are made of, so that a graph of torch can hold it."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from .._abi import ATTN_AUX_OUT, ATTN_KEY, ATTN_KNOWS_K_TOTAL, ATTN_KNOWS_Q_TOTAL, ATTN_OUTPUT, ATTN_QUERY, ATTN_TRAIN, attn_request, sized
from ..block import Block, options_text
from ..error import INVALID, UNSUPPORTED, Error
from ..runtime import Runtime

CPU, CUDA = 1, 2
OUTPUTS = (ATTN_OUTPUT, ATTN_AUX_OUT)
SEQUENCES = (ATTN_QUERY, ATTN_KEY)
# A plan with these flags and no sizes says whether a block can sit there at all.
_ANY_SIZE = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL

_lock = threading.RLock()
_runtimes: dict[int, Runtime] = {}
_bound: dict[tuple[str, int], Bound] = {}


def use_runtime(runtime: Runtime, device: int = CPU) -> None:
    """Runs mechanisms by this attnkit.Runtime: its threads, its search path; made by default with torch's number of threads."""
    with _lock:
        _runtimes[device] = runtime
        _bound.clear()


def runtime(device: int = CPU) -> Runtime:
    with _lock:
        if device not in _runtimes:
            _runtimes[device] = Runtime(threads=torch.get_num_threads(), device_type=device)
        return _runtimes[device]


def key_of(mechanism: str, role: str, d_model: int, heads: int, causal: bool, head_width: int, options: dict[str, Any], kv_heads: int = 0,
           key_width: int = 0) -> str:
    return f"{mechanism} {role} {d_model} {heads} {int(causal)} {head_width} {kv_heads} {key_width} {options_text(options)}"


class Bound:
    """A block with what calls need of it: its ports in groups, and plans by size."""

    def __init__(self, key: str, device: int) -> None:
        mechanism, role, *numbers, options = key.split(" ", 8)
        d_model, heads, causal, head_width, kv_heads, key_width = map(int, numbers)
        used = runtime(device)
        try:
            self.block = Block(used, mechanism, role, d_model, heads, bool(causal), head_width, options, kv_heads, key_width)
        except Error as e:
            if device == CPU or e.code != INVALID:
                raise
            raise Error(UNSUPPORTED, f"{mechanism} has no CUDA variant here: move the block and its inputs to the CPU") from None
        self.device, self.workers = device, used.threads if device == CPU else 1
        ports = self.block.ports
        self.inputs = [p for p in ports if p.kind not in OUTPUTS]
        self.outputs = sorted((p for p in ports if p.kind in OUTPUTS), key=lambda p: p.kind)  # OUTPUT comes first
        self.sequence = next(i for i, p in enumerate(self.inputs) if p.kind in SEQUENCES)
        self.plan = functools.lru_cache(maxsize=64)(self._plan)
        self.takes = functools.lru_cache(self._takes)
        self._plan(_ANY_SIZE, (2, 32))

    def _plan(self, flags: int, dtype: tuple[int, int], device_id: int = 0, batch: int = 0, queries: int = 0, keys: int = 0) -> tuple[Any, Any]:
        code, bits = dtype
        request = sized(attn_request, flags=flags, device_type=self.device, device_id=device_id, dtype_code=code, dtype_bits=bits,
                        dtype_lanes=1, workers=self.workers, batch=batch, queries=queries, keys=keys)
        return request, self.block.plan(request)

    def _takes(self, code: int, bits: int, train: bool) -> bool:
        try:
            self._plan(_ANY_SIZE | (ATTN_TRAIN if train else 0), (code, bits))
        except Error as e:
            if e.code != UNSUPPORTED:
                raise
            return False
        return True


def bound(key: str, device: int = CPU) -> Bound:
    found = _bound.get((key, device))
    if found is None:
        with _lock:
            found = _bound.setdefault((key, device), Bound(key, device))
    return found
