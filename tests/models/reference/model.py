"""The encoder-decoder; parameter names are the tensor names of the exported file.

A placement maps (role, layer) to a mechanism, with roles "encoder.self", "decoder.self" and "decoder.cross"
and layers from 1.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

import mechanisms

MECHANISMS = ("softmax", "relu", "cosformer", "leap")
ROLES = ("encoder.self", "decoder.self", "decoder.cross")
WIDTH, HEADS, FFN, LAYERS, LEAP_FACTOR = 128, 4, 256, 3, 4


def per_role(encoder_self, decoder_self, decoder_cross):
    return {(role, layer): m for role, m in zip(ROLES, (encoder_self, decoder_self, decoder_cross))
            for layer in range(1, LAYERS + 1)}


class Adapter(nn.Module):
    """Lets one set of projections serve every mechanism: a scale and shift on q and k, a gain on o."""

    def __init__(self):
        super().__init__()
        for name, fill in (("q_scale", 1), ("q_shift", 0), ("k_scale", 1), ("k_shift", 0), ("gain", 1)):
            setattr(self, name, nn.Parameter(torch.full((WIDTH,), float(fill))))


class Leap(nn.Module):
    def __init__(self):
        super().__init__()
        d = WIDTH // HEADS
        r = d // LEAP_FACTOR
        for side in "qk":
            for name, shape, fan_in in (("w1", (r, d), d), ("b1", (r,), d), ("w2", (1, r), r), ("b2", (1,), r)):
                bound = 1 / math.sqrt(fan_in)
                setattr(self, f"{side}_{name}", nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def module(self, side):
        return tuple(getattr(self, f"{side}_{name}") for name in ("w1", "b1", "w2", "b2"))


class Attention(nn.Module):
    def __init__(self, choice):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        for name in "qkvo":
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        for mechanism in choice:
            ports = Leap() if mechanism == "leap" else nn.Module()
            ports.adapter = Adapter()
            self.add_module(mechanism, ports)

    def forward(self, x, keys, mechanism, mask, n, m):
        """keys is None for self-attention."""
        ports = getattr(self, mechanism)
        adapter = ports.adapter
        normed = self.norm(x)
        keys = normed if keys is None else keys
        # Scales and gain are folded into the projections, as a program that loads the model does.
        q = F.linear(normed, self.q.weight * adapter.q_scale[:, None],
                     self.q.bias * adapter.q_scale + adapter.q_shift)
        k = F.linear(keys, self.k.weight * adapter.k_scale[:, None],
                     self.k.bias * adapter.k_scale + adapter.k_shift)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, self.v(keys)))
        if mechanism == "softmax":
            o = mechanisms.softmax(q, k, v, mask)
        elif mechanism == "relu":
            o = mechanisms.relu(q, k, v, mask)
        elif mechanism == "cosformer":
            o = mechanisms.cosformer(q, k, v, n, m, mask)
        else:
            o = mechanisms.leap(q, k, v, ports.module("q"), ports.module("k"), mask)
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5)
        o = o.transpose(1, 2).flatten(2)
        return x + F.linear(o, self.o.weight * adapter.gain, self.o.bias)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.add_module("in", nn.Linear(WIDTH, FFN))
        self.out = nn.Linear(FFN, WIDTH)

    def forward(self, x):
        return x + self.out(F.relu(getattr(self, "in")(self.norm(x))))


def _positions(length):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()


class Blocks(nn.Module):
    """The layers of an encoder or a decoder; `choice`: the mechanisms that each attention has parameters for."""

    def __init__(self, kinds, layers=LAYERS, choice=MECHANISMS):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        for kind in kinds:
            made = {str(i): FeedForward() if kind == "ffn" else Attention(choice) for i in range(1, layers + 1)}
            self.add_module(kind, nn.ModuleDict(made))
        self.register_buffer("positions", _positions(1024), persistent=False)

    def block(self, kind, layer):
        return getattr(self, kind)[str(layer)]


class Stack(Blocks):
    """Blocks over embedded ids."""

    def __init__(self, vocabulary, kinds, **blocks):
        super().__init__(kinds, **blocks)
        self.embed = nn.Embedding(vocabulary, WIDTH)
        nn.init.normal_(self.embed.weight, std=WIDTH ** -0.5)

    def start(self, ids):
        return math.sqrt(WIDTH) * self.embed(ids) + self.positions[:ids.shape[1]]


class Model(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.encoder = Stack(vocabulary, ("self", "ffn"))
        self.decoder = Stack(vocabulary, ("self", "cross", "ffn"))

    def encode(self, source, lengths, placement):
        """lengths [B] are true lengths, </s> counted."""
        mask, n = _key_mask(source.shape[1], lengths), _as_length(lengths)
        x = self.encoder.start(source)
        for layer in range(1, LAYERS + 1):
            x = self.encoder.block("self", layer)(x, None, placement["encoder.self", layer], mask, n, n)
            x = self.encoder.block("ffn", layer)(x)
        return self.encoder.norm(x)

    def decode(self, target, encoded, lengths, target_lengths, placement):
        """target starts with <s>; target_lengths [B] are what cosformer measures target positions against."""
        size = target.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool, device=target.device).tril()
        mask, m, n = _key_mask(encoded.shape[1], lengths), _as_length(lengths), _as_length(target_lengths)
        x = self.decoder.start(target)
        for layer in range(1, LAYERS + 1):
            x = self.decoder.block("self", layer)(x, None, placement["decoder.self", layer], causal, n, n)
            x = self.decoder.block("cross", layer)(x, encoded, placement["decoder.cross", layer], mask, n, m)
            x = self.decoder.block("ffn", layer)(x)
        return F.linear(self.decoder.norm(x), self.decoder.embed.weight)

    def forward(self, source, lengths, target, target_lengths, placement):
        return self.decode(target, self.encode(source, lengths, placement), lengths, target_lengths, placement)


def _key_mask(size, lengths):
    return (torch.arange(size, device=lengths.device) < lengths[:, None])[:, None, None, :]


def _as_length(lengths):
    return lengths.to(torch.get_default_dtype())[:, None, None]
