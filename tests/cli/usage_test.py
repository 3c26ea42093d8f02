"""Usage: help, suggestions, exit codes, JSON on standard output and nothing else."""

import os
import shutil
import unittest

from command import SAMPLE, CommandTest

SUBCOMMANDS = ["doctor", "plugins", "validate", "inspect", "run", "stream", "verify", "bench", "search", "report", "bundle"]


class Usage(CommandTest):
    def test_no_arguments_print_the_help(self):
        result = self.run_ok()
        self.assertEqual(result.out, self.run_ok("--help").out)
        self.assertEqual(result.err, "")

    def test_options_without_subcommand(self):
        for arguments in [["--threads", "1"], ["--json"], ["--progress", "none", "--json"]]:
            result = self.run_code(2, *arguments)
            self.assertEqual(result.err, "attnkit: no subcommand given\n  help: attnkit --help lists them\n")

    def test_help_names_every_subcommand(self):
        for result in (self.run_ok("--help"), self.run_ok("help"), self.run_ok("-h")):
            for name in SUBCOMMANDS:
                self.assertIn(f"\n  {name}", result.out)

    def test_help_of_every_subcommand(self):
        for name in SUBCOMMANDS:
            result = self.run_ok(name, "--help")
            self.assertTrue(result.out.startswith(f"usage: attnkit {name}"), result.out)
            self.assertEqual(self.run_ok("help", name).out, result.out)

    def test_version(self):
        self.assertRegex(self.run_ok("--version").out, r"^attnkit \d+\.\d+\.\d+ \(ABI 1\.\d+\)\n$")
        self.assertEqual(self.run_ok("--version", "--json").json()["schema"], "attnkit.version/1")

    def test_unknown_subcommands_name_the_nearest(self):
        for wrong, right in {"inspct": "inspect", "docter": "doctor", "valid": "validate", "plugin": "plugins"}.items():
            self.assertIn(f'unknown subcommand "{wrong}"; did you mean "{right}"?', self.run_code(2, wrong).err)
        self.assertIn('unknown subcommand "frobnicate"\n  help: subcommands are: doctor', self.run_code(2, "frobnicate").err)

    def test_unknown_options_name_the_nearest(self):
        for arguments, right in [(["run", SAMPLE, "--txt", "x"], "--text"), (["inspect", SAMPLE, "--lenghts=4"], "--lengths"),
                                 (["doctor", "--jsn"], "--json"), (["bench", "--blok", "relu"], "--block")]:
            self.assertIn(f'did you mean "{right}"?', self.run_code(2, *arguments).err)

    def test_wrong_values(self):
        for arguments in [["run", SAMPLE, "--text", "x", "--beams", "0"], ["run", SAMPLE, "--text", "x", "--beams", "-1"],
                          ["run", SAMPLE, "--text", "x", "--batch", "4x"], ["run", SAMPLE, "--text", "x", "--limit", "9" * 30],
                          ["inspect", SAMPLE, "--lengths", "64,,3"], ["inspect", SAMPLE, "--lengths", "0"],
                          ["doctor", "--threads", "many"], ["doctor", "--threads", "1025"], ["doctor", "--progress", "baar"],
                          ["doctor", "--plugin-dir", ""], ["doctor", "--threads"], ["doctor", "surplus"],
                          ["run", SAMPLE, "other.toml"], ["run"], ["validate"], ["inspect"], ["run", SAMPLE],
                          ["run", SAMPLE, "--text", "a", "--file", "b"], ["run", SAMPLE, "--text", "a", "--text", "b", "--target", "c"],
                          ["inspect", SAMPLE, "--text", "one"], ["bench"], ["bench", "--block", "relu", "--role", "decoder.crss"],
                          ["bench", "--block", "relu", "--context", "0"], ["bench", "--block", "relu", "--heads", "5000"]]:
            result = self.run_code(2, *arguments)
            self.assertEqual(result.out, "")
            self.assertTrue(result.err.startswith("attnkit: "), result.err)

    def test_what_contradicts_itself(self):
        winner = self.folder / "winner.toml"
        winner.touch()
        for message, *arguments in [
                ("--block is for one block", "bench", SAMPLE, "--block", "relu"),
                ("--batch is for a model: name its manifest first", "bench", "--block", "relu", "--batch", 2),
                ("--batch does not go with --sessions", "bench", SAMPLE, "--sessions", 2, "--batch", 2),
                ("one length goes with --sessions, not 2", "bench", SAMPLE, "--sessions", 2, "--length", "8,16"),
                ("a file whose name ends in .toml is needed", "import", self.folder, "-o", winner, "--architecture", "own.txt"),
                ("17 lengths are too many", "inspect", SAMPLE, "--lengths", ",".join(map(str, range(1, 18)))),
                ("--json and --csv exclude each other", "inspect", SAMPLE, "--attention", "encoder.self.1", "--text", "one", "--json", "--csv"),
                ("RESULT is standard input: say with --output", "report", "-"),
                ("--table goes with neither --output nor --json", "report", "-", "--table", "--json"),
                ("--json writes to standard output, so --output cannot", "report", "-", "--json", "-o", "-"),
                ("--file and --target-file cannot both be standard input", "run", SAMPLE, "--file", "-", "--target-file", "-"),
                ("--target and --target-file exclude each other", "run", SAMPLE, "--text", "one", "--target", "zwei", "--target-file", winner),
                (f'"{winner}" is a file that this search would write', "search", winner, "-o", self.folder),
                ('--decode: "x" is no id', "tokenize", SAMPLE, "--decode", "1 x"),
                ("give either --text TEXT or --decode IDS", "tokenize", SAMPLE)]:
            with self.subTest(arguments):
                self.assertIn(message, self.run_code(2, *arguments).err)
        self.assertEqual(list(self.folder.iterdir()), [winner], "a mistake writes nothing")

    def test_tokenize_names_what_run_does(self):
        self.assertIn("--output cannot", self.run_code(2, "tokenize", SAMPLE, "--text", "one", "--json", "-o", "-").err)
        self.assertIn("standard input:2: ", self.run_code(6, "tokenize", SAMPLE, "--file", "-", stdin="one\n\u6771\n".encode()).err)

    def test_empty_names_of_files(self):
        for option, *arguments in (("test", "search", SAMPLE), ("data", "search", SAMPLE), ("output", "search", SAMPLE), ("file", "run", SAMPLE),
                                   ("output", "run", SAMPLE, "--text", "x"), ("golden", "verify", SAMPLE)):
            with self.subTest(option=option, command=arguments[0]):
                self.assertRegex(self.run_code(2, *arguments, f"--{option}", "").err, f"^attnkit: --{option} is empty: name a (file|folder)$")

    def test_global_options_before_the_subcommand(self):
        self.assertEqual(self.run_ok("--threads", "1", "--json", "doctor").json()["threads"], 1)

    def test_errors_as_json(self):
        for code, arguments in [(2, ["inspct"]), (2, ["run"]), (2, ["doctor", "--frob"]), (6, ["validate", "missing.toml"]),
                                (6, ["run", "missing.toml", "--text", "x"]), (4, ["plugins", "sofmax"])]:
            result = self.run_code(code, *arguments, "--json")
            document = result.json()
            self.assertEqual((document["schema"], document["exit"]), ("attnkit.error/1", code))
            self.assertIn(document["message"], result.err)

    def test_control_characters_are_shown_escaped(self):
        for given, shown in {"in\nspect": r"in\x0aspect", "\x1b[31minspect": r"\x1b[31minspect", "\x1f": r"\x1f", "\x7f": r"\x7f",
                             "a\tb": r"a\x09b", " é": " é"}.items():
            result = self.run_code(2, given)
            self.assertTrue(result.err.startswith(f'attnkit: unknown subcommand "{shown}"'), result.err)
            self.assertIn(f'unknown subcommand "{shown}"', self.run_code(2, given, "--json").json()["message"])

    def test_json_of_names_that_are_not_utf8(self):
        strange = os.fsdecode(b"x\xff\xc3y")
        self.assertIn('unknown subcommand "x\ufffd\ufffdy"', self.run_code(2, strange, "--json").json()["message"])
        self.assertIn("x\ufffd\ufffdy", self.run_code(6, "run", strange, "--text", "one", "--json").json()["message"])
        folder = self.folder / strange
        shutil.copytree(SAMPLE.parent, folder)
        text = folder / strange
        text.write_text("one\nbanana\n", encoding="utf-8")
        self.assertIn("x\ufffd\ufffdy:2: ", self.run_code(6, "run", folder / SAMPLE.name, "--file", text, "--json").json()["message"])
        text.write_text("one\n", encoding="utf-8")
        document = self.run_ok("run", folder / SAMPLE.name, "--file", text, "--json").json()
        self.assertEqual(document["schema"], "attnkit.run/1")
        self.assertEqual(self.run_ok("validate", folder / SAMPLE.name, "--json").json()["schema"], "attnkit.validation/1")


if __name__ == "__main__":
    unittest.main()
