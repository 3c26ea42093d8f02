"""attnkit validate-plugin finds each fault by the check that is about it, and none where there is none.

ATTNKIT_VALIDATE_ALL=1 performs all checks on every faulty plugin: no other check than the one may find its fault.
ATTNKIT_VALIDATE_SEEDS=200 performs all checks on all good plugins with so many seeds.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import faults

COMMAND, FAULTY = os.environ["ATTNKIT"], pathlib.Path(os.environ["ATTNKIT_FAULTY"])
OURS, MEAN = pathlib.Path(os.environ["ATTNKIT_PLUGINS"]), pathlib.Path(os.environ["ATTNKIT_MEAN_IN_C"])
SAMPLES = [pathlib.Path(path) for path in os.environ["ATTNKIT_SAMPLE_PLUGINS"].split(":")]
RUST = (FAULTY / "rust.so").exists()
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
    if name == "OTHER_CLASS":
        data = data[:4] + b"\1" + data[5:]  # EI_CLASS: 32 bits
    if name == "OTHER_MACHINE":
        data = data[:18] + b"\xb7\0" + data[20:]  # e_machine: AArch64
    if name == "NEEDS_ATTNKIT":
        shutil.copy(FAULTY / "beside/libattnkit.so.1", folder)
    path.write_bytes(data)
    path.chmod(0o666 if name == "FOR_ALL_TO_WRITE" else 0o644)
    return path


def buildable(names):
    """Those of the names of a library that was built: without cargo those in Rust are not.  On one processor all are bound to it."""
    bound = len(os.sched_getaffinity(0)) == 1
    return [name for name in names if (RUST or faults.LIBRARIES.get(name, faults.GOOD.get(name)) != "rust") and not (bound and name == "CREATE_BINDS")]


def at_once(act, items):
    with concurrent.futures.ThreadPoolExecutor(max_workers=2 if SEEDS == 1 else os.cpu_count()) as pool:
        return list(zip(items, pool.map(act, items)))


class Faulty(unittest.TestCase):
    def test_enough(self):
        self.assertGreaterEqual(len(faults.FAULTS), 60)

    def test_each_is_found_by_its_check(self):
        def find(name):
            only = [] if ALL else [argument for check in faults.FAULTS[name] for argument in ("--only", check)]
            return report(make(name), *faults.ARGUMENTS.get(name, ("--seed", "1", "--draws", "0")), "--timeout", 30 if name not in self.hang else 3, *only)

        for name, (code, said) in at_once(find, buildable(faults.FAULTS)):
            with self.subTest(fault=name):
                found = {c["name"]: c["reason"] for c in said["checks"] if c["verdict"] == "failed"}
                self.assertEqual(sorted(found), sorted(faults.FAULTS[name]), found)
                self.assertEqual((code, said["ok"], said["counts"]["failed"]), (8, False, len(found)))

    @unittest.skipUnless(RUST, "no cargo: the faults in Rust were not built")
    def test_rust(self):
        self.assertGreaterEqual(sum(library == "rust" for library in faults.LIBRARIES.values()), 8)

    hang = {"ENTRY_HANGS", "CREATE_HANGS", "PLAN_HANGS", "RUN_HANGS"}

    def test_how_a_process_ended_is_said(self):
        for name, words in (("RUN_CRASHES", "was killed by signal 11 (Segmentation fault)"),
                            ("RUN_ABORTS", "was killed by signal 6 (Aborted)"),
                            ("RUN_DIVIDES", "was killed by signal 8 (Floating point exception)"),
                            ("RUN_EXITS", "ended with code 0: the plugin ended it"),
                            ("RUN_HANGS", "did not end within 2 s"),
                            ("RUN_EATS_MEMORY", "took more memory than the 256 MiB that it may"),
                            ("RUN_THROWS", "run threw an exception: std::bad_alloc"),
                            ("ENDLESS_SCRATCH", "it needs 1125899906842624 bytes of scratch, of state or to save, more than there is"),
                            ("KEEPS_VALUES", "run touched memory at byte 8 of the values of create"),
                            ("REFUSES_WITHOUT_NUL", "its message has no NUL within the 500 bytes of attn_error.message"),
                            ("BACKWARD_KEEPS_VALUES", "training touched memory at byte 8 of the values of create"),
                            ("RUN_EATS_SHARED", "took more memory than the 256 MiB that it may"),
                            ("CREATE_MAPS", "bytes more are mapped"),
                            ("RUN_MAPS", "run mapped memory 1 times"),
                            ("RUN_REDIRECTS", "run changed its files: descriptor 1 from /memfd:output (deleted) to /dev/null"),
                            ("RUN_SETS_TIMER", "run set a timer, or stopped one"),
                            ("PLANS_ONE_SIZE", "it refuses every run that was tried: "),
                            ("WORKERS_READ_PAST", "run touched memory 0 bytes past the end of port o"),
                            ("TASKS_FLUSH", "a task of run changed the floating-point modes of its thread"),
                            ("RUN_FORKS", "run started processes"),
                            ("LEARNED_INTEGERS", "port 2 has elements of type 0:32, and is stored as f32 (2:32)"),
                            ("TABLE_OF_BYTES", "port 2 has elements of type 0:8, and is stored as f32 (2:32), int32 (0:32) or int64 (0:64)"),
                            ("AUX_OF_F64", "port 1 is an auxiliary sequence and not (0, 1, rows, width) of f32"),
                            ("RAW_OUTPUT_OF_ANY_WIDTH", "port o is added as it is, 3 heads of width 40, and the model is 72 wide"),
                            ("PORT_WITHOUT_DOC", 'port v is described as "": say in more than 3 bytes what it holds'),
                            ("OTHER_CLASS", "with addresses of 32 bits, this program has 64"),
                            ("WRITES_PAST", "run touched memory 0 bytes past the end of port o"),
                            ("READS_PAST", "run touched memory 0 bytes past the end of port q")):
            path = ROOT / name / "faulty.so"
            path = path if path.exists() else make(name)
            check, = faults.FAULTS[name]
            _, said = report(path, *faults.ARGUMENTS.get(name, ("--seed", "1", "--draws", "0")), "--timeout", 2 if "HANGS" in name else 30, "--only", check)
            self.assertIn(words, said["checks"][0]["reason"], name)

    def test_what_it_prints_does_not_break_the_report(self):
        path = ROOT / "RUN_PRINTS" / "faulty.so"
        path = path if path.exists() else make("RUN_PRINTS")
        _, said = report(path, "--seed", 1, "--draws", 0, "--only", "whole.repeats")
        self.assertIn('it printed "a run was here"', said["checks"][0]["reason"])


class Good(unittest.TestCase):
    def good(self, name):
        folder = ROOT / name
        folder.mkdir(exist_ok=True)
        (folder / "faulty.so").write_bytes(misdone((FAULTY / f"{faults.GOOD[name]}.so").read_bytes(), name))
        return folder / "faulty.so"

    def files(self):
        yield from map(self.good, buildable(faults.GOOD))
        yield MEAN
        yield from SAMPLES
        ours = sorted(p for p in OURS.glob("*.so") if not p.stem.endswith("-cuda"))
        yield from ours if SEEDS > 1 else [p for p in ours if p.stem in ("relu", "softmax")]

    def test_pass(self):
        trials = [(file, seed) for seed in range(1, SEEDS + 1) for file in self.files()]
        for (file, seed), (code, said) in at_once(lambda t: report(t[0], "--seed", t[1], "--draws", 1, "--timeout", 600), trials):
            with self.subTest(file=file, seed=seed):
                self.assertEqual([c for c in said["checks"] if c["verdict"] == "failed"], [])
                self.assertEqual((code, said["ok"], said["seed"]), (0, True, seed))
                self.assertGreater(said["counts"]["passed"], 40)

    def test_remarks(self):
        for name, check, words in (("ENTRY_IS_SLOW", "load.works", "loading it took 3"), ("SLOW_DENORMALS", "whole.extremes", "denormal numbers take "),
                                   ("OFFSET", "whole.scales", "256 times the values is not 256 times the output")):
            code, said = report(make(name), "--seed", 1, "--draws", 0, "--only", check)
            self.assertEqual((code, said["checks"][0]["verdict"]), (0, "passed"))
            self.assertIn(words, said["checks"][0]["reason"])

    def test_outputs_as_wide_as_the_model(self):
        folder = ROOT / "AS_WIDE"
        folder.mkdir()
        (folder / "faulty.so").write_bytes(misdone((FAULTY / "ring.so").read_bytes(), "RAW_OUTPUT"))
        code, said = report(folder / "faulty.so", "--seed", 1, "--draws", 0, "--only", "plan", "--only", "gradient.differences", "--only", "process.threads")
        self.assertEqual((code, said["counts"]["failed"]), (0, 0), said)
        self.assertEqual([c["verdict"] for c in said["checks"] if c["name"].split(".")[0] != "plan"], ["passed", "passed"], said)

    def test_keys_that_are_not_chosen(self):
        _, said = report(make("CHOOSES_KEYS"), "--seed", 1, "--draws", 0, "--only", "whole.nan_in_keys")
        self.assertEqual([c["verdict"] for c in said["checks"]], ["passed"], said)

    def test_streams_row_by_row(self):
        _, said = report(self.good("ROW_BY_ROW"), "--seed", 1, "--draws", 0, "--only", "stream.many_steps")
        self.assertEqual([c["verdict"] for c in said["checks"]], ["passed"], said)

    def test_states_of_a_mebibyte_are_moved(self):
        _, said = report(self.good("LIMITED"), "--seed", 1, "--draws", 0, "--only", "stream.other_process")
        self.assertEqual([c["verdict"] for c in said["checks"]], ["passed"], said)

    def test_types_of_16_bits(self):
        for file, verdict in ((make("COMPUTES_HALVES"), "passed"), (MEAN, "refused")):
            _, said = report(file, "--seed", 1, "--draws", 0, "--only", "whole.halves")
            self.assertEqual([c["verdict"] for c in said["checks"]], [verdict], said)

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
        # load.device says why nothing of a file for CUDA is run, and finds nothing; whole.scales remarks.
        self.assertEqual({c["name"] for c in said["checks"]} - found, {"load.device", "whole.scales"})

    def test_a_file_for_cuda_is_looked_at_and_not_run(self):
        path = make("ON_CUDA").rename(ROOT / "ON_CUDA" / "faulty-cuda.so")
        code, said = report(path, "--seed", 1, "--draws", 0)
        self.assertEqual((code, said["counts"]["failed"]), (0, 0), said)
        verdicts = {c["name"]: c["verdict"] for c in said["checks"]}
        passed = {name for name, verdict in verdicts.items() if verdict == "passed"}
        self.assertEqual(passed, {name for name in verdicts if name.split(".")[0] in ("file", "load")} - {"load.device"})
        reasons = {c["name"]: c["reason"] for c in said["checks"]}
        self.assertIn("it computes on CUDA", reasons["load.device"])
        self.assertEqual(reasons["whole.repeats"], "without load.device")

    def test_the_document_names_checks_that_are_there(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "docs/validating-a-plugin.md").read_text()
        rows = re.findall(r"(?m)^\| (\d+) [^|]+\| ([^|]+)\|$", text)
        self.assertEqual([int(number) for number, _ in rows], list(range(1, 36)))
        names = {c["name"] for c in report("--list")[1]["checks"]}
        for number, cell in rows:
            named = set(re.findall(r"`(\w+\.\w+)`", cell))
            self.assertLessEqual(named, names, number)
            self.assertTrue(named or cell.startswith("none: "), number)

    def test_no_copy_of_a_large_file(self):
        path = make("LARGE")
        os.truncate(path, 70 << 20)
        folders = ROOT / "temporary"
        folders.mkdir()
        done = subprocess.run([COMMAND, "validate-plugin", path, "--seed", "1", "--draws", "0", "--only", "process.second_copy", "--json"],
                              env={**os.environ, "TMPDIR": str(folders)}, capture_output=True, text=True, check=True)
        check, = json.loads(done.stdout)["checks"]
        self.assertEqual((check["verdict"], check["reason"]), ("not applicable", "no copy of its file: files of at most 64 MiB may be written"))
        self.assertEqual(list(folders.iterdir()), [])

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

    def test_ctrl_c_does_not_wait_for_a_check(self):
        path = ROOT / "RUN_HANGS" / "faulty.so"
        path = path if path.exists() else make("RUN_HANGS")
        with subprocess.Popen([COMMAND, "validate-plugin", path, "--only", "memory.fences", "--timeout", "600"], stdout=subprocess.PIPE, text=True) as running:
            running.stdout.readline()
            time.sleep(1)
            start = time.monotonic()
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=60)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(running.returncode, 130)

    def test_files_that_are_none(self):
        link = ROOT / "link.so"
        link.symlink_to(link)
        done = validate(link)
        self.assertEqual(done.returncode, 6)
        self.assertIn("Too many levels of symbolic links", done.stderr)
        pipe = ROOT / "of\nlines.so"
        os.mkfifo(pipe)
        done = validate(pipe, "--seed", "1", "--only", "stream.chunks", "--timeout", "30")
        self.assertEqual(done.returncode, 8)
        self.assertRegex(done.stdout, r"^\S+/of lines\.so: 1 check, seed 1, 4 draws\nfailed +stream\.chunks: is no regular file\n")


if __name__ == "__main__":
    unittest.main()
