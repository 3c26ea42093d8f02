"""The common part of the command's tests: running it, and reading its output."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
if not {"ATTNKIT", "ATTNKIT_SAMPLE"} <= os.environ.keys():
    sys.exit("ATTNKIT must name the command and ATTNKIT_SAMPLE the folder of the sample model; ctest sets both")
COMMAND = os.environ["ATTNKIT"]
SAMPLE = pathlib.Path(os.environ["ATTNKIT_SAMPLE"]) / "model.toml"


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode("utf-8", "replace")

    def json(self):
        """The one document on standard output; a second one, or anything else there, fails."""
        return json.loads(self.out)

    def lines(self):
        return self.out.splitlines()


def attnkit(*arguments, stdin=b"", env=None, cwd=None, timeout=120, preexec_fn=None):
    environment = {**os.environ, **(env or {})}
    done = subprocess.run([COMMAND, *map(str, arguments)], input=stdin, capture_output=True, env=environment, cwd=cwd,
                          timeout=timeout, check=False, preexec_fn=preexec_fn)
    return Result(done)


class CommandTest(unittest.TestCase):
    """A test with a folder of its own, and checks that say what the command said when they fail."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ok(self, *arguments, **options):
        return self.run_code(0, *arguments, **options)

    def run_code(self, code, *arguments, **options):
        result = attnkit(*arguments, **options)
        self.assertEqual(result.code, code, f"{arguments}\n{result.out}\n{result.err}")
        return result

    def plugin_folder(self, *names):
        """A folder with just these plugins of tests/cli/plugins."""
        folder = self.folder / "plugins"
        folder.mkdir()
        for name in names:
            shutil.copy(pathlib.Path(os.environ["ATTNKIT_TEST_PLUGINS"]) / f"{name}.so", folder)
        return folder


def main(skipped=0):
    """Runs the tests of the file; skipped: what it ends with where one of them was."""
    result = unittest.main(exit=False).result
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}")
    sys.exit(1 if not result.wasSuccessful() else skipped if result.skipped else 0)
