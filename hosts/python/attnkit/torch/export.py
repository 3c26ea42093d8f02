"""A trained model as the folder that libattnkit loads: weights, manifest, vocabularies, golden activations."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import TYPE_CHECKING, Any

import torch

from .._toml import tables_of, toml_text
from ._gguf import vocabulary_bytes
from ._safetensors import bytes_of, write

if TYPE_CHECKING:
    from .._types import Path
    from .model import Model

# Files that a manifest names, by table and key; they are copied beside it.
_FILES = (("model.encoder", "vocab"), ("model.encoder", "ids"), ("model.decoder", "vocab"), ("model.decoder", "ids"), ("length", "lut"),
          ("length", "file"))
_DATA = (("search", "data"), ("search", "test"))


def named_files(toml: str, folder: Path) -> list[pathlib.Path]:
    """The vocabularies and lengths that a manifest names."""
    tables = tables_of(toml)
    return [pathlib.Path(folder, _table(tables, path)[key]) for path, key in _FILES if key in _table(tables, path)]


def export(model: Model, folder: Path, rows: int = 2, length: int = 12, seed: int = 1, half: bool = False) -> pathlib.Path:
    """Writes model.toml, weights.safetensors, golden.safetensors and the files that the manifest names; returns the manifest's path.

    rows, length, seed: of the random inputs whose activations `attnkit verify` compares.  half: parameters as f16, which they must be
    representable in.  Nothing is replaced before all is written, and then every file in one step.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = tables_of(model.toml)
    files: dict[pathlib.Path, bytes] = {}
    weights, manifest = folder / "weights.safetensors", folder / "model.toml"
    taken = dict.fromkeys((weights.name, "golden.safetensors", manifest.name), pathlib.Path())  # what is written below
    for path, key in _FILES:
        table = _table(tables, path)
        if key in table:
            file = pathlib.Path(model.folder, table[key])
            table[key] = _name(file, taken)
            if not (folder / table[key]).exists() or not file.samefile(folder / table[key]):
                files[folder / table[key]] = vocabulary_bytes(file)
    device = next(model.parameters()).device
    try:
        files[folder / "golden.safetensors"] = bytes_of(golden(model.cpu(), rows, length, seed))  # `attnkit verify` computes on the CPU
    finally:
        model.to(device)
    halved = {name for name, _ in model.named_parameters(remove_duplicate=False)} if half else ()
    tensors = model.state_dict()
    if {"source", "target"} <= model.tied:
        del tensors["encoder.embed.weight"]  # it is the decoder's
    data = files[weights] = bytes_of({name: t.half() if name in halved else t.float() if t.is_floating_point() else t for name, t in tensors.items()})
    had = tables["weights"]
    kept = {key: had[key] for key in (("seed", "tf32") if "file" in had else ("tf32",)) if key in had}
    tables["weights"] = {"file": weights.name, "sha256": hashlib.sha256(data).hexdigest(), **kept}
    for path, key in _DATA:
        table = _table(tables, path)
        if key in table:
            table[key] = os.path.relpath(pathlib.Path(model.folder, table[key]), folder)
    write({**files, manifest: toml_text(tables).encode("utf-8")})
    return manifest


def _table(tables: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.split("."):
        tables = tables.get(name, {})
    return tables


def _name(file: pathlib.Path, taken: dict[str, pathlib.Path]) -> str:
    """Of the copy; two files of one name get different ones."""
    file, name = file.resolve(), file.name
    while taken.setdefault(name, file) != file:
        name = "_" + name
    return name


def golden(model: Model, rows: int, length: int, seed: int) -> dict[str, torch.Tensor]:
    """Random inputs of differing lengths and what every layer makes of them."""
    random, info, inputs = torch.Generator().manual_seed(seed), model.info, {}
    for side, has in (("source", hasattr(model, "encoder")), ("target", hasattr(model, "decoder"))):
        if not has:
            continue
        n = min(length, side == "target" and model.description["max_target"] or info.max_length)
        lengths = torch.tensor([max(1, n - 3 * row) for row in range(rows)], dtype=torch.int32)
        if side == "source" and info.sample_rate:
            whole = model.description["speech"]["features"]["frames"]  # of every recording, where they have one length
            n, lengths = (whole, torch.full_like(lengths, whole)) if whole else (n * info.subsampling, lengths * info.subsampling)
            inputs["source"] = torch.randn(rows, n, info.features, generator=random)
        else:
            vocabulary = info.source_vocab if side == "source" else info.target_vocab
            inputs[side] = torch.randint(vocabulary, (rows, n), generator=random, dtype=torch.int32)
            if side == "source" and not model.description["source_ends"]:  # `attnkit verify` reads rows as they are
                inputs[side].masked_fill_(inputs[side] == info.end_id, (info.end_id + 1) % vocabulary)
        inputs[f"{side}_len"] = lengths
    training = model.training
    seen: dict[str, torch.Tensor] = {}
    model.eval()
    with torch.no_grad():
        arguments = {name.replace("_len", "_lengths"): t if t.is_floating_point() else t.long() for name, t in inputs.items()}
        seen["logits"] = model(**arguments, seen=seen)
    model.train(training)
    return {**inputs, **{name: t.float() for name, t in seen.items()}}
