"""mypy --strict on attnkit.torch and attnkit.train, but for what torch does not say: it has functions without types, and others that give Any."""

import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[3]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
TOOLS = pathlib.Path(os.environ.get("ATTNKIT_TOOLS_PYTHON") or CACHE / "attnkit/python-tools/bin/python")

if not TOOLS.exists():
    print(f"skipped: no mypy, {TOOLS} is no file; ./test.sh installs it where there is a network")
    sys.exit(77)
modules = [m for name in ("torch", "train") for m in sorted((SOURCE / "hosts/python/attnkit" / name).glob("*.py"))]
assert len(modules) > 13
with tempfile.TemporaryDirectory() as cache:
    done = subprocess.run([TOOLS, "-m", "mypy", "--strict", "--allow-untyped-calls", "--no-warn-return-any", "--follow-imports=silent",
                           "--python-executable", sys.executable, "--cache-dir", cache, *modules],
                          cwd=SOURCE / "hosts/python", capture_output=True, text=True)
if done.stdout != f"Success: no issues found in {len(modules)} source files\n":
    sys.exit(done.stdout + done.stderr)
print(done.stdout, end="")
