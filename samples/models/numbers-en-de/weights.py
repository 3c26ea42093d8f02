"""The exported weights: f16 in the file, f32 in use."""
import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model import Model
from vocabulary import load

HERE = Path(__file__).resolve().parent
FILE = HERE / "numbers-en-de.safetensors"


def save_weights(state, path=FILE):
    """Returns the file's SHA-256. Replaces the file in one step, for others may be reading it."""
    part = path.with_suffix(".part")
    save_file({name: value.half().contiguous() for name, value in state.items()}, part)
    part.chmod(0o644)
    part.replace(path)
    return sha256(path)


def sha256(path=FILE):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_model(path=FILE):
    model = Model(len(load()))
    model.load_state_dict({name: value.to(torch.get_default_dtype()) for name, value in load_file(path).items()})
    return model.eval()


def manifest_alpha(path=HERE / "model.toml"):
    lines = path.read_text(encoding="utf-8").splitlines()
    return float(next(line.split("=")[1] for line in lines if line.startswith("alpha =")))
