"""attnkit for Python: transformers composed from attention plugins, through the C ABI of attnkit.h.

    with attnkit.Runtime() as runtime, attnkit.Model(runtime, "model.toml") as model:
        print(model.translate("two hundred and forty-one euros"))

Shapes, threads and lifetimes are those of attnkit.h.  Every failure raises attnkit.Error.
"""

from ._abi import ATTNKIT_DECODER as DECODER, ATTNKIT_ENCODER as ENCODER, ATTNKIT_ENCODER_DECODER as ENCODER_DECODER
from .block import Block
from .error import DEVICE, INTERNAL, INVALID, NO_MEMORY, UNSUPPORTED, Diagnostic, Error
from .incremental import Incremental
from .model import SOURCE, TARGET, Model, ModelInfo
from .policy import READ, STOP, WRITE, Offline, View, WaitK, policy_named
from .runtime import Runtime, version
from .session import Session, write_all
from .streaming import open_streaming
