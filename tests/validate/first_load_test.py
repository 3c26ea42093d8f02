"""A plugin that does harm while it is loaded costs itself, not the command that finds it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from faults import LIBRARIES

COMMAND, FAULTY = pathlib.Path(os.environ["ATTNKIT"]), pathlib.Path(os.environ["ATTNKIT_FAULTY"])
MODEL = pathlib.Path(os.environ["ATTNKIT_SAMPLE"]) / "model.toml"
TEXT, TRANSLATION = "two hundred and forty-one euros", "zweihunderteinundvierzig Euro\n"
HARM = {
    "ENTRY_CRASHES": "was killed by signal 11 (Segmentation fault) when it was loaded",
    "ENTRY_EXITS": "ended with code 0 when it was loaded",
    "ENTRY_PRINTS": 'printed "a plugin was here"',
    "ENTRY_REDIRECTS": "changed its files: descriptor 1 from /memfd:output (deleted) to /dev/null when it was loaded",
    "ENTRY_CLOSES": "changed its files: descriptor 1 from /memfd:output (deleted) to nothing when it was loaded",
    "ENTRY_SETS_TIMER": "set a timer, or stopped one when it was loaded",
    "CREATE_CRASHES": "was killed by signal 11 (Segmentation fault) when it was created in encoder.self",
    "CREATE_THROWS": "threw an exception when it was created in encoder.self: created",
    "DESTROY_THROWS": "threw an exception when it was destroyed in encoder.self: destroyed",
    "PLAN_CRASHES": "was killed by signal 11 (Segmentation fault) when it was planned",
    "PLAN_ABORTS": "was killed by signal 6 (Aborted) when it was planned",
    "PLAN_EXITS": "ended with code 0 when it was planned",
}


class FirstLoad(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.home = self.root / "cache"

    def attnkit(self, *arguments, command=COMMAND, home=None, code=0):
        environment = os.environ | {"XDG_CACHE_HOME": str(home or self.home)}
        done = subprocess.run([command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def cache(self):
        return next((self.home / "attnkit").glob("plugins-*.tsv"))

    def plugin(self, name, folder=None):
        folder = self.root / (folder or name)
        folder.mkdir()
        data = (FAULTY / f"{LIBRARIES.get(name, 'faulty')}.so").read_bytes()
        (folder / "faulty.so").write_bytes(re.sub(rb"MISDEED:GOOD\0{28}", lambda _: b"MISDEED:" + name.encode().ljust(32, b"\0"), data))
        return folder

    def skipped(self, folder, *options, **how):
        said = json.loads(self.attnkit("doctor", "--json", "--plugin-dir", folder, *options, **how))
        return [s["reason"] for s in said["skipped"] if s["path"].startswith(str(folder))]

    def test_harm_is_named_and_costs_nothing_else(self):
        for name, words in HARM.items():
            folder = self.plugin(name)
            with self.subTest(name):
                self.assertEqual(self.attnkit("run", MODEL, "--text", TEXT, "--plugin-dir", folder), TRANSLATION)
                self.assertIn("softmax", [p["name"] for p in json.loads(self.attnkit("plugins", "--json", "--plugin-dir", folder))["plugins"]])
                reason, = self.skipped(folder)
                self.assertIn(words, reason)
                self.assertIn("attnkit doctor --rescan", reason)
                self.assertIn(words, self.attnkit("doctor", "--plugin-dir", folder))

    def test_an_exception_is_caught_in_every_process(self):
        folder, words = self.plugin("ENTRY_THROWS"), "is broken: attn_plugin_main_v1 threw an exception: entered"
        for _ in range(2):  # untried, and known
            self.assertEqual(self.attnkit("run", MODEL, "--text", TEXT, "--plugin-dir", folder), TRANSLATION)
            self.assertEqual(self.skipped(folder), [words])
            self.assertIn(words, self.attnkit("doctor", "--plugin-dir", folder))

    def test_a_good_one_is_loaded(self):
        said = json.loads(self.attnkit("plugins", "faulty", "--json", "--plugin-dir", self.plugin("GOOD")))
        self.assertEqual([p["name"] for p in said["plugins"]], ["faulty"])

    def test_one_that_hangs_is_waited_for_once(self):
        words = "did not end within 10 s when it was loaded"
        self.assertIn(words, self.skipped(self.plugin("ENTRY_HANGS"))[0])
        start = time.monotonic()
        self.assertIn(words, self.skipped(self.root / "ENTRY_HANGS")[0])
        # The same bytes at another place.
        self.assertIn(words, self.skipped(self.plugin("ENTRY_HANGS", "elsewhere"))[0])
        self.assertLess(time.monotonic() - start, 9)

    def test_what_is_known_is_not_tried_again(self):
        folder = self.plugin("ENTRY_CRASHES")
        self.skipped(folder)
        before = self.cache().stat()
        lines = self.cache().read_text()
        self.skipped(folder)
        after = self.cache().stat()
        self.assertEqual((before.st_ino, before.st_mtime_ns), (after.st_ino, after.st_mtime_ns))
        self.cache().write_text(lines.replace(HARM["ENTRY_CRASHES"], "did something else"))
        self.assertIn("did something else", self.skipped(folder)[0])
        self.assertIn(HARM["ENTRY_CRASHES"], self.skipped(folder, "--rescan")[0])

    def test_of_too_many_those_in_use_stay(self):
        folder = self.plugin("ENTRY_CRASHES")
        self.skipped(folder)
        known = self.cache().read_text()
        self.cache().write_text(known + "".join(f"~{i:04}\t{'0' * 64}\t\n" for i in range(1100)))
        shutil.copy(FAULTY / "faulty.so", folder / "other.so")
        self.skipped(folder)
        lines = self.cache().read_text().splitlines()
        self.assertEqual(len(lines), len(known.splitlines()) + 1 + 1000)
        self.assertLessEqual(set(known.splitlines()), set(lines))

    def test_a_file_that_changed_is_tried(self):
        folder = self.plugin("ENTRY_CRASHES")
        self.assertEqual(len(self.skipped(folder)), 1)
        shutil.copy(FAULTY / "faulty.so", folder / "faulty.so")
        self.assertEqual(self.skipped(folder), [])

    def test_no_place_to_keep_it(self):
        for home in ("/proc/nowhere", "relative"):
            self.assertIn(HARM["ENTRY_CRASHES"], self.skipped(self.plugin("ENTRY_CRASHES", home.strip("/")[:4]), home=home)[0])

    def test_a_damaged_cache_is_none(self):
        folder = self.plugin("ENTRY_CRASHES")
        self.skipped(folder)
        for text in (b"", b"\0\xff\n\t\t\t\n", b"one\ttwo\n" * 1000):
            self.cache().write_bytes(text)
            self.assertIn(HARM["ENTRY_CRASHES"], self.skipped(folder)[0])

    def test_many_at_once(self):
        folder = self.plugin("ENTRY_CRASHES")
        environment = os.environ | {"XDG_CACHE_HOME": str(self.home)}
        command = [COMMAND, "plugins", "--json", "--plugin-dir", str(folder)]
        running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(8)]
        said = [json.loads(process.communicate(timeout=60)[0])["plugins"] for process in running]
        self.assertEqual(len({len(plugins) for plugins in said}), 1)
        for line in self.cache().read_text().splitlines():
            self.assertRegex(line, r"^\d+:\d+:\d+:\d+:/[^\t]+\t[0-9a-f]{64}\t[^\t]*$")
        self.assertEqual([f.name for f in self.cache().parent.iterdir()], [self.cache().name])

    def install(self):
        """A tree with one plugin and without the program that tries it."""
        lib = COMMAND.parent.parent / "lib"
        (self.root / "bin").mkdir()
        shutil.copy(COMMAND, self.root / "bin/attnkit")
        (self.root / "lib/attnkit/1").mkdir(parents=True)
        shutil.copy(lib / "libattnkit.so.1", self.root / "lib")
        shutil.copy(lib / "attnkit/1/relu.so", self.root / "lib/attnkit/1")
        return lib / "attnkit/attnkit-plugin-process"

    def test_a_start_with_all_known_starts_no_process(self):
        program, started = self.install(), self.root / "started"
        counting = self.root / "lib/attnkit/attnkit-plugin-process"
        counting.write_text(f'#!/bin/sh\necho >> "{started}"\nexec "{program}" "$@"\n')
        counting.chmod(0o755)
        for _ in range(3):
            self.assertIn("relu", self.attnkit("plugins", command=self.root / "bin/attnkit"))
            self.assertEqual(started.read_text(), "\n")

    def test_without_the_program_doctor_says_so(self):
        self.install()
        said = self.attnkit("doctor", command=self.root / "bin/attnkit")
        self.assertIn("new plugins are loaded untried", said)
        self.assertIn("relu", said)
        said = subprocess.run([self.root / "bin/attnkit", "validate-plugin", "--list"], capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 1)
        self.assertIn("attnkit-plugin-process is not beside libattnkit", said.stderr)


if __name__ == "__main__":
    unittest.main()
