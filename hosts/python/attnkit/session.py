"""A session: one input being decoded; its rows are its beams.  One call at a time; different sessions: any threads."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, TypeVar

from ._abi import attn_error, attnkit_sample_options, attnkit_stream_options, attnkit_token, sized
from ._arguments import MOST_ROWS, c_text, instance, integer, integers, limit_of, real
from ._call import Handle, Pointer, blob_of, call, check, make, text_of
from ._simulation import Simulation
from ._tensor import FLOAT32, Rows, Tensor, bytes_of, ids as ids_of, lent, numbers, result, source as source_of
from .error import INVALID, Error

if TYPE_CHECKING:
    from ._types import Array, Batch, Ids
    from .model import Model, ModelInfo
    from .policy import Policy

Self = TypeVar("Self", bound="Session")


class Session(Handle):
    """An empty session of `rows` beams; 0: what [decode] in the manifest says."""

    rows: int
    _info: ModelInfo
    _step: _Step  # while no step runs that has it

    def __init__(self, model: Model, rows: int = 0) -> None:
        self._begin(model, "attnkit_session_create", integer(rows, "rows", ctypes.c_uint32, MOST_ROWS))
        self.rows = rows or model.info.beams

    def _begin(self, model: Model, function: str, *arguments: Any) -> None:
        from .model import Model  # which imports this module

        instance(model, Model, "model")
        library = model._library
        super().__init__(library, make(library.attnkit_session_destroy, getattr(library, function), model.pointer, *arguments))
        self._info = model.info

    @classmethod
    def load(cls: type[Self], model: Model, blob: Array) -> Self:
        """The session that save() gave.  The bytes must come from someone you trust."""
        session = cls.__new__(cls)
        with bytes_of(blob) as (address, n):
            session._begin(model, "attnkit_session_load", address, n)
        session.rows = session.describe()["rows"]
        return session

    def clone(self: Self) -> Self:
        """An independent copy of everything, which continues bitwise like this one."""
        copy = type(self).__new__(type(self))
        Handle.__init__(copy, self._library,
                        make(self._library.attnkit_session_destroy, self._library.attnkit_session_clone, self.pointer))
        copy._info, copy.rows = self._info, self.rows
        return copy

    def reorder(self, parents: Sequence[int]) -> None:
        """Row i becomes what row parents[i] was."""
        if len(parents) != self.rows:
            raise Error(INVALID, f"{len(parents)} parents for {self.rows} rows")
        call(self._library.attnkit_session_reorder, self.pointer, integers(parents, "parents", ctypes.c_uint32))

    def read(self, source: Ids, last: bool = True) -> None:
        """Gives the source, or more of it; last: it is complete.

        Ids, </s> included in the last; or, for a model that takes speech, float32: samples (S) or (1, S), frames (1, T, F).
        """
        call(self._library.attnkit_session_read, self.pointer, source_of(source).reference, 1 if last else 0)

    def set_length(self, target_length: float) -> None:
        """The whole length of the target, </s> included, for mechanisms that need it, in place of a prediction."""
        call(self._library.attnkit_session_set_length, self.pointer, real(target_length, "target_length"))

    def write(self, tokens: Batch, logits: bool = True, out: Optional[Array] = None) -> Any:
        """Appends ids to the target, one sequence of them for each row; see write_all."""
        return write_all([self], tokens, logits, out)

    def step(self, token: int, out: Optional[Array] = None) -> None:
        """Appends one token to a session of one row; out: a contiguous float32 array (outputs) for the logits.  The shortest way of a
        step: give the same array each time."""
        pointer = self.pointer
        made = self.__dict__.pop("_step", None) or _Step(pointer, self._library.attnkit_session_write)  # no other thread's
        try:
            if out is not made.out:
                made.write_to(out, self._info.outputs)
            made.write(token)
        finally:
            self._step = made

    def generate(self, limit: int = 0) -> list[int]:
        """Ids until </s> or the limit; greedy with one row, beam search with more.

        limit 0: as [decode] says, else 1.5 times the source and 20, of a decoder alone what max_length leaves.
        """
        room, n = self._room()
        call(self._library.attnkit_session_generate, self.pointer, self._limit(limit), room, ctypes.byref(n))
        return list(room[:n.value])

    def sample(self, prompt: Ids = (), temperature: float = 0, top_k: int = 0, top_p: float = 0, repetition_penalty: float = 0,
               seed: int = 0, stream: int = 0, limit: int = 0, seen: Ids = (),
               each: Optional[Callable[[int], object]] = None, stops: Sequence[str] = ()) -> list[int]:
        """Tokens drawn behind a prompt, see attnkit_session_sample; 0: the default, at temperature 0 always the best token.

        each(id) sees every token before the next is computed; False ends the call, what it raises ends it and is raised.  The
        token that completes one of the stops in their text is the last; the output is the text before it.
        """
        if isinstance(stops, str):
            raise TypeError("stops must be a sequence of str, not str")
        raised: list[BaseException] = []

        def drawn(_: int, token: int) -> int:
            try:
                answer = None if each is None else each(token)
                return int(type(answer).__name__ in ("bool", "bool_") and not answer)  # NumPy's as well, no other zero
            except BaseException as e:  # KeyboardInterrupt included: nothing may pass through C
                raised.append(e)
                return 1

        callback = attnkit_token(drawn)
        given, known = ids_of(prompt), ids_of(seen)
        int32s = ctypes.POINTER(ctypes.c_int32)
        options = sized(attnkit_sample_options, limit=self._limit(limit), repetition_penalty=repetition_penalty, temperature=temperature,
                        top_k=top_k, top_p=top_p, seed=seed, stream=stream, seen=ctypes.cast(known.struct.data, int32s),
                        n_seen=known.shape[1], token=callback, n_stops=len(stops),
                        stops=(ctypes.c_char_p * len(stops))(*(c_text(stop, "a stop") for stop in stops)))
        room, n = self._room()
        call(self._library.attnkit_session_sample, self.pointer, ctypes.cast(given.struct.data, int32s), given.shape[1],
             ctypes.byref(options), room, ctypes.byref(n))
        if raised:
            raise raised[0]
        return list(room[:n.value])

    def simulate(self, source: Ids, decide: Policy, observe: Optional[Callable[[Any], object]] = None,
                 ends: Optional[Sequence[int]] = None, limit: int = 0) -> list[int]:
        """Simultaneous decoding of ids that arrive unit by unit, in an empty session of one row; the ids written.

        decide(view) answers READ, WRITE or STOP, view having read, written and ended; observe(event) sees every action.  What
        either raises ends the call and is raised.  ends: where each unit ends in the source; None: each id is one.
        """
        with Simulation(decide, observe) as both:
            room, n = self._room()
            units = None if ends is None else integers(ends, "ends", ctypes.c_int64)
            options = sized(attnkit_stream_options, limit=self._limit(limit), decide=both.decide, observe=both.observe, ends=units,
                            units=0 if ends is None else len(ends))
            call(self._library.attnkit_session_simulate, self.pointer, source_of(source).reference, ctypes.byref(options), room,
                 ctypes.byref(n))
        return list(room[:n.value])

    def save(self) -> bytes:
        """Bytes to continue from, by load, wherever the same model is."""
        return blob_of(self._library, self._library.attnkit_session_save, self.pointer)

    def describe(self) -> Any:
        """"attnkit.session/1": rows, lengths, state bytes per block, what ran anew."""
        return json.loads(text_of(self._library, self._library.attnkit_session_describe, self.pointer))

    def _room(self) -> Any:
        return (ctypes.c_int32 * self._info.max_length)(), ctypes.c_uint64()

    def _limit(self, limit: int) -> int:
        return min(limit_of(limit), self._info.max_length)


class _Step:
    """The arguments that a step passes to attnkit_session_write, made once."""

    def __init__(self, pointer: Pointer, function: Callable[..., int]) -> None:
        self.function, self.handle = function, (ctypes.c_void_p * 1)(pointer._as_parameter_.value)
        self.token = numbers("i", [0], (1, 1))
        self.err = sized(attn_error, where=-1)
        self.tensor, self.error = self.token.reference, ctypes.byref(self.err)
        self.out: Optional[Array] = None
        self.logits: Optional[Tensor] = None
        self.to: Any = None

    def write_to(self, out: Optional[Array], outputs: int) -> None:
        self.logits = None if out is None else lent(out, "out", (outputs,), FLOAT32, written=True).reshaped((1, 1, outputs))
        self.out, self.to = out, self.logits and self.logits.reference

    def write(self, token: int) -> None:
        try:
            self.token.keep[0] = token
        except OverflowError:
            raise Error(INVALID, "ids must fit in 32 bits") from None
        check(self.function(self.handle, 1, self.tensor, None, self.to, self.error), self.err)


def generate_all(sessions: Sequence[Session], limit: int = 0, steps: int = 0) -> list[Optional[list[int]]]:
    """Continues different sessions of one model together, each as generate() does, until one of them has ended, or for so many steps
    at most where steps is not 0: the ids of those that have ended, None for the others.

    Those go on where they are when they are given again, beside any others, under the limit of their first call.
    """
    handles, first = _handles(sessions), sessions[0]
    n, width = len(handles), first._info.max_length
    room, lengths = (ctypes.c_int32 * (n * width))(), (ctypes.c_uint64 * n)()
    call(first._library.attnkit_sessions_generate, handles, n, first._limit(limit), integer(steps, "steps", ctypes.c_uint32), room, width, lengths)
    return [room[i * width:i * width + length] if length else None for i, length in enumerate(lengths)]


def read_all(sessions: Sequence[Session], sources: Batch, last: Optional[Sequence[bool]] = None,
             source_lengths: Optional[Sequence[int]] = None) -> None:
    """Reads a source for each of different sessions of one model, or more of it, and encodes them together.

    sources: as for Model.encode, a row for each session; last: for each whether its source is complete, None: all are.  Bitwise
    what read() gives each alone.
    """
    handles, rows = _handles(sessions), Rows(sources, source_lengths)
    n = rows.tensor.shape[0]
    if n != len(handles) or (last is not None and len(last) != n):
        raise Error(INVALID, f"{n} sources and {len(last or ())} of last for {len(handles)} sessions")
    ends = None if last is None else (ctypes.c_uint32 * n)(*(1 if end else 0 for end in last))
    call(sessions[0]._library.attnkit_sessions_read, handles, n, *rows.arguments(), ends)


def _handles(sessions: Sequence[Session]) -> Any:
    for i, session in enumerate(sessions):
        instance(session, Session, f"sessions[{i}]")
    pointers = [session.pointer for session in sessions]
    if not pointers:
        raise Error(INVALID, "no sessions: give at least one")
    return (ctypes.c_void_p * len(pointers))(*(p._as_parameter_.value for p in pointers))


def write_all(sessions: Sequence[Session], tokens: Batch, logits: bool = True, out: Optional[Array] = None) -> Any:
    """Appends tokens to different sessions of one model in one call, a sequence of ids for each of their rows.

    tokens: sequences, or an int32 array (rows, length).  Gives the logits as float32 (rows, longest sequence, outputs), rows past
    a sequence's end being zeros: in out, a contiguous array, or in a Result; None without logits.
    """
    handles, batch, first = _handles(sessions), Rows(tokens), sessions[0]
    to, given = result(out, "out", (*batch.tensor.shape, first._info.outputs)) if logits or out is not None else (None, None)
    call(first._library.attnkit_session_write, handles, len(handles), *batch.arguments(), to and to.reference)
    return given
