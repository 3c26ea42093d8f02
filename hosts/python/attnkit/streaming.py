"""Opens a model for simultaneous decoding, as attnkit stream does."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, Optional, Union

from ._abi import ATTNKIT_ENCODER_DECODER
from .error import INVALID, Error
from .model import Model
from .policy import Offline, Policy, WaitK

if TYPE_CHECKING:
    from ._types import Path
    from .runtime import Runtime


def open_streaming(runtime: Runtime, path: Path, policy: Optional[Policy] = None, replay: bool = False) -> tuple[Model, Policy]:
    """The model of a manifest and the policy to use: the one given, or what [stream] says.

    A manifest without [stream] gets one, unless the policy is offline; replay: its `replay = true`.
    """
    if not (policy is None or callable(policy)):
        raise TypeError(f"policy must be a function of a View, such as an attnkit.WaitK, not {type(policy).__name__}")
    model = Model(runtime, path)
    if model.info.kind != ATTNKIT_ENCODER_DECODER:
        raise Error(INVALID, "simultaneous decoding reads a source while it writes a target: an encoder-decoder is needed")
    table = model.describe()["stream"]
    policy = policy or _policy_in(table)
    if table and replay:
        raise Error(INVALID, "this manifest has [stream]: set replay = true there")
    if table or isinstance(policy, Offline):
        return model, policy
    path = pathlib.Path(path).absolute()
    # At the end, so that diagnostics name the lines of the file.
    text = path.read_text(encoding="utf-8") + f"\n[stream]\nreplay = {'true' if replay else 'false'}\n"
    return Model.from_text(runtime, text, path.parent), policy


def _policy_in(table: Any) -> Union[Offline, WaitK]:
    if not table:
        raise Error(INVALID, "who decides between reading and writing? neither a policy nor [stream] says: wait-k:3, offline")
    return Offline() if table["policy"] == "offline" else WaitK(table["k"], table["pre_decision"])
