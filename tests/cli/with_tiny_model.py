"""Runs a program with the path of a freshly written tiny model as its last argument."""

import subprocess
import sys
import tempfile

import tiny_model

with tempfile.TemporaryDirectory() as folder:
    path = tiny_model.write_model(folder)
    sys.exit(subprocess.run([*sys.argv[1:], str(path)], check=False).returncode)
