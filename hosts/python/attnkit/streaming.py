"""Opens a model for simultaneous decoding, as attnkit stream does."""

import pathlib

from ._abi import ATTNKIT_ENCODER_DECODER
from .error import INVALID, Error
from .model import Model
from .policy import Offline, WaitK


def open_streaming(runtime, path, policy=None, replay=False):
    """The model of a manifest and the policy to use: the one given, or what [stream] says.

    A manifest without [stream] gets one, unless the policy is offline; replay: its `replay = true`.
    """
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


def _policy_in(table):
    if not table:
        raise Error(INVALID, "who decides between reading and writing? neither a policy nor [stream] says: wait-k:3, offline")
    return Offline() if table["policy"] == "offline" else WaitK(table["k"], table["pre_decision"])
