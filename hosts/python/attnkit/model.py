"""A model: a manifest with its weights and plugins, ready to run; any number of threads may use it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Sequence, TypeVar

from ._abi import ATTNKIT_ENCODER, ATTNKIT_ENCODER_DECODER, ATTNKIT_ERROR, attnkit_diagnose, attnkit_model_info, sized
from ._arguments import MOST_ROWS, c_path, c_text, instance, integer, integers, limit_of, whole
from ._call import Handle, blob_of, call, make, text_of
from ._tensor import INT32, Rows, Tensor, ids as ids_of, result, source as source_of
from .block import role_number
from .error import INVALID, Diagnostic, Error
from .runtime import Runtime
from .session import Session, generate_all, read_all

if TYPE_CHECKING:
    from ._types import Array, Batch, Ids, Path

SOURCE, TARGET = 0, 1
Self = TypeVar("Self", bound="Model")


class ModelInfo(NamedTuple):
    """attnkit_model_info, without what is for C alone."""

    kind: int
    source_vocab: int
    target_vocab: int
    outputs: int
    max_length: int
    begin_id: int
    end_id: int
    beams: int
    parameters: int
    state_bytes: int
    sample_rate: int
    frame_length: int
    frame_shift: int
    features: int
    subsampling: int


class Encoded(Handle):
    """A batch of sources after the encoder, for any model with the same one: what Model.encode gives and Model.decode takes."""

    def __init__(self, model: Model, source: Rows) -> None:
        library = model._library
        self.rows = source.tensor.shape[0]
        super().__init__(library, make(library.attnkit_encoded_destroy, library.attnkit_model_encode, model.pointer, *source.arguments()))


class Model(Handle):
    """Model(runtime, path) opens a manifest; Model.from_text takes its text.

    info: ModelInfo; warnings: what was found but is no error.  A failure's Error carries all diagnostics.
    """

    info: ModelInfo
    warnings: tuple[Diagnostic, ...]

    def __init__(self, runtime: Runtime, path: Path) -> None:
        self._load(runtime, "attnkit_model_open", c_path(path, "path"))

    @classmethod
    def from_text(cls: type[Self], runtime: Runtime, toml: str, folder: Path = ".") -> Self:
        """folder: what paths in the manifest are relative to."""
        model = cls.__new__(cls)
        model._load(runtime, "attnkit_model_create", c_text(toml, "toml"), c_path(folder, "folder"))
        return model

    @staticmethod
    def check(runtime: Runtime, toml: str, folder: Path = ".") -> tuple[Diagnostic, ...]:
        """Every problem of a manifest and of its weights, without making a model; none: it opens."""
        instance(runtime, Runtime, "runtime")
        found, collect = _collector()
        try:
            call(runtime._library.attnkit_model_create, runtime.pointer, c_text(toml, "toml"), c_path(folder, "folder"), collect, 0, None)
        except Error as e:
            if e.code != INVALID:
                raise
        return tuple(found)

    def _load(self, runtime: Runtime, function: str, *arguments: Any) -> None:
        instance(runtime, Runtime, "runtime")
        library = runtime._library
        found, collect = _collector()
        try:
            pointer = make(library.attnkit_model_destroy, getattr(library, function), runtime.pointer, *arguments, collect, 0)
        except Error as e:
            raise Error(e.code, e.message, e.where, found) from None
        super().__init__(library, pointer)
        self.warnings = tuple(found)
        info = sized(attnkit_model_info)
        call(library.attnkit_model_get_info, pointer, ctypes.byref(info))
        self.info = ModelInfo(*(getattr(info, name) for name in ModelInfo._fields))

    @functools.cached_property
    def _pools(self) -> bool:
        return bool(self.describe()["head"]["type"] != "lm")

    def describe(self, lengths: Sequence[int] = ()) -> Any:
        """"attnkit.model-description/1", with costs at the given lengths."""
        array = integers(lengths, "lengths", ctypes.c_int64)
        return json.loads(text_of(self._library, self._library.attnkit_model_describe, self.pointer, array, len(lengths)))

    def weights(self) -> bytes:
        """All tensors, as read or as made from the seed: the bytes of a safetensors file."""
        return blob_of(self._library, self._library.attnkit_model_weights, self.pointer)

    def verify(self, golden: Path) -> Any:
        """"attnkit.verification/1": how far every layer is from a file of golden activations."""
        return json.loads(text_of(self._library, self._library.attnkit_model_verify, self.pointer, c_path(golden, "golden")))

    def features(self, samples: Array, out: Optional[Array] = None) -> Any:
        """The frames that a model which takes speech makes of float32 samples (S): float32 (1, T, features), out or a Result."""
        lent = source_of(samples)
        n = self._frames(lent)
        frames, given = result(out, "out", (1, n, self.info.features))
        call(self._library.attnkit_model_features, self.pointer, lent.reference, frames.reference, ctypes.byref(ctypes.c_uint64(n)))
        return given

    def tokenize(self, side: int, text: str) -> list[int]:
        """Ids of a text of side SOURCE, with what the vocabulary puts before it ([CLS], a language), or TARGET, without info.begin_id; without what ends it."""
        raw, side = c_text(text, "text"), integer(side, "side", ctypes.c_uint32)
        n = ctypes.c_uint64(2 * len(raw) + 1)  # each word may be a mark and a token for each byte; normalisation may make more
        while True:
            room = (ctypes.c_int32 * n.value)()
            try:
                call(self._library.attnkit_model_tokenize, self.pointer, side, raw, room, ctypes.byref(n))
                return room[:n.value]
            except Error:
                if n.value <= len(room):
                    raise

    def detokenize(self, side: int, ids: Ids) -> str:
        """The text of ids; special tokens are left out."""
        row, side = ids_of(ids), integer(side, "side", ctypes.c_uint32)
        room = ctypes.cast(row.struct.data, ctypes.POINTER(ctypes.c_int32))
        return text_of(self._library, self._library.attnkit_model_detokenize, self.pointer, side, room, row.shape[1])

    def forward(self, source: Batch = (), target: Batch = (), source_lengths: Optional[Sequence[int]] = None,
                target_lengths: Optional[Sequence[int]] = None, out: Optional[Array] = None) -> Any:
        """Teacher forcing on batches; empty: a side that the model lacks.

        A batch is a list of sequences of ids, or an int32 array (rows, length), of speech a float32 array (rows, samples) or
        (rows, frames, features), with the real lengths of its rows.  Gives float32 (rows, target length, outputs), or (rows,
        outputs) of a classifier or an embedding: in out, a contiguous array of that shape, or in a Result.
        """
        sources, targets = Rows(source, source_lengths), Rows(target, target_lengths)
        counted = sources if self.info.kind == ATTNKIT_ENCODER else targets
        to, given = self._result(counted, out)
        call(self._library.attnkit_model_forward, self.pointer, *sources.arguments(), *targets.arguments(), to.reference)
        return given

    def encode(self, source: Batch, source_lengths: Optional[Sequence[int]] = None) -> Encoded:
        """The encoder's part of forward alone, once for several calls of decode."""
        return Encoded(self, Rows(source, source_lengths))

    def decode(self, encoded: Encoded, target: Batch, target_lengths: Optional[Sequence[int]] = None, out: Optional[Array] = None) -> Any:
        """The rest of forward; encoded may come from another model with the same encoder."""
        instance(encoded, Encoded, "encoded")
        targets = Rows(target, target_lengths)
        to, given = self._result(targets, out)
        call(self._library.attnkit_model_decode, self.pointer, encoded.pointer, *targets.arguments(), to.reference)
        return given

    def _result(self, rows: Rows, out: Optional[Array]) -> Any:
        n, length = rows.tensor.shape[:2]
        if n == 0:
            out = None  # the library refuses the side that is not there, not its out
        return result(out, "out", (n, self.info.outputs) if self._pools else (n, length, self.info.outputs))

    def attention(self, role: str, layer: int, source: Optional[Ids] = None, target: Optional[Ids] = None,
                  out: Optional[Array] = None) -> Any:
        """The attention weights of one block for one input: float32 (heads, queries, keys), out or a Result.

        role: "encoder.self", ...; layer counts from 1.  Of speech the rows are those of the encoder; None: a side that the
        model lacks.
        """
        number = role_number(role)
        integer(layer, "layer", ctypes.c_uint32)
        sides = [None if values is None else source_of(values) for values in (source, target)]
        queries, keys = (sides[role.startswith(side)] for side in ("decoder", "decoder.self"))
        if queries is None or keys is None:
            out = None  # the library refuses the side that is not there, not its out
        to, given = result(out, "out", (self.describe()["heads"], self._length(queries), self._length(keys)))
        call(self._library.attnkit_model_attention, self.pointer, number, layer, *(side and side.reference for side in sides),
             to.reference)
        return given

    def _length(self, side: Optional[Tensor]) -> int:
        """Rows of a block that reads this side."""
        if side is None:
            return 0
        if side.dtype == INT32 or not self.info.subsampling:
            return side.shape[1]
        frames = side.shape[1] if len(side.shape) == 3 else self._frames(side)
        whole = self.describe()["speech"]["frontend"]["type"] == "centred"  # whose last row may have fewer frames
        return -(-frames // self.info.subsampling) if whole else frames // self.info.subsampling

    def _frames(self, samples: Tensor) -> int:
        n = ctypes.c_uint64()
        call(self._library.attnkit_model_features, self.pointer, samples.reference, None, ctypes.byref(n))
        return n.value

    def translate(self, text: str, beams: int = 0, limit: int = 0) -> str:
        """Greedy or, with more than one beam, beam search; beams 0: as in the manifest.  A decoder alone continues the text."""
        return self.translate_all([text], beams, limit)[0]

    def translate_all(self, texts: Sequence[str], beams: int = 0, limit: int = 0, batch: int = 16) -> list[str]:
        """Gives what translate() gives for each of many texts, up to `batch` of them decoded together; an error says of which text."""
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of str, not str")
        rows, made = integer(beams, "beams", ctypes.c_uint32, MOST_ROWS), [""] * len(texts)
        if whole(batch, "batch") < 1:
            raise Error(INVALID, f"batch {batch}: it must be 1 or more")
        limit_of(limit)
        going: dict[int, Session] = {}
        coming = iter(range(len(texts)))
        try:
            while True:
                before = len(going)
                for n in itertools.islice(coming, batch - before):
                    going[n] = Session(self, rows)
                self._begin(dict(itertools.islice(going.items(), before, None)), texts)
                if not going:
                    return made
                with _naming(list(going), len(texts)):
                    ended = generate_all(list(going.values()), limit)
                for n, ids in zip(list(going), ended):
                    if ids:
                        made[n] = self.detokenize(TARGET, ids)
                        going.pop(n).close()
        finally:
            for session in going.values():
                session.close()

    def _begin(self, sessions: dict[int, Session], texts: Sequence[str]) -> None:
        sources = []
        for n, session in sessions.items():
            with _naming([n], len(texts)):
                if self.info.kind == ATTNKIT_ENCODER_DECODER:
                    sources.append([*self.tokenize(SOURCE, texts[n]), self.info.end_id])
                else:
                    first = [self.info.begin_id] if self.info.begin_id >= 0 else []
                    session.write([first + self.tokenize(TARGET, texts[n])] * session.rows, logits=False)
        if sources:
            with _naming(list(sessions), len(texts)):
                read_all(list(sessions.values()), sources)


@contextlib.contextmanager
def _naming(numbers: Sequence[int], count: int) -> Iterator[None]:
    """Says of which of several texts an error is; numbers: of those in the call."""
    try:
        yield
    except Error as e:
        at = e.where if len(numbers) > 1 else 0
        if count == 1 or at < 0:
            raise
        raise Error(e.code, f"text {numbers[at]}: {e.message.removeprefix(f'session {at}: ')}") from None


def tied(description: Any) -> set[str]:
    """The names that share one table, of "source", "target" and "output"; description: of Model.describe."""
    said = description["tie_embeddings"]
    return {"target", "output"} if said is True else set(said or ())


def _collector() -> tuple[list[Diagnostic], Any]:
    """A list, and the callback that fills it."""
    found: list[Diagnostic] = []

    def collect(_: int, pointer: Any) -> None:
        d = pointer.contents
        found.append(Diagnostic("error" if d.severity == ATTNKIT_ERROR else "warning", d.area, d.code, d.line, d.column,
                                d.message.decode("utf-8", "replace"), (d.help or b"").decode("utf-8", "replace")))

    return found, attnkit_diagnose(collect)
