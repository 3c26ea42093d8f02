"""Writes numbers-speech.safetensors, vocab.txt and model.toml from a training checkpoint."""
import argparse
import shutil
from pathlib import Path

import torch

from paths import HERE, TEXT
from speech_model import CONVOLUTIONS, DECODER_LAYERS, ENCODER_LAYERS, KERNEL, ROLES, STRIDE
from train_speech import PRE_DECISION
from model import FFN, HEADS, WIDTH
from weights import save_weights

FILE = HERE / "numbers-speech.safetensors"
MANIFEST = """\
# Spoken lists of English number, ordinal, date, time and price phrases to German text. See README.md.
schema = "attnkit.model/1"

[model]
name = "numbers-speech"
kind = "encoder-decoder"
d_model = {width}
heads = {heads}
ffn = {ffn}
norm = "pre"
activation = "relu"
positions = "sinusoidal"
embed_scale = true
tie_embeddings = true
head_norm = true
adapters = true
max_length = 1024
decoder = {{ layers = {decoder}, vocab = "vocab.txt" }}

# Log-mel frames every 10 ms; convolutions make a row of {subsampling} of them. A row never changes when more is heard.
[model.encoder]
layers = {encoder}
causal = true
features = {{ type = "fbank", sample_rate = 16000, bins = 80, window_ms = 25, shift_ms = 10 }}
frontend = {{ type = "conv", layers = {convolutions}, kernel = {kernel}, stride = {stride}, channels = {width} }}

[weights]
file = "{file}"
sha256 = "{sha256}"

# Any of softmax, relu and leap in any block: the weights were trained for all of them.
[attention]
default = "softmax"
{placement}
params.relu = {{ guard = "clamp", eps = 0.1 }}
params.leap = {{ factor = 4, guard = "clamp", eps = 0.1 }}

# A decision every {pre_decision} rows, {milliseconds} ms.
[stream]
policy = "wait-k"
k = 5
pre_decision = {pre_decision}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--placement", nargs=3, default=["leap", "leap", "leap"], metavar="MECHANISM",
                        help="for encoder.self, decoder.self and decoder.cross")
    options = parser.parse_args()
    saved = torch.load(options.checkpoint, weights_only=True)
    digest = save_weights(saved["average"], FILE)
    shutil.copyfile(TEXT / "vocab.txt", HERE / "vocab.txt")
    placement = "\n".join(f'"{role}" = "{mechanism}"' for role, mechanism in zip(ROLES, options.placement))
    (HERE / "model.toml").write_text(MANIFEST.format(
        width=WIDTH, heads=HEADS, ffn=FFN, encoder=ENCODER_LAYERS, decoder=DECODER_LAYERS, convolutions=CONVOLUTIONS,
        kernel=KERNEL, stride=STRIDE, subsampling=STRIDE ** CONVOLUTIONS, file=FILE.name, sha256=digest,
        placement=placement, pre_decision=PRE_DECISION, milliseconds=PRE_DECISION * 10 * STRIDE ** CONVOLUTIONS),
        encoding="utf-8")
    print(f"step {saved['step']}, {saved['seconds'] / 60:.1f} minutes\nsha256 {digest}")


if __name__ == "__main__":
    main()
