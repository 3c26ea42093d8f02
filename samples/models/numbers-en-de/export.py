"""Writes numbers-en-de.safetensors and model.toml from a training checkpoint."""
import argparse
from pathlib import Path

import torch

from model import ROLES
from weights import FILE, HERE, save_weights

MANIFEST = """\
# Lists of English number, ordinal, date, time and price phrases to German. See README.md.
schema = "attnkit.model/1"

[model]
name = "numbers-en-de"
kind = "encoder-decoder"
d_model = 128
heads = 4
ffn = 256
norm = "pre"
activation = "relu"
positions = "sinusoidal"
embed_scale = true
tie_embeddings = true
head_norm = true
adapters = true
max_length = 512
encoder = {{ layers = 3, vocab = "vocab.txt", lowercase = true }}
decoder = {{ layers = 3, vocab = "vocab.txt" }}

[weights]
file = "{file}"
sha256 = "{sha256}"

# Any of softmax, relu, cosformer and leap in any block: the weights were trained for all of them.
[attention]
default = "softmax"
{placement}
params.relu = {{ guard = "clamp", eps = 0.1 }}
params.cosformer = {{ guard = "clamp", eps = 0.1, cross = "ratio" }}
params.leap = {{ factor = 4, guard = "clamp", eps = 0.1 }}

# Target length over source length, both with </s>, fitted on training data; cosformer needs it.
[length]
predict = "ratio"
alpha = {alpha}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--placement", nargs=3, default=["cosformer", "leap", "softmax"], metavar="MECHANISM",
                        help="for encoder.self, decoder.self and decoder.cross")
    options = parser.parse_args()
    saved = torch.load(options.checkpoint, weights_only=True)
    digest = save_weights(saved["average"])
    placement = "\n".join(f'"{role}" = "{mechanism}"' for role, mechanism in zip(ROLES, options.placement))
    text = MANIFEST.format(file=FILE.name, sha256=digest, placement=placement, alpha=saved["alpha"])
    (HERE / "model.toml").write_text(text, encoding="utf-8")
    print(f"step {saved['step']}, {saved['seconds'] / 60:.1f} minutes\nalpha {saved['alpha']}\nsha256 {digest}")


if __name__ == "__main__":
    main()
