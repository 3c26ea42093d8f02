"""The cost of hot paths in instructions, by callgrind: a guard that no clock and no other program can disturb.

Valgrind's processor has AVX2 and no AVX-512, so the counts are those of the AVX2 kernels.  Only attnkit's own code counts: what
malloc and memset take depends on the machine and on what the heap looks like.  counts.json has what the counts were;
ATTNKIT_WRITE_COUNTS=1 writes it anew, for a change that is worth it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent
COUNTS = HERE / "counts.json"
GROWTH = 0.02
TEXT = "The file could not be opened because it does not exist. " * 8


def own_instructions(profile, folder):
    """The instructions of libraries and programs below a folder, of a file that callgrind wrote."""
    names, total, counts, skip = {}, 0, False, False
    for line in profile.splitlines():
        if object_file := re.match(r"ob=(\(\d+\))(?: (.*))?", line):
            names.setdefault(object_file[1], object_file[2])
            counts = names[object_file[1]].startswith(folder)
        elif called := re.match(r"cob=(\(\d+\)) (.*)", line):
            names.setdefault(called[1], called[2])
        elif line.startswith("calls="):
            skip = True  # the next line has what the call took, which stands with the function that was called
        elif re.match(r"[\d+*-]", line):
            total += 0 if skip or not counts else int(line.split()[-1])
            skip = False
    return total


def count(program):
    """Instructions by path."""
    built = f"{Path(program).resolve().parent.parent}/"
    with tempfile.TemporaryDirectory() as folder:
        models = SOURCE / "samples/models"
        run = subprocess.run(["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out", program,
                              models / "numbers-en-de", models / "debian-en-de", TEXT], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"{program} failed under valgrind:\n{run.stderr}")
        counts = {}
        for file in sorted(Path(folder).glob("out.*"), key=lambda f: int(f.suffix[1:])):
            text = file.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
            if name:
                counts[name[1]] = own_instructions(text, built)
        return counts


class Instructions(unittest.TestCase):
    def test_no_path_costs_more_than_it_did(self):
        now = count(os.environ["ATTNKIT_HOT_PATHS"])
        self.assertGreaterEqual(len(now), 10)
        if os.environ.get("ATTNKIT_WRITE_COUNTS"):
            COUNTS.write_text(json.dumps(now, indent=2) + "\n")
        before = json.loads(COUNTS.read_text())
        self.assertEqual(list(before), list(now), "ATTNKIT_WRITE_COUNTS=1 writes counts.json anew")
        more = [f"{name}: {now[name]:,} instructions, {now[name] / n - 1:+.1%} to {n:,}" for name, n in before.items()
                if now[name] > (1 + GROWTH) * n]
        self.assertEqual([], more, f"more than {GROWTH:.0%}: make it cheaper, or say why it is worth it and write counts.json anew")


if __name__ == "__main__":
    if not shutil.which("valgrind"):
        print("skipped: no valgrind")
        sys.exit(77)
    unittest.main()
