"""Writes golden/speech: a tiny random model that takes speech, and what PyTorch computes with it in float64.

python tests/models/speech_golden.py      needs torch, torchaudio, numpy
"""

import hashlib
import json
import math
import pathlib
import struct

import numpy
import torch
import torchaudio
from torch.nn import functional

RATE, BINS, CHANNELS, WIDTH, HEADS, INNER, WORDS = 16000, 12, 20, 16, 2, 24, 9
KERNEL, STRIDE, ENCODER_LAYERS, DECODER_LAYERS = 3, 2, 2, 1
FOLDER = pathlib.Path(__file__).parent / "golden" / "speech"

MANIFEST = f"""schema = "attnkit.model/1"
[model]
name    = "speech-golden"
kind    = "encoder-decoder"
d_model = {WIDTH}
heads   = {HEADS}
ffn     = {INNER}
max_length = 64
activation = "gelu"
tie_embeddings = true
encoder = {{ layers = {ENCODER_LAYERS}, causal = true, features = {{ type = "fbank", bins = {BINS} }}, \
frontend = {{ type = "conv", channels = {CHANNELS} }} }}
decoder = {{ layers = {DECODER_LAYERS}, vocab = "vocab.txt" }}
[weights]
file   = "speech.safetensors"
sha256 = "SHA256"
[attention]
default = "softmax"
[stream]
"""


def shapes():
    """Name and shape of every tensor."""
    made = {
        "encoder.features.mean": [BINS],
        "encoder.features.scale": [BINS],
        "encoder.frontend.conv.1.weight": [CHANNELS, BINS, KERNEL],
        "encoder.frontend.conv.1.bias": [CHANNELS],
        "encoder.frontend.conv.2.weight": [CHANNELS, CHANNELS, KERNEL],
        "encoder.frontend.conv.2.bias": [CHANNELS],
        "encoder.frontend.out.weight": [WIDTH, CHANNELS],
        "encoder.frontend.out.bias": [WIDTH],
        "decoder.embed.weight": [WORDS, WIDTH],
    }
    blocks = []
    for stack, layers in ("encoder", ENCODER_LAYERS), ("decoder", DECODER_LAYERS):
        made[f"{stack}.norm.weight"] = made[f"{stack}.norm.bias"] = [WIDTH]
        for layer in range(1, layers + 1):
            inner = f"{stack}.ffn.{layer}"
            made[f"{inner}.norm.weight"] = made[f"{inner}.norm.bias"] = made[f"{inner}.out.bias"] = [WIDTH]
            made[f"{inner}.in.weight"], made[f"{inner}.in.bias"] = [INNER, WIDTH], [INNER]
            made[f"{inner}.out.weight"] = [WIDTH, INNER]
            blocks += [f"{stack}.self.{layer}"] + ([f"decoder.cross.{layer}"] if stack == "decoder" else [])
    for block in blocks:
        made[f"{block}.norm.weight"] = made[f"{block}.norm.bias"] = [WIDTH]
        for part in "qkvo":
            made[f"{block}.{part}.weight"], made[f"{block}.{part}.bias"] = [WIDTH, WIDTH], [WIDTH]
    return made


def random_weights(generator):
    """f32 values of every tensor, of sizes that keep activations near one."""
    weights = {}
    for name, shape in shapes().items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif name == "encoder.features.mean":
            values = 8 + values
        elif name == "encoder.features.scale":
            values = 0.3 + 0.02 * values
        else:
            values = values / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.2 * values
        weights[name] = values.float()
    return weights


class Reference:
    """The model from PyTorch's own operations, in float64."""

    def __init__(self, weights):
        self.weights = {name: value.double() for name, value in weights.items()}

    def linear(self, name, x):
        return functional.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, name, x):
        return functional.layer_norm(x, [WIDTH], self.weights[name + ".weight"], self.weights[name + ".bias"], 1e-5)

    def attend(self, block, x, context, causal):
        x = self.norm(block + ".norm", x)
        heads = lambda t: t.unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        q = heads(self.linear(block + ".q", x))
        k, v = (heads(self.linear(block + "." + part, x if context is None else context)) for part in "kv")
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.linear(block + ".o", out.transpose(-2, -3).flatten(-2))

    def feed_forward(self, name, x):
        return self.linear(name + ".out", functional.gelu(self.linear(name + ".in", self.norm(name + ".norm", x))))

    @staticmethod
    def positions(rows):
        angles = torch.arange(rows, dtype=torch.float64)[:, None] / 10000.0 ** (
            torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH
        )
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)

    def encode(self, frames):
        x = (frames.double() - self.weights["encoder.features.mean"]) * self.weights["encoder.features.scale"]
        x = x.T[None]
        for layer in 1, 2:
            name = f"encoder.frontend.conv.{layer}"
            x = functional.pad(x, (KERNEL - STRIDE, 0))
            x = functional.gelu(
                functional.conv1d(x, self.weights[name + ".weight"], self.weights[name + ".bias"], stride=STRIDE)
            )
        x = self.linear("encoder.frontend.out", x[0].T)
        x = x + self.positions(len(x))
        for layer in range(1, ENCODER_LAYERS + 1):
            x = x + self.attend(f"encoder.self.{layer}", x, None, True)
            x = x + self.feed_forward(f"encoder.ffn.{layer}", x)
        return self.norm("encoder.norm", x)

    def logits(self, frames, target):
        memory = self.encode(frames)
        x = self.weights["decoder.embed.weight"][target] + self.positions(len(target))
        for layer in range(1, DECODER_LAYERS + 1):
            x = x + self.attend(f"decoder.self.{layer}", x, None, True)
            x = x + self.attend(f"decoder.cross.{layer}", x, memory, False)
            x = x + self.feed_forward(f"decoder.ffn.{layer}", x)
        return self.norm("decoder.norm", x) @ self.weights["decoder.embed.weight"].T


def safetensors(tensors):
    """The bytes of a safetensors file."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def waveform(generator):
    """0.37 s of tones that come and go, and noise."""
    t = torch.arange(5920) / RATE
    tones = 0.3 * torch.sin(2500 * t * (1 + t)) * torch.sin(9 * t) + 0.2 * torch.cos(7000 * t)
    return (tones + 0.02 * torch.randn(t.shape, generator=generator)).float()


def main():
    generator = torch.Generator().manual_seed(20240607)
    weights = random_weights(generator)
    samples = waveform(generator)
    frames = torchaudio.compliance.kaldi.fbank(
        32768 * samples.double()[None], num_mel_bins=BINS, dither=0.0, sample_frequency=RATE
    )
    target = torch.tensor([1, 4, 7, 3, 8, 5])
    logits = Reference(weights).logits(frames, target)
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = safetensors(weights)
    (FOLDER / "speech.safetensors").write_bytes(model)
    (FOLDER / "model.toml").write_text(MANIFEST.replace("SHA256", hashlib.sha256(model).hexdigest()))
    (FOLDER / "vocab.txt").write_text("<pad>\n<s>\n</s>\n" + "".join(f"\u2581{c}\n" for c in "abcdef"[: WORDS - 3]))
    golden = {"samples": samples, "frames": frames, "target": target.float(), "logits": logits}
    (FOLDER / "golden.safetensors").write_bytes(safetensors(golden))
    print(f"{len(frames)} frames, logits of root mean square {numpy.sqrt((logits.numpy() ** 2).mean()):.3f}")


if __name__ == "__main__":
    main()
