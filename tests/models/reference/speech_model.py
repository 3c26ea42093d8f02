"""Speech to text: convolutions that never look back to change a row, a causal encoder, a decoder as in numbers-en-de.

Parameter names are the tensor names of the exported file. A placement maps (role, layer) to a mechanism.
"""
import torch
import torch.nn.functional as F
from torch import nn

from features import BINS
from model import WIDTH, Blocks, Stack

MECHANISMS = ("softmax", "relu", "leap")
ROLES = ("encoder.self", "decoder.self", "decoder.cross")
ENCODER_LAYERS, DECODER_LAYERS = 4, 3
KERNEL, STRIDE, CONVOLUTIONS = 9, 2, 2
SUBSAMPLING = STRIDE ** CONVOLUTIONS  # frames per row of the encoder


def layers_of(role):
    return range(1, (ENCODER_LAYERS if role == "encoder.self" else DECODER_LAYERS) + 1)


def per_role(encoder_self, decoder_self, decoder_cross):
    return {(role, layer): m for role, m in zip(ROLES, (encoder_self, decoder_self, decoder_cross))
            for layer in layers_of(role)}


class Convolution(nn.Conv1d):
    """Zeros in front and none behind: what comes later changes no row."""

    def __init__(self, channels):
        super().__init__(channels, WIDTH, KERNEL, STRIDE)

    def forward(self, x):
        return super().forward(F.pad(x, (KERNEL - STRIDE, 0)))


class Frontend(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleDict({str(i): Convolution(WIDTH if i > 1 else BINS) for i in range(1, CONVOLUTIONS + 1)})
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """(B, T, bins) -> (B, T // SUBSAMPLING, width)"""
        x = x.transpose(1, 2)
        for convolution in self.conv.values():
            x = F.relu(convolution(x))
        return self.out(x.transpose(1, 2))


class Normalise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(BINS))
        self.register_buffer("scale", torch.ones(BINS))

    def forward(self, frames):
        return (frames - self.mean) * self.scale


class Encoder(Blocks):
    def __init__(self):
        super().__init__(("self", "ffn"), layers=ENCODER_LAYERS, choice=MECHANISMS)
        self.features, self.frontend = Normalise(), Frontend()


class SpeechModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Stack(vocabulary, ("self", "cross", "ffn"), layers=DECODER_LAYERS, choice=MECHANISMS)

    def encode(self, frames, placement):
        """frames (B, T, bins), padded behind -> (B, rows, width)"""
        x = self.encoder.frontend(self.encoder.features(frames))
        x = x + self.encoder.positions[:x.shape[1]]
        causal = _causal(x.shape[1])
        for layer in layers_of("encoder.self"):
            x = self.encoder.block("self", layer)(x, None, placement["encoder.self", layer], causal, None, None)
            x = self.encoder.block("ffn", layer)(x)
        return self.encoder.norm(x)

    def decode(self, target, encoded, seen, placement):
        """target starts with <s>; seen (B, N): rows of the encoder that each target position may look at."""
        causal = _causal(target.shape[1])
        mask = (torch.arange(encoded.shape[1]) < seen[..., None])[:, None]
        x = self.decoder.start(target)
        for layer in layers_of("decoder.self"):
            x = self.decoder.block("self", layer)(x, None, placement["decoder.self", layer], causal, None, None)
            x = self.decoder.block("cross", layer)(x, encoded, placement["decoder.cross", layer], mask, None, None)
            x = self.decoder.block("ffn", layer)(x)
        return F.linear(self.decoder.norm(x), self.decoder.embed.weight)


def seen_rows(rows, targets, k, pre_decision):
    """(B, N) of wait-k: target i (from 1) is written once (k + i - 1) * pre_decision rows were read, or all of `rows`
    (B). k None: offline."""
    every = rows[:, None].expand(-1, targets)
    if k is None:
        return every
    return torch.minimum(every, (k + torch.arange(targets)) * pre_decision)


def _causal(size):
    return torch.ones(size, size, dtype=torch.bool).tril()
