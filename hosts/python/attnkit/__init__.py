"""attnkit for Python: transformers composed from attention plugins, through the C ABI of attnkit.h.

    with attnkit.Runtime() as runtime, attnkit.Model(runtime, "model.toml") as model:
        print(model.translate("two hundred and forty-one euros"))

Shapes, threads and lifetimes are those of attnkit.h.  Every failure raises attnkit.Error; an argument of a wrong type is a TypeError.
"""

from ._abi import (ATTN_KNOWS_K_TOTAL as KNOWS_K_TOTAL, ATTN_KNOWS_Q_TOTAL as KNOWS_Q_TOTAL, ATTN_PREFIX as PREFIX, ATTN_STREAM as STREAM,
                   ATTN_TRAIN as TRAIN, ATTNKIT_DECODER as DECODER, ATTNKIT_ENCODER as ENCODER,
                   ATTNKIT_ENCODER_DECODER as ENCODER_DECODER)
from ._tensor import Result, aligned
from .block import Block, Port, Run
from .error import DEVICE, INTERNAL, INVALID, NO_MEMORY, UNSUPPORTED, Diagnostic, Error
from .incremental import Incremental
from .model import SOURCE, TARGET, Encoded, Model, ModelInfo
from .policy import READ, STOP, WRITE, Offline, Policy, View, WaitK, policy_named
from .runtime import Runtime, abi_minor, version
from .session import Session, generate_all, read_all, write_all
from .streaming import open_streaming

__all__ = [
    "DECODER", "DEVICE", "ENCODER", "ENCODER_DECODER", "INTERNAL", "INVALID", "KNOWS_K_TOTAL", "KNOWS_Q_TOTAL", "NO_MEMORY", "PREFIX",
    "READ", "SOURCE", "STOP", "STREAM", "TARGET", "TRAIN", "UNSUPPORTED", "WRITE", "Block", "Diagnostic", "Encoded", "Error",
    "Incremental", "Model", "ModelInfo", "Offline", "Policy", "Port", "Result", "Run", "Runtime", "Session", "View", "WaitK", "abi_minor",
    "aligned", "generate_all", "open_streaming", "policy_named", "read_all", "version", "write_all",
]
