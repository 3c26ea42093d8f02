"""The processes of a training.  They share no disk: what one has and another must know goes over the network."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import io
import os
import pickle
import socket
import struct
from typing import Any, Callable, Iterator, Mapping, TypeVar

import torch
import torch.distributed

from ..error import INTERNAL, INVALID, Error

Value = TypeVar("Value")


class Lost(Error):
    """Another process ended or is silent.  Threads of torch still wait for it, and abort some exits of Python."""


class Processes:
    """Those that torchrun started, or this one alone.  All call the same methods in the same order, each waiting for the others for so
    many minutes."""

    def __init__(self, minutes: float) -> None:
        self.rank, self.world, self.minutes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), minutes
        self.names = [f"rank {self.rank}"]
        if self.world == 1:
            return
        try:
            if not torch.distributed.is_initialized():
                if card := _card(os.environ["MASTER_ADDR"]):
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", card)
                torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(minutes=minutes))
            self.names = self.all(f"rank {self.rank} on {socket.gethostname()}")
        except RuntimeError as e:
            raise Error(INTERNAL, f"rank {self.rank} on {socket.gethostname()} cannot reach the other processes, of {self.world}, with a --timeout of "
                                  f"{minutes:g} minutes: see whether they run and what they say, and name the card of their network in "
                                  f"GLOO_SOCKET_IFNAME ({str(e).splitlines()[0]})") from None

    @property
    def name(self) -> str:
        """This process in a sentence."""
        return self.names[self.rank if self.world > 1 else 0]

    def all(self, value: Value) -> list[Value]:
        """Every process's value, by rank."""
        if self.world == 1:
            return [value]
        # Not torch's all_gather_object, which needs NumPy.
        mine = pickle.dumps(value)
        longest = int(max(length for length, in self.numbers(len(mine))))
        rooms = [bytearray(longest) for _ in range(self.world)]
        torch.distributed.all_gather([_bytes(room) for room in rooms], _bytes(bytearray(mine.ljust(longest, b"\0"))))
        return [pickle.loads(room) for room in rooms]  # which ends where the value does

    def close(self) -> None:
        """All end together: threads of torch abort some exits of Python while others still work."""
        if self.world > 1:
            self.all(None)
            torch.distributed.destroy_process_group()

    def numbers(self, *mine: float) -> list[list[float]]:
        """As all, for what every step asks."""
        if self.world == 1:
            return [list(mine)]
        values = [torch.empty(len(mine), dtype=torch.float64) for _ in range(self.world)]
        torch.distributed.all_gather(values, torch.tensor(mine, dtype=torch.float64))
        return [row.tolist() for row in values]

    def first(self, value: Value) -> Value:
        """The first process's value; the tensors in it are sent one by one, not in one copy of all."""
        tensors: list[torch.Tensor] = []
        room = bytearray()
        if self.rank == 0:
            written = io.BytesIO()
            _Pickler(written, tensors).dump(value)
            room = bytearray(written.getvalue())
        length = int(self.numbers(len(room))[0][0])
        room = room or bytearray(length)
        torch.distributed.broadcast(_bytes(room), 0)
        if self.rank:
            value = _Unpickler(io.BytesIO(room), tensors).load()
        for tensor in tensors:
            if tensor.numel():
                torch.distributed.broadcast(tensor, 0)
        return value

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A failure in one process ends all, each with the sentence that says why."""
        failure: Exception | None = None
        try:
            yield
        except Exception as e:
            failure = e
        said = self.all(None if failure is None else " ".join(str(failure).split()) or type(failure).__name__)
        if failure is not None:
            raise failure
        for name, why in zip(self.names, said):
            if why is not None:
                raise Error(INVALID, f"{name}: {why}")

    def same(self, mine: Mapping[str, object]) -> None:
        """Refuses processes that have one of these otherwise than the first."""
        first, *others = self.all(mine)
        for name, theirs in zip(self.names[1:], others):
            for key, value in first.items():
                if theirs[key] != value:
                    raise Error(INVALID, f"{name} has {key} {theirs[key]}, {self.names[0]} {value}: give all processes the same")

    @contextlib.contextmanager
    def heard(self, kept: Callable[[], str]) -> Iterator[None]:
        """Says that another process ended or is silent; kept: what is not lost by it."""
        try:
            yield
        except RuntimeError as e:
            if self.world == 1 or "gloo" not in str(e):  # each of gloo's errors begins with a place in its sources
                raise
            what = f"was heard of for {self.minutes:g} minutes (--timeout)" if "Timed out" in str(e) else "is there any more"
            raise Lost(INTERNAL, f"{self.name}: not every other process {what}: see what they said, then start all again; {kept()}") from None


def _card(first: str) -> str | None:
    """The network card by which the first node is reached.  Gloo would take the one of this host's name, which often leads to itself."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first, 9))  # sends nothing
        mine = socket.inet_aton(probe.getsockname()[0])
        for _, card in socket.if_nameindex():
            with contextlib.suppress(OSError):  # cards without an address
                if fcntl.ioctl(probe, 0x8915, struct.pack("256s", card.encode()))[20:24] == mine:  # SIOCGIFADDR
                    return card
    return None


def _bytes(room: bytearray) -> torch.Tensor:
    """The same memory as a tensor."""
    return torch.frombuffer(room, dtype=torch.uint8)


class _Pickler(pickle.Pickler):
    """Leaves tensors out, in their order."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_id(self, value: Any) -> Any:
        if not torch.is_tensor(value):
            return None
        self.tensors.append(value.detach().cpu().contiguous())
        return value.shape, value.dtype


class _Unpickler(pickle.Unpickler):
    """Makes room for them in the same order."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        self.tensors.append(torch.empty(pid[0], dtype=pid[1]))
        return self.tensors[-1]
