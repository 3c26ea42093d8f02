"""The common part of the tests of attnkit.torch: which mechanisms sit where, and which of them have gradients; runs of attnkit.train."""

import contextlib
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import torch

import attnkit
import attnkit.torch
from attnkit.torch._bound import CPU, bound, key_of
from attnkit.train.__main__ import main as train

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/cli"))
import tiny_model  # noqa: E402, F401
from command import attnkit as command  # noqa: E402, F401
from command import main as run_tests  # noqa: E402

ROLES = ("encoder.self", "decoder.self", "decoder.cross")
OPTIONS = {"leap": {"factor": 2}, "rope_linear": {"rotated": 4}}
D_MODEL, HEADS, QUERIES, KEYS = 12, 2, 5, 6
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
SPACE = '[search]\nspace = { "encoder.self" = ["relu", "linear"], "decoder.self" = ["relu", "leap"], "decoder.cross" = ["relu", "linear"] }\n'


def plugins():
    return sorted({p["name"] for p in attnkit.torch.runtime().list()["plugins"] if p["device"] == "cpu"})


def placements():
    """(mechanism, role, an attention block in it) wherever plugins accept it; small, so that differences are quick."""
    for name in plugins():
        for role in ROLES:
            try:
                torch.manual_seed(1)
                yield name, role, attnkit.torch.Attention(name, role=role, d_model=D_MODEL, heads=HEADS, **OPTIONS.get(name, {}))
            except attnkit.Error as e:
                assert e.code == attnkit.UNSUPPORTED, e


def inputs(role, dtype=torch.float32):
    """x, context, and the lengths and totals of two rows, the second one padded."""
    x = torch.randn(2, QUERIES, D_MODEL, dtype=dtype)
    context = torch.randn(2, KEYS, D_MODEL, dtype=dtype) if role == "decoder.cross" else None
    rows = {"lengths": torch.tensor([QUERIES, 4]), "total": torch.tensor([QUERIES, 4])}
    if context is not None:
        rows.update(context_lengths=torch.tensor([KEYS, 3]), context_total=torch.tensor([KEYS, 3]))
    return x, context, rows


def trains(attention, x, context, rows):
    """Has the mechanism gradients here?"""
    try:
        attention(x.requires_grad_(), context, **rows)
        return True
    except attnkit.Error as e:
        assert e.code == attnkit.UNSUPPORTED, e
        return False


class TorchTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_close(self, got, expected, tolerance=2e-6):
        """Relative to the largest number that is expected."""
        difference = (got - expected).abs().max().item() if got.numel() else 0.0
        self.assertLessEqual(difference, tolerance * max(1.0, expected.abs().max().item() if expected.numel() else 0.0))

    def build(self, *command, name="mean", device=CPU):
        """Compiles a plugin that is not in the tree's folder, and has it found until the test ends."""
        *command, source = command
        subprocess.run([*command, "-shared", "-fPIC", f"-I{SOURCE}/abi/include", SOURCE / source, "-o", self.folder / f"{name}.so"],
                       check=True)
        self.addCleanup(attnkit.torch.use_runtime, attnkit.torch.runtime(device), device)
        attnkit.torch.use_runtime(attnkit.Runtime(threads=2, plugin_path=str(self.folder), device_type=device), device)

    def refused(self, part, function, *arguments, code=attnkit.INVALID, **options):
        with self.assertRaises(attnkit.Error) as caught:
            function(*arguments, **options)
        self.assertIn(part, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(caught.exception.code, code)


def lines(count, seed):
    drawn = random.Random(seed)
    rows = [drawn.choices(list(WORDS), k=drawn.randint(1, 4)) for _ in range(count)]
    return "".join(f"{' '.join(row)}\t{' '.join(WORDS[word] for word in row)}\n" for row in rows)


class TrainTest(TorchTest):
    """Runs of attnkit.train of a tiny model, on data that is learnt in seconds."""

    def setUp(self):
        super().setUp()
        self.manifest = tiny_model.write_model(self.folder / "tiny", attention='default = "relu"', extra=SPACE)
        (self.folder / "train.tsv").write_text(lines(400, 1), encoding="utf-8")
        (self.folder / "dev.tsv").write_text(lines(40, 2), encoding="utf-8")

    def arguments(self, *options, data="train.tsv", dev="dev.tsv", out="run"):
        return [str(self.manifest), "--data", str(self.folder / data), *(["--dev", str(self.folder / dev)] if dev else []), "--out",
                str(self.folder / out), "--tokens", "200", "--warmup", "5", "--threads", "1", "--log-every", "1", *map(str, options)]

    def command(self, *options, launcher=(), **where):
        return [sys.executable, "-B", *launcher, "-m", "attnkit.train", *self.arguments(*options, **where)]

    def train(self, *options, **where):
        """In this process, which saves the time that torch takes to load."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            train(self.arguments(*options, **where))

    def refusal(self, *options, **where):
        with self.assertRaises(SystemExit) as caught:
            self.train(*options, **where)
        return str(caught.exception)

    def run_ok(self, command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def log(self, out="run"):
        return [json.loads(line) for line in (self.folder / out / "log.jsonl").read_text(encoding="utf-8").splitlines()]

    def weights(self, out="run"):
        return (self.folder / out / "model" / "weights.safetensors").read_bytes()


def main(skipped=0):
    """Runs the tests of the file; skipped: what it ends with where one of them was."""
    # A library that is tested by another package's plugins would test nothing.
    assert "ATTNKIT" in os.environ, "ctest sets what these tests need"
    run_tests(skipped)
