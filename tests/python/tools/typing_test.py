"""mypy --strict on the package, but for what EXCEPTIONS names, and on a program that uses it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "hosts/python/attnkit"
EXCEPTIONS = {
    "torch": "over torch, which is not installed here: ../training/typing_test.py checks it",
    "train": "over torch as well",
}
PROGRAM = """
import numpy as np
import attnkit

with attnkit.Runtime() as runtime, attnkit.Model(runtime, "model.toml") as model:
    words: str = model.translate("one")
    ids: list[int] = model.tokenize(attnkit.SOURCE, words)
    rows: int = model.encode(np.zeros((1, 4), np.int32)).rows
    {}
"""


class Typing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cache = cls.enterClassContext(tempfile.TemporaryDirectory())

    def mypy(self, *files):
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", self.cache, *map(str, files)],
                              cwd=PACKAGE.parent, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_package(self):
        for name in EXCEPTIONS:
            self.assertTrue((PACKAGE / name).exists(), name)
        modules = [m for m in sorted(PACKAGE.rglob("*.py")) if m.relative_to(PACKAGE).parts[0] not in EXCEPTIONS]
        self.assertGreater(len(modules), 23)
        self.assertEqual(self.mypy(*modules), (0, f"Success: no issues found in {len(modules)} source files\n"))

    def test_program(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            program.write_text(PROGRAM.format("session = attnkit.Session(model).clone()"))
            self.assertEqual(self.mypy(program)[0], 0)
            program.write_text(PROGRAM.format("attnkit.Session(3)"))
            code, said = self.mypy(program)
            self.assertEqual(code, 1)
            self.assertIn('incompatible type "int"; expected "Model"', said)


if __name__ == "__main__":
    unittest.main()
