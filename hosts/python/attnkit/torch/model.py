"""A whole model as a module: what core builds of a manifest, tensor for tensor under the names of the weights file."""

import array
import math
import os
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import attnkit

from .._abi import ATTN_PER_MODEL
from ..error import INVALID, Error
from ._bound import runtime
from ._safetensors import tensors_of
from .attention import Attention, projection
from .export import export
from .length import predictor
from .loss import IGNORED, cross_entropy

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}
# What a manifest can say and this module cannot: by key, what it must be.
PLAIN = {"norm_type": "layer", "norm_eps": 1e-5, "qk_norm": False, "bias": "all", "gated": False, "head_bias": False,
         "rotary": None, "position_offset": 0, "token_types": 0, "embed_norm": False, "vocab_size": 0,
         "sinusoids": "interleaved", "attention_scale": None, "head_scale": False, "zero_begin": False}


class Embedding(nn.Module):
    """scale * table[id] + position; nothing behind the end of a row."""

    def __init__(self, described, vocabulary):
        super().__init__()
        d, rows = described["d_model"], described["max_length"]
        self.scale = math.sqrt(d) if described["embed_scale"] else 1.0
        if vocabulary:
            self.embed = _table(vocabulary, d)
        if described["positions"] == "learned":
            self.positions = _table(rows, d)
        elif described["positions"] == "sinusoidal":
            self.register_buffer("sinusoids", sinusoids(rows, d), persistent=False)

    def start(self, x, lengths):
        """x: ids (B, N), or what a front end made of speech (B, N, d_model)."""
        n = x.shape[1]
        if x.dim() == 2:
            x = F.embedding(x, self.embed.weight) * self.scale
        if hasattr(self, "positions"):
            x = x + self.positions.weight[:n]
        elif hasattr(self, "sinusoids"):
            x = x + self.sinusoids[:n].to(x.dtype)
        return torch.where(_real(n, lengths)[..., None], x, 0.0)


def _table(rows, width):
    made = nn.Module()
    made.weight = nn.Parameter(torch.randn(rows, width) / math.sqrt(width))
    return made


def sinusoids(rows, width):
    angle = torch.arange(rows)[:, None] / 10000 ** (torch.arange(width, dtype=torch.float64) // 2 * 2 / width)
    return torch.where(torch.arange(width) % 2 == 1, angle.cos(), angle.sin()).float()


def _real(n, lengths):
    return torch.arange(n, device=lengths.device) < lengths[:, None]


class FeedForward(nn.Module):
    def __init__(self, described):
        super().__init__()
        d, inner = described["d_model"], described["ffn"]
        self.norm, self.activation = nn.LayerNorm(d), ACTIVATIONS[described["activation"]]
        self.add_module("in", projection(d, inner))
        self.out = projection(inner, d)

    def forward(self, x):
        # Not getattr: torch 2.4 compiles it to an attribute, which may not be named so.
        return self.out(self.activation(self._modules["in"](x)))


class Features(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("mean", torch.zeros(bins))
        self.register_buffer("scale", torch.ones(bins))


class Frontend(nn.Module):
    """Convolutions that never look back at a row they made, then a linear layer: (B, T, bins) to (B, T // stride^layers, d_model)."""

    def __init__(self, described):
        super().__init__()
        speech, self.activation = described["speech"], ACTIVATIONS[described["activation"]]
        bins, table = speech["features"]["bins"], speech["frontend"]
        self.before, channels = table["kernel"] - table["stride"], table["channels"]
        self.conv = nn.ModuleDict({str(i): nn.Conv1d(bins if i == 1 else channels, channels, table["kernel"], table["stride"])
                                   for i in range(1, table["layers"] + 1)})
        self.out = projection(channels, described["d_model"])
        self.subsampling = table["stride"] ** table["layers"]

    def forward(self, x):
        x = x.transpose(1, 2)
        for conv in self.conv.values():
            x = self.activation(conv(F.pad(x, (self.before, 0))))
        return self.out(x.transpose(1, 2))


class Stack(Embedding):
    """An encoder or a decoder: layers around a residual stream."""

    def __init__(self, name, described, vocabulary, common):
        super().__init__(described, vocabulary)
        self.name, self.pre, self.dropout = name, described["norm"] == "pre", 0.0
        if name == "encoder" and described["speech"]:
            self.features, self.frontend = Features(described["speech"]["features"]["bins"]), Frontend(described)
        self.knows = {}
        kinds = {"self": {}, "cross": {}, "ffn": {}}
        for block in described["blocks"]:
            stack, kind = block["role"].split(".")
            if stack == name:
                made = Attention(block["mechanism"], role=block["role"], d_model=described["d_model"], heads=described["heads"],
                                 causal=block["causal"], head_norm=described["head_norm"], adapters=described["adapters"],
                                 common=common(block["mechanism"]), **block["options"])
                made.norm = nn.LayerNorm(described["d_model"])
                kinds[kind][str(block["layer"])] = made
                self.knows[block["block"]] = block["knows_q_total"], block["knows_k_total"]
        self.layers = [str(i) for i in range(1, described[f"{name}_layers"] + 1)]
        kinds["ffn"] = {layer: FeedForward(described) for layer in self.layers}
        for kind, made in kinds.items():
            if made:
                self.add_module(kind, nn.ModuleDict(made))
        if self.pre:
            self.norm = nn.LayerNorm(described["d_model"])

    def block(self, kind, layer):
        return getattr(self, kind)[layer]

    def forward(self, x, lengths, total, memory=None, memory_lengths=None, visible=None, aux=None, seen=None):
        """(B, N, d_model) of ids or of a front end's rows; memory: what cross attention reads."""
        def residual(name, layer, around, run):
            y = around + drop(run(layer.norm(around))) if self.pre else layer.norm(around + drop(run(around)))
            if seen is not None:
                seen[name] = y
            return y

        def drop(y):
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
        x = self.norm(x) if self.pre else x
        if seen is not None:
            seen[self.name] = x
        return x


class Head(nn.Module):
    def __init__(self, described, outputs):
        super().__init__()
        d, head = described["d_model"], described["head"]
        self.classifies = head["type"] == "classifier"
        if not self.classifies:
            if not described["tie_embeddings"]:
                self.weight = nn.Parameter(projection(d, outputs, bias=False).weight.detach())
            return
        self.pool, self.of = head["pool"], head["of"]
        if head["hidden"]:
            self.hidden = projection(d, head["hidden"])
        out = projection(head["hidden"] or d, outputs)
        self.weight, self.bias = out.weight, out.bias

    def classify(self, x, lengths, aux, expected=None, label_smoothing=0.0):
        if self.of is not None:
            x = aux[self.of][:, 0]
            # A carried sequence ends in rows of zeros where its mechanism left rows out.
            places = torch.arange(1, x.shape[1] + 1, device=x.device)
            lengths = (places * (x != 0).any(-1)).amax(-1)
        if self.pool == "first":
            lengths = lengths.clamp(max=1)
        x = torch.where(_real(x.shape[1], lengths)[..., None], x, 0.0).sum(1) / lengths.clamp(min=1)[:, None]
        if hasattr(self, "hidden"):
            x = F.relu(self.hidden(x))
        logits = F.linear(x, self.weight, self.bias)
        if expected is None:
            return logits
        return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), expected, ignore_index=IGNORED, reduction="sum",
                               label_smoothing=label_smoothing)


class Model(nn.Module):
    """Model.from_manifest("model.toml"): the model that libattnkit makes of the same file, for training.

    description: "attnkit.model-description/1".  Under a manifest with `adapters` every block has them.
    encoder.dropout and decoder.dropout: what training leaves out of embeddings and of what every layer adds; 0 unless set.
    """

    @classmethod
    def from_manifest(cls, path):
        path = pathlib.Path(path)
        return cls(path.read_text(encoding="utf-8"), path.parent)

    def __init__(self, toml, folder="."):
        """The model of a manifest's text; folder: what paths in it are relative to."""
        super().__init__()
        self.toml, self.folder = toml, os.path.abspath(folder)
        with attnkit.Model.from_text(runtime(), toml, self.folder) as core:
            self.description, self.info, stored = core.describe(), core.info, core.weights()
        described, info = self.description, self.info
        heads = {"kv_heads": described["heads"], "head_width": described["d_model"] // described["heads"],
                 "max_target": described["max_length"]}
        other = {key: described[key] for key, plain in (PLAIN | heads).items() if described[key] != plain}
        if described["speech"] and described["speech"]["features"]["type"] != "fbank":
            other["features"] = described["speech"]["features"]["type"]
        if other or described["activation"] not in ACTIVATIONS or described["head"]["type"] == "embedding":
            raise Error(INVALID, "attnkit.torch has no imported models yet: this one has " + ", ".join(
                [f"{key} = {value}" for key, value in other.items()] +
                [f"activation = {described['activation']}", f"a head of type {described['head']['type']}"]))
        self.model = nn.ModuleDict()
        if described["encoder_layers"]:
            self.encoder = Stack("encoder", described, info.source_vocab, self._common)
        if described["decoder_layers"]:
            self.decoder = Stack("decoder", described, info.target_vocab, self._common)
        self.head = Head(described, info.outputs)
        self.predict = predictor(described["length"], described["source_vocabulary"], described["max_length"])
        self._load(tensors_of(stored))

    def _common(self, mechanism):
        """Where tensors live that are one for all blocks of a mechanism."""
        if mechanism not in self.model:
            self.model[mechanism] = nn.Module()
        return self.model[mechanism]

    def _load(self, tensors):
        missing, left = self.load_state_dict(tensors, strict=False)
        missing = [name for name in missing if ".adapter." not in name]
        if missing or left:
            raise Error(INVALID, f"this package and libattnkit are of different versions: {', '.join([*missing, *left])}")

    def features(self, samples):
        """Frames (1, T, bins) of speech (1, S), as libattnkit makes them."""
        with attnkit.Model.from_text(runtime(), self.toml, self.folder) as core:
            return torch.tensor(core.features(array.array("f", samples.reshape(-1).tolist())).tolist())

    def encode(self, source, lengths=None, seen=None):
        """(memory (B, N, d_model), its lengths, aux) of ids (B, N) or frames (B, T, bins)."""
        lengths, aux = _lengths(source, lengths), {}
        x = source
        if self.description["speech"]:
            x = self.encoder.frontend((x - self.encoder.features.mean) * self.encoder.features.scale)
            lengths = lengths // self.encoder.frontend.subsampling
        return self.encoder(x, lengths, lengths, aux=aux, seen=seen), lengths, aux

    def decode(self, target, lengths=None, encoded=(None, None, {}), total=None, visible=None, seen=None, **loss):
        """Logits (B, T, outputs).  encoded: of encode.  total (B): the targets' lengths as mechanisms are told them.  loss: expected and
        label_smoothing of forward."""
        memory, memory_lengths, aux = encoded
        lengths = _lengths(target, lengths)
        x = self.decoder(target, lengths, total, memory, memory_lengths, visible, dict(aux), seen)
        return self._output(x, lengths, self.decoder, **loss)

    def forward(self, source=None, source_lengths=None, target=None, target_lengths=None, *, total=None, visible=None, seen=None, **loss):
        """Logits (B, T, outputs) by teacher forcing, or (B, outputs) of a classifier; as attnkit_model_forward.

        total (B): the targets' lengths; None: as [length] says.  visible (B, T): how many rows of the encoder each position of the
        target sees (wait-k).  seen: a dict that gets what every layer puts out.

        expected (B, T), or (B) of a classifier: ids, or -100 for none, and label_smoothing; then the sum of their cross entropy is
        returned, and the logits are never all in memory.
        """
        encoded = None, None, {}
        if hasattr(self, "encoder"):
            encoded = self.encode(source, source_lengths, seen)
            memory, lengths, aux = encoded
        if self.head.classifies:
            return self.head.classify(memory, lengths, aux, **loss)
        if not hasattr(self, "decoder"):
            return self._output(memory, lengths, self.encoder, **loss)
        if total is None:
            total = self._total(source, encoded, _lengths(target, target_lengths))
        return self.decode(target, target_lengths, encoded, total, visible, seen, **loss)

    def export(self, folder, **options):
        """Writes a folder that libattnkit loads, with golden activations; see export.export.  The path of its manifest."""
        return export(self, folder, **options)

    def _total(self, source, encoded, target_lengths):
        if self.predict is None:
            return target_lengths  # of "reference"; without [length] no block asks
        memory, lengths, _ = encoded
        return self.predict(source, memory, torch.zeros_like(target_lengths) if lengths is None else lengths)

    def _output(self, x, lengths, stack, expected=None, label_smoothing=0.0):
        weight = stack.embed.weight if self.description["tie_embeddings"] else self.head.weight
        real = _real(x.shape[1], lengths)
        if expected is None:
            return torch.where(real[..., None], F.linear(x, weight), 0.0)
        return cross_entropy(x, weight, torch.where(real, expected, IGNORED), label_smoothing)


def _lengths(rows, lengths):
    if lengths is None:
        return torch.full(rows.shape[:1], rows.shape[1], device=rows.device)
    return torch.as_tensor(lengths, device=rows.device)
