"""The package finds libattnkit in the right places alone, and runs on Python 3.9."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import attnkit
from support import CommandTest

LIBRARY = pathlib.Path(os.environ["ATTNKIT_TEST_LIBRARY"])
PACKAGE = pathlib.Path(attnkit.__file__).parent
PROGRAM = "import attnkit\ntry:\n    print(attnkit.version({}))\nexcept attnkit.Error as e:\n    print(e.code, e)\n"


class Library(CommandTest):
    def says(self, package=PACKAGE, path="", **variables):
        done = subprocess.run([sys.executable, "-B", "-c", PROGRAM.format(path and repr(str(path)))], cwd=self.folder, text=True,
                              env={**os.environ, "PYTHONPATH": str(package.parent), **variables}, capture_output=True, check=False)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def test_beside_the_package(self):
        self.assertEqual(self.says(), attnkit.version() + "\n")

    def test_elsewhere(self):
        copy = shutil.copytree(PACKAGE, self.folder / "copy/attnkit")
        self.assertRegex(self.says(copy), f"^1 no libattnkit.so.1 beside the package in {copy}: set ATTNKIT_LIBRARY")
        self.assertEqual(self.says(copy, ATTNKIT_LIBRARY=str(LIBRARY)), attnkit.version() + "\n")
        self.assertEqual(self.says(copy, path=LIBRARY), attnkit.version() + "\n")

    def test_never_in_the_working_directory(self):
        copy = shutil.copytree(PACKAGE, self.folder / "copy/attnkit")
        for name in ("libattnkit.so.1", "libattnkit.so"):
            shutil.copy(LIBRARY, self.folder / name)
        self.assertIn("no libattnkit.so.1 beside the package", self.says(copy))

    def test_order(self):
        other = self.folder / "other.so"
        other.write_text("no library")
        self.assertRegex(self.says(ATTNKIT_LIBRARY=str(other)), "^2 .*other.so is no libattnkit")
        self.assertEqual(self.says(path=LIBRARY, ATTNKIT_LIBRARY=str(other)), attnkit.version() + "\n")
        self.assertRegex(self.says(ATTNKIT_LIBRARY="missing.so"), "^1 .*missing.so is no file.* ATTNKIT_LIBRARY")
        self.assertRegex(self.says(path="missing.so"), "^1 .*missing.so is no file")

    def test_another_library(self):
        self.assertRegex(self.says(path=next((LIBRARY.parent / "attnkit/1").glob("*.so"))), "^2 .*is no libattnkit")


class Language(unittest.TestCase):
    def test_is_python_3_9(self):
        modules = list(PACKAGE.glob("*.py"))
        self.assertGreater(len(modules), 10)
        for module in modules:
            ast.parse(module.read_text(encoding="utf-8"), str(module), feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
