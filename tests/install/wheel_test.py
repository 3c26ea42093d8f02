"""The wheel: made of an installed tree, installed by pip into a clean virtual environment, used from there alone."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import venv

SOURCE, BUILD, CMAKE = (pathlib.Path(os.environ["ATTNKIT_TEST_" + name]) for name in ("SOURCE", "BUILD", "CMAKE"))
MODEL = SOURCE / "samples/models/numbers-en-de/model.toml"
PHRASE, TRANSLATION = "two hundred and forty-one euros", "zweihunderteinundvierzig Euro"


def run(*command):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ATTNKIT", "PYTHON", "LD_", "PIP_"))}
    done = subprocess.run([str(c) for c in command], cwd=ROOT, env=clean, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run(CMAKE, "--install", BUILD, "--prefix", ROOT / "tree", "--strip")
        make = [sys.executable, "-B", SOURCE / "hosts/python/wheel.py"]
        cls.wheel = run(*make, ROOT / "tree", ROOT / "dist").strip()
        cls.again = run(*make, ROOT / "tree", ROOT / "again").strip()
        venv.create(ROOT / "venv", with_pip=True)
        cls.bin = ROOT / "venv/bin"
        run(cls.bin / "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check", cls.wheel)
        (ROOT / "tree").rename(ROOT / "gone")

    def test_the_command_translates(self):
        self.assertEqual(run(self.bin / "attnkit", "run", MODEL, "--text", PHRASE).strip(), TRANSLATION)

    def test_the_package_translates(self):
        program = f"import attnkit; print(attnkit.Model(attnkit.Runtime(), {str(MODEL)!r}).translate({PHRASE!r}))"
        self.assertEqual(run(self.bin / "python", "-B", "-c", program).strip(), TRANSLATION)

    def test_all_of_it_is_in_the_environment(self):
        self.assertIn(str(ROOT / "venv/lib"), run(self.bin / "attnkit", "plugins", "--json"))
        run(self.bin / "pip", "check", "--disable-pip-version-check")

    def test_the_same_tree_gives_the_same_bytes(self):
        self.assertEqual(pathlib.Path(self.wheel).read_bytes(), pathlib.Path(self.again).read_bytes())

    def test_is_uninstalled_without_a_trace(self):
        self.addCleanup(run, self.bin / "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check", self.wheel)
        run(self.bin / "pip", "uninstall", "--yes", "--quiet", "attnkit")
        self.assertEqual([p for p in (ROOT / "venv").rglob("*attnkit*")], [])


if __name__ == "__main__":
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        print("skipped: this Python makes no environments with pip; Debian has them in python3-venv")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="attnkit-wheel-") as made:
        ROOT = pathlib.Path(made).resolve()
        unittest.main()
