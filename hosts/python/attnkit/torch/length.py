"""The length of a target as [length] predicts it, for whole batches."""

from __future__ import annotations

import pathlib
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from .._means import means_of
from ._safetensors import tensors_of


class Predictor(Protocol):
    """Predicts the lengths of targets."""

    def __call__(self, source: Any, memory: Any, lengths: torch.Tensor) -> torch.Tensor: ...


class Ratio:
    """A multiple of the source's length."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(self, source: torch.Tensor, memory: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.where(lengths > 0, self.alpha * lengths.double(), 1.0)


class Fixed:
    """One length for all."""

    def __init__(self, length: float) -> None:
        self.length = length

    def __call__(self, source: torch.Tensor, memory: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.full(lengths.shape, self.length, dtype=torch.float64, device=lengths.device)


class Table:
    """Target positions that each source token makes on average."""

    def __init__(self, means: list[float], dampening: float, max_length: int) -> None:
        self.means = torch.tensor(means, dtype=torch.float64)
        self.dampening, self.max_length = dampening, max_length

    def __call__(self, source: torch.Tensor, memory: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        self.means = self.means.to(source.device)
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        return ((self.means[source.where(real, 0)] * real).sum(1) / self.dampening).clamp(1, self.max_length)


class Network:
    """Two convolutions over the encoder's rows and a line, whose sum is the length; never trained here."""

    def __init__(self, path: str, max_length: int) -> None:
        self.tensors, self.max_length = tensors_of(pathlib.Path(path).read_bytes()), max_length

    def __call__(self, source: torch.Tensor, memory: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack([self._one(rows[:n].float()) for rows, n in zip(memory, lengths.tolist())])

    def _one(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) == 0:
            return torch.ones((), dtype=torch.float64, device=rows.device)
        at = {name.removeprefix("length."): t.to(rows) for name, t in self.tensors.items()}
        for name in ("conv.1", "conv.2"):
            rows = F.relu(F.conv1d(rows.T, at[f"{name}.weight"], at[f"{name}.bias"], padding=1)).T
            rows = F.layer_norm(rows, rows.shape[1:], at[f"{name}.norm.weight"], at[f"{name}.norm.bias"])
        logs = F.linear(rows, at["out.weight"], at["out.bias"]).double()
        return (logs.exp() - 1).round().clamp(0, self.max_length).sum().clamp(1, self.max_length)


def predictor(described: dict[str, Any], vocabulary: str | None, tokens: int, max_length: int) -> Predictor | None:
    """described: "length" of "attnkit.model-description/1".  None where nothing predicts."""
    kind = described and described["predict"]
    if kind == "ratio":
        return Ratio(described["alpha"])
    if kind == "fixed":
        return Fixed(described["length"])
    if kind == "lut":
        return Table(means_of(described, vocabulary, tokens), described["dampening"], max_length)
    return Network(described["file"], max_length) if kind == "network" else None
