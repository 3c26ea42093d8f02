"""Weights for a Transformer without adapters and head_norm to begin with, from the shipped ones: python plain.py DEV.TSV OUT.safetensors

Adapters of softmax are folded into the projections. head_norm cannot be: each head's output is multiplied by the mean of what it was divided by, on 60 lines
of dev.tsv; training mends the rest. PYTHONPATH has the attnkit package and torch.
"""
import collections
import pathlib
import sys
import tempfile

import sentencepiece
import torch
from safetensors.torch import load_file, save_file

from attnkit.torch import Model, attention

HERE = pathlib.Path(__file__).parent
OTHERS = "relu", "cosformer", "leap", "latte"


def factors(dev):
    """1 / rms of every head, by block, as its mean."""
    sums = collections.defaultdict(lambda: [0, 0])
    project = attention.Attention._project_out  # noqa: SLF001

    def watched(self, mechanism, out):
        inverse = torch.rsqrt(out.double().square().mean(-1) + 1e-5)  # (B, H, N)
        sums[self][0] += inverse.sum((0, 2))
        sums[self][1] += inverse.shape[0] * inverse.shape[2]
        return project(self, mechanism, out)

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "pieces.model"))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("weights.safetensors", "pieces.model"):
            (pathlib.Path(folder) / name).symlink_to(HERE / name)
        manifest = pathlib.Path(folder) / "model.toml"
        manifest.write_text((HERE / "model.toml").read_text().replace('"decoder.self" = "relu"\n', ""))
        model = Model.from_manifest(manifest)
    attention.Attention._project_out = watched  # noqa: SLF001
    with torch.no_grad():
        for line in pathlib.Path(dev).read_text(encoding="utf-8").splitlines()[:60]:
            source, target = map(pieces.encode, line.split("\t"))
            model(torch.tensor([[*source, pieces.eos_id()]]), None, torch.tensor([[pieces.bos_id(), *target]]), None)
    attention.Attention._project_out = project  # noqa: SLF001
    return {name: (sums[block][0] / sums[block][1]).float() for name, block in model.named_modules() if block in sums}


def main():
    dev, out = sys.argv[1:]
    stored = {name: value.float() for name, value in load_file(HERE / "weights.safetensors").items()}
    made = {name: value for name, value in stored.items() if ".adapter." not in name and not any(f".{other}." in name for other in OTHERS)}
    for block, factor in factors(dev).items():
        adapter = {part: stored[f"{block}.softmax.adapter.{part}"] for part in ("q_scale", "q_shift", "k_scale", "k_shift", "gain")}
        for part in "qk":
            made[f"{block}.{part}.weight"] *= adapter[f"{part}_scale"][:, None]
            made[f"{block}.{part}.bias"] = made[f"{block}.{part}.bias"] * adapter[f"{part}_scale"] + adapter[f"{part}_shift"]
        width = len(adapter["gain"]) // len(factor)
        made[f"{block}.o.weight"] *= adapter["gain"] * factor.repeat_interleave(width)
    save_file({name: value.contiguous() for name, value in made.items()}, out)


if __name__ == "__main__":
    main()
