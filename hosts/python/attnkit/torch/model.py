"""A whole model as a module: what core builds of a manifest, tensor for tensor under the names of the weights file."""

from __future__ import annotations

import array
import functools
import math
import os
import pathlib
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.nn.functional as F
from torch import nn

import attnkit

from ..error import INVALID, Error
from ._bound import runtime
from ._safetensors import tensors_of
from .attention import Attention, Rotary, biased, projection
from ..model import tied
from .export import export
from .length import predictor
from .loss import IGNORED, cross_entropy

if TYPE_CHECKING:
    from .._types import Path


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 * x)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"), "quick_gelu": quick_gelu, "silu": F.silu}


def norm(described: dict[str, Any]) -> nn.Module:
    """The norm around layers of a model."""
    made = nn.LayerNorm if described["norm_type"] == "layer" else nn.RMSNorm
    return made(described["d_model"], eps=described["norm_eps"])


class Embedding(nn.Module):
    """scale * table[id] + position; nothing behind the end of a row."""

    side: str
    rows: int
    embed: Any
    positions: Any
    sinusoids: torch.Tensor
    token_types: Any

    def __init__(self, name: str, described: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        d, rows, offset = described["d_model"], described["max_target" if name == "decoder" else "max_length"], described["position_offset"]
        self.scale, self.offset = math.sqrt(d) if described["embed_scale"] else 1.0, offset
        self.side, self.rows = "target" if name == "decoder" else "source", rows
        self.zero_begin = name == "decoder" and described["zero_begin"]
        if vocabulary:
            self.embed = _table(vocabulary, d)
        if described["embed_norm"]:
            if not vocabulary:
                self.embed = nn.Module()
            self.embed.norm = norm(described)
        if described["positions"] == "learned":
            self.positions = _table(rows + offset, d)
        elif described["positions"] == "sinusoidal":
            self.register_buffer("sinusoids", sinusoids(rows, d, described["sinusoids"], offset), persistent=False)
        if name == "encoder" and vocabulary and described["token_types"]:
            self.token_types = _table(described["token_types"], d)

    def start(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """x: ids (B, N), or what a front end made of speech (B, N, d_model)."""
        n = x.shape[1]
        if n > self.rows and (hasattr(self, "positions") or hasattr(self, "sinusoids")):
            raise Error(INVALID, f"the {self.side} has {n} rows, and max_length, which the table of positions ends at, is {self.rows}: shorten it")
        if x.dim() == 2:
            x = F.embedding(x, self.embed.weight) * self.scale
            if self.zero_begin:
                x = torch.where(torch.arange(n, device=x.device)[:, None] == 0, 0.0, x)
        if hasattr(self, "positions"):
            x = x + self.positions.weight[self.offset:self.offset + n]
        elif hasattr(self, "sinusoids"):
            x = x + self.sinusoids[:n].to(x.dtype)
        if hasattr(self, "token_types"):
            x = x + self.token_types.weight[0]
        if hasattr(self, "embed") and hasattr(self.embed, "norm"):
            x = self.embed.norm(x)
        return torch.where(_real(n, lengths)[..., None], x, 0.0)


def _table(rows: int, width: int) -> nn.Module:
    made = nn.Module()
    made.weight = nn.Parameter(torch.randn(rows, width) / math.sqrt(width))
    return made


def sinusoids(rows: int, width: int, layout: str = "interleaved", first: int = 0) -> torch.Tensor:
    """The table of positions first to first + rows - 1: sines and cosines in turns, or all sines and then all cosines."""
    channels = torch.arange(width)
    pair, cosine = (channels // 2, channels % 2 == 1) if layout == "interleaved" else (channels % (width // 2), channels >= width // 2)
    steps = max(1.0, width // 2 - 1 if layout == "tensor2tensor" else width / 2)
    angle = torch.arange(first, first + rows, dtype=torch.float64)[:, None] / 10000 ** (pair.double() / steps)
    return torch.where(cosine, angle.cos(), angle.sin()).float()


def _real(n: int, lengths: torch.Tensor) -> torch.Tensor:
    return torch.arange(n, device=lengths.device) < lengths[:, None]


class FeedForward(nn.Module):
    """Two layers with an activation between, gated or not."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__()
        d, inner, bias = described["d_model"], described["ffn"], biased(described["bias"])
        self.norm, self.activation = norm(described), ACTIVATIONS[described["activation"]]
        self.add_module("in", projection(d, inner, "in" in bias))
        if described["gated"]:
            self.gate = projection(d, inner, "gate" in bias)
        self.out = projection(inner, d, "out" in bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., d_model) to the same."""
        # Not getattr: torch 2.4 compiles it to an attribute, which may not be named so.
        y = self._modules["in"](x)  # type: ignore[misc]
        return self.out(self.activation(self.gate(x)) * y if hasattr(self, "gate") else self.activation(y))


class Features(nn.Module):
    """Mean and scale of each bin of speech."""

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(bins))
        self.register_buffer("scale", torch.ones(bins))


class Frontend(nn.Module):
    """Convolutions, then a linear layer: (B, T, bins) to (B, T // subsampling, d_model).  Causal ones never look back at a row they
    made; centred ones take whole recordings, and have no linear layer."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__()
        speech, self.activation = described["speech"], ACTIVATIONS[described["activation"]]
        bins, table = speech["features"]["bins"], speech["frontend"]
        layers, kernel, stride, channels = (table[key] for key in ("layers", "kernel", "stride", "channels"))
        self.centred = table["type"] == "centred"
        strides = [stride if not self.centred or i == layers else 1 for i in range(1, layers + 1)]
        self.pad = (kernel // 2, kernel // 2) if self.centred else (kernel - stride, 0)
        self.conv = nn.ModuleDict({str(i): nn.Conv1d(bins if i == 1 else channels, channels, kernel, strides[i - 1])
                                   for i in range(1, layers + 1)})
        if not self.centred:
            self.out = projection(channels, described["d_model"])
        self.subsampling = math.prod(strides)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Frames to rows."""
        x = x.transpose(1, 2)
        for conv in self.conv.values():
            x = self.activation(conv(F.pad(x, self.pad)))
        x = x.transpose(1, 2)
        return x.contiguous() if self.centred else self.out(x)


_AS_DESCRIBED = "d_model", "heads", "kv_heads", "bias", "qk_norm", "norm_eps", "attention_scale", "head_norm", "adapters"


class Stack(Embedding):
    """An encoder or a decoder: layers around a residual stream."""

    def __init__(self, name: str, described: dict[str, Any], vocabulary: int, common: Callable[[str], nn.Module]) -> None:
        super().__init__(name, described, vocabulary)
        self.name, self.pre, self.dropout = name, described["norm"] == "pre", 0.0
        if name == "encoder" and described["speech"]:
            self.frontend = Frontend(described)
            if not self.frontend.centred:
                self.features = Features(described["speech"]["features"]["bins"])
        rotary = Rotary(described["rotary"]) if described["rotary"] else None
        self.knows: dict[str, tuple[bool, bool]] = {}
        kinds: dict[str, dict[str, nn.Module]] = {"self": {}, "cross": {}, "ffn": {}}
        for block in described["blocks"]:
            stack, kind = block["role"].split(".")
            if stack == name:
                made = Attention(block["mechanism"], role=block["role"], causal=block["causal"], key_width=described["head_width"],
                                 rotary=rotary, common=common(block["mechanism"]), **{key: described[key] for key in _AS_DESCRIBED},
                                 **block["options"])
                made.norm = norm(described)
                kinds[kind][str(block["layer"])] = made
                self.knows[block["block"]] = block["knows_q_total"], block["knows_k_total"]
        self.layers = [str(i) for i in range(1, described[f"{name}_layers"] + 1)]
        kinds["ffn"] = {layer: FeedForward(described) for layer in self.layers}
        for kind, layers in kinds.items():
            if layers:
                self.add_module(kind, nn.ModuleDict(layers))
        if described["final_norm"]:
            self.norm = norm(described)

    def block(self, kind: str, layer: str) -> Attention | FeedForward:
        """The block of a role in a layer."""
        return getattr(self, kind)[layer]

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, total: torch.Tensor, memory: torch.Tensor | None = None,
                memory_lengths: torch.Tensor | None = None, visible: torch.Tensor | None = None, aux: dict[str, torch.Tensor] | None = None,
                seen: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """(B, N, d_model) of ids or of a front end's rows; memory: what cross attention reads."""
        def residual(name: str, layer: Any, around: torch.Tensor,
                     run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            y = around + drop(run(layer.norm(around))) if self.pre else layer.norm(around + drop(run(around)))
            if seen is not None:
                seen[name] = y
            return y

        def drop(y: torch.Tensor) -> torch.Tensor:
            return F.dropout(y, self.dropout) if self.dropout and self.training else y

        x = drop(self.start(x, lengths))
        for number in self.layers:
            for kind in ("self", "cross", "ffn"):
                if kind == "cross" and memory is None:
                    continue
                name, layer = f"{self.name}.{kind}.{number}", self.block(kind, number)
                if kind == "ffn":
                    x = residual(name, layer, x, layer)
                    continue
                cross = kind == "cross"
                totals = total, memory_lengths if cross else total
                q_total, k_total = (t if known else None for t, known in zip(totals, self.knows[name]))
                x = residual(name, layer, x, lambda y: layer(
                    y, memory if cross else None, lengths=lengths, context_lengths=memory_lengths if cross else None, total=q_total,
                    context_total=k_total, visible=visible if cross else None, aux=aux))
        x = self.norm(x) if hasattr(self, "norm") else x
        if seen is not None:
            seen[self.name] = x
        return x


class Head(nn.Module):
    """Rows of the last layer to outputs."""

    type: str  # type: ignore[assignment]
    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, described: dict[str, Any], outputs: int) -> None:
        super().__init__()
        d, head = described["d_model"], described["head"]
        self.type = head["type"]
        if self.type == "lm":
            self.scale = described["head_scale"]
            if "output" not in tied(described):
                self.weight = nn.Parameter(projection(d, outputs, bias=False).weight.detach())
            if described["head_bias"]:
                self.bias = nn.Parameter(torch.zeros(outputs))
            return
        self.pool, self.of = head["pool"], head["of"]
        if self.type == "embedding":
            self.normalise = head["normalise"]
            if head["pooler"]:
                self.pooler = projection(d, d)
            return
        if head["hidden"]:
            self.hidden = projection(d, head["hidden"])
        out = projection(head["hidden"] or d, outputs)
        self.weight, self.bias = out.weight, out.bias

    def layer(self, x: torch.Tensor, tied: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(rows, weight, bias) of the product that is the logits."""
        return x * self.scale if self.scale != 1 else x, self.weight if tied is None else tied, getattr(self, "bias", None)

    def judge(self, x: torch.Tensor, lengths: torch.Tensor, aux: dict[str, torch.Tensor], expected: torch.Tensor | None = None,
              label_smoothing: float = 0.0) -> torch.Tensor:
        """A row for each sequence: classes, or a vector."""
        if self.of is not None:
            x = aux[self.of][:, 0]
            # A carried sequence ends in rows of zeros where its mechanism left rows out.
            places = torch.arange(1, x.shape[1] + 1, device=x.device)
            lengths = (places * (x != 0).any(-1)).amax(-1)
        if self.pool == "first":
            lengths = lengths.clamp(max=1)
        x = torch.where(_real(x.shape[1], lengths)[..., None], x, 0.0).sum(1) / lengths.clamp(min=1)[:, None]
        if self.type == "embedding":
            if expected is not None:
                raise Error(INVALID, "a sentence encoder gives vectors, which have no expected ids: make a loss of them")
            if hasattr(self, "pooler"):
                x = torch.tanh(self.pooler(x))
            return F.normalize(x, dim=-1) if self.normalise else x
        if hasattr(self, "hidden"):
            x = F.relu(self.hidden(x))
        logits = F.linear(x, self.weight, self.bias)
        if expected is None:
            return logits
        _check_expected(expected, logits, label_smoothing)
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), expected, ignore_index=IGNORED, reduction="sum",
                               label_smoothing=label_smoothing)


class Model(nn.Module):
    """Model.from_manifest("model.toml"): the model that libattnkit makes of the same file, for training.

    description: "attnkit.model-description/1".  Under a manifest with `adapters` every block has them.
    encoder.dropout and decoder.dropout: what training leaves out of embeddings and of what every layer adds; 0 unless set.
    """

    @classmethod
    def from_manifest(cls, path: Path) -> Model:
        """The model of a manifest's file."""
        path = pathlib.Path(path)
        return cls(path.read_text(encoding="utf-8"), path.parent)

    def __init__(self, toml: str, folder: Path | str = ".") -> None:
        """The model of a manifest's text; folder: what paths in it are relative to."""
        super().__init__()
        self.toml, self.folder = toml, os.path.abspath(folder)
        with attnkit.Model.from_text(runtime(), toml, self.folder) as core:
            self.description, self.info, stored = core.describe(), core.info, core.weights()
        described, info, tensors = self.description, self.info, tensors_of(stored)
        if described["weights_type"] != "f32":
            raise Error(INVALID, f"weights of type {described['weights_type']} cannot be trained: leave `type` out of [weights]")
        self.model = nn.ModuleDict()
        if {"source", "target"} <= tied(described):
            tensors["encoder.embed.weight"] = tensors["decoder.embed.weight"]
        if described["encoder_layers"]:
            self.encoder = Stack("encoder", described, _rows(tensors, "encoder"), self._common)
        if described["decoder_layers"]:
            self.decoder = Stack("decoder", described, _rows(tensors, "decoder"), self._common)
        self.tied = tied(described)
        if {"source", "target"} <= self.tied:
            self.encoder.embed.weight = self.decoder.embed.weight
        self.head = Head(described, info.outputs)
        self.predict = predictor(described["length"], described["source_vocabulary"], info.source_vocab, described["max_length"])
        self._load(tensors)

    def _common(self, mechanism: str) -> nn.Module:
        """The module of tensors that all blocks of a mechanism share."""
        if mechanism not in self.model:
            self.model[mechanism] = nn.Module()
        return self.model[mechanism]

    def _load(self, tensors: dict[str, torch.Tensor]) -> None:
        missing, left = self.load_state_dict(tensors, strict=False)
        missing = [name for name in missing if ".adapter." not in name]
        if missing or left:
            raise Error(INVALID, f"this package and libattnkit are of different versions: {', '.join([*missing, *left])}")

    def features(self, samples: torch.Tensor) -> torch.Tensor:
        """Frames (1, T, bins) of speech (1, S), as libattnkit makes them."""
        with attnkit.Model.from_text(runtime(), self.toml, self.folder) as core:
            return torch.tensor(core.features(array.array("f", samples.reshape(-1).tolist())).tolist())

    def encode(self, source: torch.Tensor, lengths: torch.Tensor | None = None, seen: dict[str, torch.Tensor] | None = None) -> Any:
        """(memory (B, N, d_model), its lengths, aux) of ids (B, N) or frames (B, T, bins)."""
        lengths = _lengths(source, lengths)
        aux: dict[str, torch.Tensor] = {}
        if not self.description["source_ends"]:
            source, lengths = self._without_ends(source, lengths)
        x = source
        if self.description["speech"]:
            frontend, features = self.encoder.frontend, getattr(self.encoder, "features", None)
            if features is not None:
                x = (x - features.mean) * features.scale
            x, lengths = frontend(x), (lengths + (frontend.subsampling - 1 if frontend.centred else 0)) // frontend.subsampling
        return self.encoder(x, lengths, lengths, aux=aux, seen=seen), lengths, aux

    def decode(self, target: torch.Tensor, lengths: torch.Tensor | None = None, encoded: Any = (None, None, {}),
               total: torch.Tensor | None = None, visible: torch.Tensor | None = None, seen: dict[str, torch.Tensor] | None = None,
               **loss: Any) -> Any:
        """Logits (B, T, outputs).  encoded: of encode.  total (B): the targets' lengths as mechanisms are told them.  loss: what
        forward takes for one."""
        memory, memory_lengths, aux = encoded
        lengths = _lengths(target, lengths)
        x = self.decoder(target, lengths, total, memory, memory_lengths, visible, dict(aux), seen)
        return self._output(x, lengths, self.decoder, **loss)

    def forward(self, source: torch.Tensor | None = None, source_lengths: torch.Tensor | None = None, target: torch.Tensor | None = None,
                target_lengths: torch.Tensor | None = None, *, total: torch.Tensor | None = None, visible: torch.Tensor | None = None,
                seen: dict[str, torch.Tensor] | None = None, **loss: Any) -> Any:
        """Logits (B, T, outputs) by teacher forcing, or (B, outputs) of a classifier; as attnkit_model_forward.

        total (B): the targets' lengths; None: as [length] says.  visible (B, T): how many rows of the encoder each position of the
        target sees (wait-k).  seen: a dict that gets what every layer puts out.

        expected (B, T), or (B) of a classifier: ids, or -100 for none, and label_smoothing; then the sum of their cross entropy is
        returned, and the logits are never all in memory.  layer=True gives (rows, weight, bias) instead, of the product that is the
        logits; as teacher of another model's forward it makes its probabilities what is expected there.
        """
        encoded: Any = (None, None, {})
        if hasattr(self, "encoder"):
            encoded = self.encode(_given(source, "source"), source_lengths, seen)
        memory, lengths, aux = encoded
        if self.head.type != "lm":
            return self.head.judge(memory, lengths, aux, **loss)
        if not hasattr(self, "decoder"):
            return self._output(memory, lengths, self.encoder, **loss)
        if total is None:
            total = self._total(source, encoded, _lengths(_given(target, "target"), target_lengths))
        return self.decode(_given(target, "target"), target_lengths, encoded, total, visible, seen, **loss)

    def export(self, folder: Path, **options: Any) -> pathlib.Path:
        """Writes a folder that libattnkit loads, with golden activations; see export.export.  The path of its manifest."""
        return export(self, folder, **options)

    def _without_ends(self, source: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources without the token that programs put behind them, which may be none of the encoder's vocabulary."""
        last = torch.arange(source.shape[1], device=source.device) == lengths[:, None] - 1
        ends = last & (source == self.info.end_id)
        # It may stand behind max_length tokens; of a row that is longer still mechanisms say so.
        return source.masked_fill(ends, 0)[:, :self.info.max_length], lengths - ends.sum(1)

    def _total(self, source: torch.Tensor | None, encoded: Any, target_lengths: torch.Tensor) -> torch.Tensor:
        if self.predict is None:
            return target_lengths  # of "reference"; without [length] no block asks
        memory, lengths, _ = encoded
        return self.predict(source, memory, torch.zeros_like(target_lengths) if lengths is None else lengths)

    def _output(self, x: torch.Tensor, lengths: torch.Tensor, stack: Stack, expected: torch.Tensor | None = None,
                label_smoothing: float = 0.0, teacher: Any = None, layer: bool = False) -> Any:
        real = _real(x.shape[1], lengths)
        scorer = self.encoder if self.tied == {"source", "output"} else stack
        product = self.head.layer(x, scorer.embed.weight if "output" in self.tied else None)
        if layer:
            return product
        if expected is None:
            return torch.where(real[..., None], F.linear(*product), 0.0)
        _check_expected(expected, x, label_smoothing)
        return cross_entropy(*product, torch.where(real, expected, IGNORED), label_smoothing, teacher)


def _given(x: torch.Tensor | None, name: str) -> torch.Tensor:
    if x is None:
        raise Error(INVALID, f"this model needs a {name}")
    return x


def _check_expected(expected: torch.Tensor, rows: torch.Tensor, label_smoothing: float) -> None:
    if expected.shape != rows.shape[:-1]:
        raise Error(INVALID, f"expected has the shape {tuple(expected.shape)}: an id, or {IGNORED}, for each of {tuple(rows.shape[:-1])} is needed")
    if not 0 <= label_smoothing <= 1:
        raise Error(INVALID, f"label_smoothing {label_smoothing}: it must be 0 to 1")


def _rows(tensors: dict[str, torch.Tensor], stack: str) -> int:
    """Of the embedding of a stack; 0 where it has none."""
    table = tensors.get(f"{stack}.embed.weight")
    return 0 if table is None else len(table)


def _lengths(rows: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    if lengths is None:
        return torch.full(rows.shape[:1], rows.shape[1], device=rows.device)
    return torch.as_tensor(lengths, device=rows.device)
