"""The shipped weights, f16 in the file, f32 in use."""
import hashlib
import tomllib

import torch
from safetensors.torch import load_file

from samples import TEXT
from model import Model
from vocabulary import load

FILE = TEXT / "numbers-en-de.safetensors"


def sha256(path=FILE):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_model(path=FILE):
    model = Model(len(load()))
    model.load_state_dict({name: value.to(torch.get_default_dtype()) for name, value in load_file(path).items()})
    return model.eval()


def manifest_alpha(path=TEXT / "model.toml"):
    return tomllib.loads(path.read_text(encoding="utf-8"))["length"]["alpha"]
