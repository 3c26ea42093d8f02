"""Trials that train: each placement is trained by itself, on a node, before its quality is judged.

Run as a program it is attnkit.train, for as long as its standard input is open: it ends with the actor that started it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import threading
from typing import Any, Iterator

from attnkit._toml import tables_of, toml_text

JUDGING = ("quality", "decode")  # the trials that weights matter to


class Plan:
    """The training of every placement before it is judged.

    text: options of attnkit.train; from_scratch: it begins with initial values, not with the model's weights; folder: where trained weights are kept;
    model: the manifest here.  Exits with a sentence where the options cannot be, or a file cannot be read.
    """

    def __init__(self, text: str, from_scratch: bool, folder: str, model: str) -> None:
        from attnkit.train.__main__ import parser
        words = shlex.split(text)
        options = parser().parse_args(["MANIFEST", *words])
        given = [f"--{name}" for name in ("out", "dir", "supernet") if getattr(options, name) != parser().get_default(name)]
        if given:
            sys.exit(f"--train: {given[0]} cannot be given here: each placement has a folder of its own and is trained by itself")
        for name in ("data", "dev", "teacher"):  # workers have another folder
            if path := getattr(options, name):
                words += [f"--{name}", str(pathlib.Path(path).absolute())]
        self.words, self.from_scratch, self.folder = words, from_scratch, pathlib.Path(folder) / "trained"
        self.files = _digests_of(model)
        self.facts = {"from": "initial values" if from_scratch else "the model's weights", "options": text,
                      **{name: _digest(getattr(options, name)) for name in ("data", "dev") if getattr(options, name)}}
        if options.teacher:
            whole = [_digest(options.teacher), *_digests_of(options.teacher)]
            self.facts["teacher"] = hashlib.sha256(json.dumps(whole).encode()).hexdigest()
        index = self.folder / "placements.json"
        self.keys: dict[str, str] = json.loads(index.read_text()) if index.exists() else {}  # by placement

    def key(self, toml: str) -> str:
        """A name for a placement with this training; the same placement of another model has another one."""
        return hashlib.sha256(json.dumps([toml, self.files, self.facts]).encode()).hexdigest()[:16]

    def file(self, key: str) -> pathlib.Path:
        """The file of a key's weights."""
        return self.folder / f"{key}.safetensors"

    def has(self, placement: str, key: str) -> bool:
        """Whether the weights are there, and known as the placement's."""
        return self.keys.get(placement) == key and self.file(key).exists()

    def keep(self, placement: str, key: str, weights: bytes) -> None:
        """Writes whose weights they are, then the weights: where these are there, so is that."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.keys[placement] = key
        write(self.folder / "placements.json", json.dumps(self.keys, indent=1).encode())
        write(self.file(key), weights)

    def finish(self) -> None:
        """Gives winner.toml the weights that the winner was judged with."""
        out = self.folder.parent
        winner = json.loads((out / "result.json").read_text(encoding="utf-8"))["answer"]["placement"]
        if winner is None:
            return
        file, manifest = self.file(self.keys.get(winner, "")), out / "winner.toml"
        if not file.exists():
            sys.exit(f"{self.folder} has no weights of {winner} any more, and {manifest} names those before training: search anew without --resume")
        text = with_weights(manifest.read_text(encoding="utf-8"), file.relative_to(out), hashlib.sha256(file.read_bytes()).hexdigest())
        write(manifest, text.encode())


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Waits while another search trains in this folder."""
    file, mine = folder.with_name(f"{folder.name}.lock"), False
    file.parent.mkdir(parents=True, exist_ok=True)
    while not mine:
        with open(file, "wb") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                mine = os.path.samestat(os.fstat(lock.fileno()), file.stat())  # not one that the search before has removed
            if mine:
                try:
                    yield
                finally:
                    file.unlink(missing_ok=True)


def train(words: list[str], from_scratch: bool, toml: str, folder: str, out: pathlib.Path) -> bytes:
    """Trains the placement that the manifest `toml` says, whose paths are relative to `folder`; returns its weights as a file has them.

    Goes on from a checkpoint in `out`.  Raises RuntimeError with the reason of a training that failed.
    """
    tables = tables_of(toml)
    if from_scratch:
        tables["weights"] = {"seed": tables.get("weights", {}).get("seed", 1)}
    out.mkdir(parents=True, exist_ok=True)
    (out / "placement.toml").write_text(toml_text(tables), encoding="utf-8")
    with (out / "said").open("w+b") as said:
        process = subprocess.Popen([sys.executable, "-m", "attnkit.ray.training", out / "placement.toml", "--dir", folder, "--out", out, *words],
                                   stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        with process.stdin:
            code = process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    if code != 0:
        raise RuntimeError(lines[-1].removeprefix("error: ") if lines else f"ended with code {code}")
    return (out / "model" / "weights.safetensors").read_bytes()


def with_weights(toml: str, file: pathlib.Path, sha256: str | None = None) -> str:
    """The manifest with other weights; comments at its top stay."""
    tables, top = tables_of(toml), []
    for line in toml.splitlines(keepends=True):
        if not line.startswith("#"):
            break
        top.append(line)
    kept = {key: value for key, value in tables.get("weights", {}).items() if key not in ("file", "sha256", "seed", "names", "cache")}
    tables["weights"] = {**kept, "file": str(file), **({"sha256": sha256} if sha256 else {})}
    return "".join(top) + toml_text(tables)


def write(path: pathlib.Path, data: bytes) -> None:
    """In one step: the file is whole or as before."""
    whole = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    whole.write_bytes(data)
    whole.replace(path)


# Of a manifest, as attnkit search knows them (core/search/manifest_text.cpp).
_FILES = ("weights.file", "weights.names", "model.encoder.vocab", "model.encoder.ids", "model.decoder.vocab", "model.decoder.ids", "length.lut", "length.file")


def _digests_of(manifest: str) -> list[str]:
    """Of the files that a manifest names, and of those that an index of weights names."""
    folder, digests = pathlib.Path(manifest).parent, []
    try:
        tables = tables_of(pathlib.Path(manifest).read_text(encoding="utf-8"))
        for key in _FILES:
            name: Any = tables
            for part in key.split("."):
                name = name.get(part, {})
            if not isinstance(name, str) or (key == "weights.names" and not name.endswith(".toml")):
                continue
            digests.append(_digest(str(folder / name)))
            if key == "weights.file" and name.endswith(".json"):
                index = json.loads((folder / name).read_text(encoding="utf-8"))
                digests += [_digest(str((folder / name).with_name(shard))) for shard in sorted(set(index["weight_map"].values()))]
    except OSError as error:
        sys.exit(f"--train: {manifest} cannot be read: {error.strerror}")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        sys.exit(f"--train: {manifest} is no manifest: {error}")
    return digests


def _digest(path: str) -> str:
    if ".py:" in path:
        path = path.rpartition(":")[0]
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    except OSError as error:
        sys.exit(f"--train: {path} cannot be read: {error.strerror}")


def _end_with_input() -> None:
    while os.read(0, 1 << 10):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    from attnkit.train.__main__ import main
    main()
