"""attnkit validate-plugin finds each fault by the check that is about it, and none where there is none.

ATTNKIT_VALIDATE_ALL=1 performs all checks on every faulty plugin: no other check than the one may find its fault.
ATTNKIT_VALIDATE_SEEDS=200 performs all checks on all good plugins with so many seeds.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import faults

COMMAND, FAULTY = os.environ["ATTNKIT"], pathlib.Path(os.environ["ATTNKIT_FAULTY"])
OURS, MEAN = pathlib.Path(os.environ["ATTNKIT_PLUGINS"]), pathlib.Path(os.environ["ATTNKIT_MEAN_IN_C"])
ALL = os.environ.get("ATTNKIT_VALIDATE_ALL", "") != ""
SEEDS = int(os.environ.get("ATTNKIT_VALIDATE_SEEDS", "1"))
temporary = tempfile.TemporaryDirectory(prefix="attnkit-validate-")
ROOT = pathlib.Path(temporary.name)


def tearDownModule():
    temporary.cleanup()


def validate(*arguments):
    done = subprocess.run([COMMAND, "validate-plugin", *map(str, arguments)], capture_output=True, text=True, check=False)
    return done


def report(*arguments):
    done = validate(*arguments, "--json")
    return done.returncode, json.loads(done.stdout)


def misdone(data, name):
    """The library with the misdeed's name in place of GOOD."""
    return re.sub(rb"MISDEED:GOOD\0{28}", lambda _: b"MISDEED:" + name.encode().ljust(32, b"\0"), data)


def make(name):
    """The file of a fault."""
    folder = ROOT / name
    folder.mkdir()
    path = folder / "faulty.so"
    data = misdone((FAULTY / f"{faults.LIBRARIES.get(name, 'faulty')}.so").read_bytes(), name)
    if name == "TEXT_FILE":
        data = b"no library\n" * 100
    if name == "CUT_SHORT":
        data = data[:3000]
    if name == "OTHER_MACHINE":
        data = data[:18] + b"\xb7\0" + data[20:]  # e_machine: AArch64
    path.write_bytes(data)
    path.chmod(0o666 if name == "FOR_ALL_TO_WRITE" else 0o644)
    return path


def at_once(act, items):
    with concurrent.futures.ThreadPoolExecutor(max_workers=2 if SEEDS == 1 else os.cpu_count()) as pool:
        return list(zip(items, pool.map(act, items)))


class Faulty(unittest.TestCase):
    def test_enough(self):
        self.assertGreaterEqual(len(faults.FAULTS), 60)

    def test_each_is_found_by_its_check(self):
        def find(name):
            only = [] if ALL else [argument for check in faults.FAULTS[name] for argument in ("--only", check)]
            return report(make(name), "--seed", 1, "--draws", 0, "--timeout", 30 if name not in self.hang else 3, *only)

        for name, (code, said) in at_once(find, list(faults.FAULTS)):
            with self.subTest(fault=name):
                found = {c["name"]: c["reason"] for c in said["checks"] if c["verdict"] == "failed"}
                self.assertEqual(sorted(found), sorted(faults.FAULTS[name]), found)
                self.assertEqual((code, said["ok"], said["counts"]["failed"]), (8, False, len(found)))

    hang = {"ENTRY_HANGS", "CREATE_HANGS", "PLAN_HANGS", "RUN_HANGS"}

    def test_how_a_process_ended_is_said(self):
        for name, words in (("RUN_CRASHES", "was killed by signal 11 (Segmentation fault)"),
                            ("RUN_ABORTS", "was killed by signal 6 (Aborted)"),
                            ("RUN_DIVIDES", "was killed by signal 8 (Floating point exception)"),
                            ("RUN_EXITS", "ended with code 0: the plugin ended it"),
                            ("RUN_HANGS", "did not end within 2 s"),
                            ("RUN_THROWS", "run threw an exception: std::bad_alloc"),
                            ("WRITES_PAST", "run touched memory 0 bytes past the end of port o"),
                            ("READS_PAST", "run touched memory 0 bytes past the end of port q")):
            path = ROOT / name / "faulty.so"
            path = path if path.exists() else make(name)
            check, = faults.FAULTS[name]
            _, said = report(path, "--seed", 1, "--draws", 0, "--timeout", 2 if "HANGS" in name else 30, "--only", check)
            self.assertIn(words, said["checks"][0]["reason"], name)

    def test_what_it_prints_does_not_break_the_report(self):
        path = ROOT / "RUN_PRINTS" / "faulty.so"
        path = path if path.exists() else make("RUN_PRINTS")
        _, said = report(path, "--seed", 1, "--draws", 0, "--only", "whole.repeats")
        self.assertIn('it printed "a run was here"', said["checks"][0]["reason"])


class Good(unittest.TestCase):
    def files(self):
        for name, library in faults.GOOD.items():
            folder = ROOT / name
            folder.mkdir(exist_ok=True)
            (folder / "faulty.so").write_bytes((FAULTY / f"{library}.so").read_bytes())
            yield folder / "faulty.so"
        yield MEAN
        ours = sorted(p for p in OURS.glob("*.so") if not p.stem.endswith("-cuda"))
        yield from ours if SEEDS > 1 else [p for p in ours if p.stem in ("relu", "softmax")]

    def test_pass(self):
        trials = [(file, seed) for seed in range(1, SEEDS + 1) for file in self.files()]
        for (file, seed), (code, said) in at_once(lambda t: report(t[0], "--seed", t[1], "--draws", 1), trials):
            with self.subTest(file=file, seed=seed):
                self.assertEqual([c for c in said["checks"] if c["verdict"] == "failed"], [])
                self.assertEqual((code, said["ok"], said["seed"]), (0, True, seed))
                self.assertGreater(said["counts"]["passed"], 40)

    def test_the_same_seed_gives_the_same_report(self):
        file = next(self.files())
        reports = [report(file, "--seed", 7, "--draws", 2, "--only", "table", "--only", "locality")[1] for _ in range(2)]
        for one in reports:
            for check in one["checks"]:
                del check["seconds"]
        self.assertEqual(*reports)

    def test_what_it_refuses_is_not_what_it_passed(self):
        _, said = report(MEAN, "--seed", 1, "--draws", 0, "--only", "stream.chunks", "--only", "locality.future")
        self.assertEqual([c["verdict"] for c in said["checks"]], ["refused", "refused"])
        self.assertIn("the mean of the past is not implemented", said["checks"][0]["reason"])
        self.assertEqual(said["counts"], {"passed": 0, "refused": 2, "failed": 0, "not applicable": 0})


class Usage(unittest.TestCase):
    def test_the_list_has_a_sentence_for_each(self):
        _, said = report("--list")
        names = [c["name"] for c in said["checks"]]
        self.assertGreater(len(names), 80)
        self.assertEqual(len(set(names)), len(names))
        self.assertTrue(all(len(c["law"]) > 12 for c in said["checks"]))
        self.assertLessEqual({check for checks in faults.FAULTS.values() for check in checks}, set(names))

    def test_every_check_has_its_fault(self):
        _, said = report("--list")
        found = {check for checks in faults.FAULTS.values() for check in checks}
        # A file for CUDA has nothing to run on here; without counters and memory these would be the tests of others.
        self.assertEqual({c["name"] for c in said["checks"]} - found, {"load.device", "gradient.at_once"})

    def test_text(self):
        done = validate(MEAN, "--seed", "5", "--draws", "0", "--only", "table")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^passed +table\.texts$")
        self.assertRegex(done.stdout, r"ok: \d+ passed, \d+ refused, 0 failed, \d+ not applicable; seed 5\n$")

    def test_wrong_use(self):
        for code, words, arguments in ((2, "FILE is missing", []), (6, "there is no such file", [ROOT / "none.so"]),
                                       (2, "did you mean \"stream.chunks\"?", [MEAN, "--only", "stream.chunk"])):
            done = validate(*arguments)
            self.assertEqual(done.returncode, code)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
