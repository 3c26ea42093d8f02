"""A model: a manifest with its weights and plugins, ready to run; any number of threads may use it."""

import ctypes
import functools
import json
import os
from collections import namedtuple

from ._abi import ATTNKIT_ENCODER, ATTNKIT_ENCODER_DECODER, ATTNKIT_ERROR, attnkit_diagnose, attnkit_model_info, sized
from ._call import Handle, blob_of, c_text, call, make, text_of
from ._tensor import Batch, ids as ids_of, source as source_of, zeros
from .error import Diagnostic, Error
from .session import Session

SOURCE, TARGET = 0, 1

# attnkit_model_info, without what is for C alone.
ModelInfo = namedtuple("ModelInfo", [name for name, _ in attnkit_model_info._fields_
                                     if name != "struct_size" and not name.endswith("reserved")])


class Model(Handle):
    """Model(runtime, path) opens a manifest; Model.from_text takes its text.

    info: ModelInfo; warnings: what was found but is no error.  A failure's Error carries all diagnostics.
    """

    def __init__(self, runtime, path):
        self._load(runtime, runtime._library.attnkit_model_open, c_text(os.fspath(path), "path"))

    @classmethod
    def from_text(cls, runtime, toml, folder="."):
        """folder: what paths in the manifest are relative to."""
        model = cls.__new__(cls)
        model._load(runtime, runtime._library.attnkit_model_create, c_text(toml, "toml"), c_text(os.fspath(folder), "folder"))
        return model

    def _load(self, runtime, function, *arguments):
        found = []

        @attnkit_diagnose
        def collect(_, pointer):
            d = pointer.contents
            found.append(Diagnostic("error" if d.severity == ATTNKIT_ERROR else "warning", d.area, d.code, d.line, d.column,
                                    d.message.decode("utf-8", "replace"), (d.help or b"").decode("utf-8", "replace")))

        library = runtime._library
        try:
            pointer = make(library.attnkit_model_destroy, function, runtime.pointer, *arguments, collect, 0)
        except Error as e:
            raise Error(e.code, e.message, e.where, found) from None
        super().__init__(library, pointer)
        self.warnings = tuple(found)
        info = sized(attnkit_model_info)
        call(library.attnkit_model_get_info, pointer, ctypes.byref(info))
        self.info = ModelInfo(*(getattr(info, name) for name in ModelInfo._fields))

    @functools.cached_property
    def _pools(self):
        return self.describe()["head"]["type"] != "lm"

    def describe(self, lengths=()):
        """"attnkit.model-description/1", with costs at the given lengths."""
        array = (ctypes.c_int64 * len(lengths))(*lengths)
        return json.loads(text_of(self._library, self._library.attnkit_model_describe, self.pointer, array, len(lengths)))

    def weights(self):
        """All tensors, as read or as made from the seed: the bytes of a safetensors file."""
        return blob_of(self._library, self._library.attnkit_model_weights, self.pointer)

    def verify(self, golden):
        """"attnkit.verification/1": how far every layer is from a file of golden activations."""
        return json.loads(text_of(self._library, self._library.attnkit_model_verify, self.pointer, c_text(os.fspath(golden), "golden")))

    def features(self, samples):
        """The frames that a model which takes speech makes of float32 samples (S), as a memoryview (1, T, features)."""
        n, samples = ctypes.c_uint64(), source_of(samples)
        call(self._library.attnkit_model_features, self.pointer, samples.reference, None, ctypes.byref(n))
        frames = zeros("f", (1, n.value, self.info.features))
        call(self._library.attnkit_model_features, self.pointer, samples.reference, frames.reference, ctypes.byref(n))
        return frames.view()

    def tokenize(self, side, text):
        """Ids of a text without <s> and </s>; side SOURCE or TARGET."""
        text = c_text(text, "the text")
        n = ctypes.c_uint64(2 * len(text) + 1)  # each word may be a mark and a token for each byte
        room = (ctypes.c_int32 * n.value)()
        call(self._library.attnkit_model_tokenize, self.pointer, side, text, room, ctypes.byref(n))
        return room[:n.value]

    def detokenize(self, side, ids):
        ids = ids_of(ids)
        room = (ctypes.c_int32 * len(ids))(*ids)
        return text_of(self._library, self._library.attnkit_model_detokenize, self.pointer, side, room, len(ids))

    def forward(self, source=(), target=()):
        """Teacher forcing on batches, lists of sequences of ids; empty: a side that the model lacks.

        A float32 memoryview (rows, longest target, outputs), or (rows, outputs) of a classifier or an embedding.
        """
        source, target = Batch(source), Batch(target)
        rows, length = (source if self.info.kind == ATTNKIT_ENCODER else target).tensor.shape
        out = zeros("f", (rows, self.info.outputs) if self._pools else (rows, length, self.info.outputs))
        call(self._library.attnkit_model_forward, self.pointer, *source.arguments(), *target.arguments(), out.reference)
        return out.view()

    def translate(self, text, beams=0, limit=0):
        """Greedy or, with more than one beam, beam search; beams 0: as in the manifest.  A decoder alone continues the text."""
        with Session(self, beams) as session:
            if self.info.kind == ATTNKIT_ENCODER_DECODER:
                session.read([*self.tokenize(SOURCE, text), self.info.end_id])
            else:
                first = [self.info.begin_id] if self.info.begin_id >= 0 else []
                session.write([first + self.tokenize(TARGET, text)] * session.rows)
            return self.detokenize(TARGET, session.generate(limit))
