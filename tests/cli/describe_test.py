"""doctor, plugins, validate and inspect: what they print, and what they refuse."""

import pathlib
import re
import unittest

import tiny_model
from command import COMMAND, SAMPLE, CommandTest

# The plugins beside the command; adding a mechanism edits no test.
MECHANISMS = sorted(f.stem for f in (pathlib.Path(COMMAND).parents[1] / "lib/attnkit/1").glob("*.so")
                    if not f.stem.endswith("-cuda"))

TEN_MISTAKES = """schema = "attnkit.model/1"
[model]
name = "ten"
kind = "encoder-decoder"
d_model = 18
heads = 4
ffn = "wide"
encoder = { layers = 1, vocab = "vocab.txt" }
decoder = { layers = 2, vocab = "nowhere.txt" }
colour = "blue"
[weights]
file = "missing.safetensors"
[attention]
default = "sofmax"
"encoder.self" = { use = "leap", facter = 4 }
"decoder.self" = { use = "relu", guard = "clmp" }
[[attention.override]]
block = "decoder.self"
layers = "2..7"
use = { use = "relu", eps = "big" }
"""


class Doctor(CommandTest):
    def test_lists_plugins(self):
        result = self.run_ok("doctor")
        for name in MECHANISMS:
            self.assertIn(f"{name}.so", result.out)
        document = self.run_ok("doctor", "--json").json()
        self.assertEqual([p["name"] for p in document["plugins"] if p["device"] == "cpu"], MECHANISMS)
        self.assertLessEqual({"cosformer", "leap", "relu", "softmax"}, set(MECHANISMS))
        self.assertTrue(document["ok"])

    def test_says_why_a_file_was_skipped(self):
        (self.folder / "broken.so").write_bytes(b"no library")
        result = self.run_ok("doctor", "--plugin-dir", self.folder)
        self.assertRegex(result.out, r"1 skipped:\n.*broken\.so\n +\S")
        self.assertEqual(len(self.run_ok("doctor", "--plugin-dir", self.folder, "--json").json()["skipped"]), 1)

    def test_shows_what_breaks_the_contract(self):
        folder = self.plugin_folder("no_ports", "nan_run")
        result = self.run_ok("doctor", "--plugin-dir", folder)
        self.assertRegex(result.out, r"\n1 breaks the contract:\n  no_ports +cpu +.*no_ports\.so\n    no_ports: create succeeded")
        broken = self.run_ok("doctor", "--plugin-dir", folder, "--json").json()["broken"]
        self.assertEqual([(b["name"], b["device"]) for b in broken], [("no_ports", "cpu")])
        self.assertIn("the plugin is faulty", broken[0]["reason"])
        self.assertEqual(self.run_ok("doctor", "--json").json()["broken"], [])
        self.assertNotIn("contract", self.run_ok("doctor").out)

    def test_relative_plugin_folder(self):
        result = self.run_ok("doctor", "--plugin-dir", ".", "--json", cwd=self.folder)
        self.assertEqual(pathlib.Path(result.json()["search_path"][0]).resolve(), self.folder.resolve())


class Plugins(CommandTest):
    def test_table(self):
        # Variants for other devices are there only where their compiler was.
        lines = [line for line in self.run_ok("plugins").lines() if " cpu " in line]
        self.assertEqual([line.split()[0] for line in lines], MECHANISMS)
        self.assertRegex("\n".join(lines), r"(?m)^softmax +cpu +all +yes +yes +512\.0 KiB +4\.00 MiB")

    def test_page(self):
        page = self.run_ok("plugins", "leap").out
        for part in ["Agostinelli", "factor", "q_w1", "8x32", "decoder.cross: yes", "no streaming:"]:
            self.assertIn(part, page)
        places = self.run_ok("plugins", "cosformer").out
        self.assertIn("encoder.self, causal: yes, given the source's whole length; ", places)
        self.assertIn("decoder.self, causal: yes, given the target's whole length; ", places)
        self.assertIn("streams, given the target's and the source's whole length; ", places)
        self.assertEqual(self.run_ok("plugins", "leap", "--json").json()["plugins"][0]["name"], "leap")

    def test_a_skipped_file_says_why(self):
        (self.folder / "mine.so").write_bytes(b"no library")
        (self.folder / "yours-cuda.so").write_bytes(b"neither")
        for name, file in (("mine", "mine.so"), ("yours", "yours-cuda.so")):
            result = self.run_code(4, "plugins", name, "--plugin-dir", self.folder)
            self.assertIn(f'mechanism "{name}" cannot be used: {self.folder / file}: is no library', result.err)
            document = self.run_code(4, "plugins", name, "--plugin-dir", self.folder, "--json").json()
            self.assertIn("is no library", document["message"])

    def test_texts_are_shown_and_not_obeyed(self):
        folder = self.plugin_folder("colourful")
        for command in (["plugins", "colourful"], ["plugins", "colourful", "--json"], ["plugins"], ["doctor"]):
            out = self.run_ok(*command, "--plugin-dir", folder).out
            self.assertFalse([c for c in out if c != "\n" and (ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0)], command)
        self.assertIn("red  [31m 1m and a byte \ufffd\n", self.run_ok("plugins", "colourful", "--plugin-dir", folder).out)
        self.assertEqual(self.run_ok("plugins", "colourful", "--plugin-dir", folder, "--json").json()["plugins"][0]["citation"],
                         "red  [31m 1m and a byte \ufffd")

    def test_a_name_is_shown_and_not_obeyed(self):
        original = (self.plugin_folder("colourful") / "colourful.so").read_bytes()
        folder = self.folder / "named"
        folder.mkdir()
        (folder / "colourful.so").write_bytes(original.replace(b"colourful", b"co\x1b[31m\nx"))
        out = self.run_ok("doctor", "--plugin-dir", folder).out
        self.assertIn('its name "co [31m x" is not of the form', out)
        self.assertFalse([c for c in out if c != "\n" and ord(c) < 0x20])

    def test_a_folder_that_is_refused_says_so(self):
        folder = self.folder / "open"
        folder.mkdir()
        (folder / "mine.so").write_bytes(b"no library")
        folder.chmod(0o777)
        self.assertIn(f'mechanism "mine" cannot be used: {folder}: ', self.run_code(4, "plugins", "mine", "--plugin-dir", folder).err)

    def test_a_plugin_that_ends_the_process_is_told_of(self):
        result = self.run_code(4, "bench", "--block", "exit_run", "--role", "encoder.self", "--against", "none", "--length", "16",
                               "--plugin-dir", self.plugin_folder("exit_run"))
        self.assertIn("a plugin ended the process", result.err)

    def test_unknown_name(self):
        self.assertIn('did you mean "cosformer"?', self.run_code(4, "plugins", "cosfromer").err)
        found = self.run_code(4, "plugins", "nothing").err.split("found were: ")[1].strip().split(", ")
        self.assertEqual(found, sorted(set(found)))


class Validate(CommandTest):
    def test_sample(self):
        self.assertRegex(self.run_ok("validate", SAMPLE).out, r"model\.toml: ok, 9 blocks, 1\.0\d M parameters\n$")

    def test_ten_mistakes_at_once(self):
        tiny_model.write_model(self.folder)
        path = self.folder / "ten.toml"
        path.write_text(TEN_MISTAKES)
        result = self.run_code(3, "validate", path)
        places = [tuple(map(int, m)) for m in re.findall(r"ten\.toml:(\d+):(\d+): error\[AK\d+\]: ", result.out)]
        self.assertEqual(places, sorted(places))
        # heads, ffn, vocab, colour, file, default, facter, guard, layers, eps
        self.assertEqual([line for line, _ in places], [6, 7, 9, 10, 12, 14, 15, 16, 19, 20], result.out)
        self.assertGreaterEqual(result.out.count("\n  help: "), 5)
        document = self.run_code(3, "validate", path, "--json").json()
        self.assertEqual((document["ok"], len(document["diagnostics"])), (False, 10))

    def test_search(self):
        path = tiny_model.write_model(self.folder)
        text = path.read_text()
        path.write_text(text + '[search]\nspace = { "encoder.self" = ["softmax", "relu"] }\ndata = "none.tsv"\n')
        self.assertRegex(self.run_ok("validate", path).out, r"model\.toml: ok, 3 blocks")
        self.assertEqual(self.run_ok("validate", path, "--json").json()["diagnostics"], [])
        search = self.run_ok("inspect", path, "--json").json()["search"]
        self.assertEqual([c["label"] for c in search["space"]["encoder.self"]], ["softmax", "relu"])
        self.assertEqual(search["data"], str(self.folder / "none.tsv"))
        path.write_text(text + '[search]\nspace = { "encoder.self" = ["softmax", "softmax"] }\nrank = "rpc"\n')
        line = text.count("\n") + 2
        result = self.run_code(3, "validate", path).out
        self.assertRegex(result, rf"model\.toml:{line}:40: error\[AK215\]: ")
        self.assertIn(f'model.toml:{line + 1}:8: error[AK104]: "rank" cannot be "rpc"; did you mean "rcp"?', result)

    def test_exit_code_is_the_area_of_the_first_error(self):
        for code, line, other in [(3, "heads = 2", "heads = 5"), (4, 'default = "softmax"', 'default = "sofmax"'),
                                  (5, 'file = "tiny.safetensors"', 'file = "other.safetensors"'),
                                  (6, 'encoder = { layers = 1, vocab = "vocab.txt" }', 'encoder = { layers = 1, vocab = "v.txt" }')]:
            path = tiny_model.write_model(self.folder)
            path.write_text(path.read_text().replace(line, other))
            result = self.run_code(code, "validate", path)
            self.assertRegex(result.out, r"model\.toml:\d+:\d+: error\[AK\d+\]: ")
            run = self.run_code(code, "run", path, "--text", "one")
            self.assertEqual(run.out, "")
            self.assertIn("error[AK", run.err)
            self.assertEqual(len(self.run_code(code, "run", path, "--text", "one", "--json").json()["diagnostics"]), 1)

    def test_damaged_weights(self):
        path = tiny_model.write_model(self.folder)
        weights = self.folder / "tiny.safetensors"
        weights.write_bytes(weights.read_bytes()[:-5])
        self.assertIn("SHA-256", self.run_code(5, "validate", path).out)

    def test_what_is_no_manifest(self):
        (self.folder / "binary.toml").write_bytes(bytes(range(256)))
        (self.folder / "empty.toml").write_bytes(b"")
        self.run_code(3, "validate", self.folder / "binary.toml")
        self.run_code(3, "validate", self.folder / "empty.toml")
        for path in [self.folder, self.folder / "missing.toml", "/dev/null", ""]:
            self.run_code(6, "validate", path)


class Inspect(CommandTest):
    def test_grid_names_the_deciding_line(self):
        path = tiny_model.write_model(self.folder, attention='default = "softmax"\n"decoder.cross" = "leap"')
        lines = path.read_text().splitlines()
        row = next(line for line in self.run_ok("inspect", path).lines() if line.strip().startswith("1 "))
        cells = re.findall(r"([a-z]+) +(\d+):(\d+)", row)
        self.assertEqual([c[0] for c in cells], ["softmax", "softmax", "leap"])
        for mechanism, line, column in cells:
            self.assertTrue(lines[int(line) - 1][int(column) - 1:].startswith(f'"{mechanism}"'), row)

    def test_json_is_the_description(self):
        document = self.run_ok("inspect", SAMPLE, "--lengths", "64,4096", "--json").json()
        self.assertEqual(document["schema"], "attnkit.model-description/1")
        self.assertEqual([c["length"] for c in document["blocks"][0]["costs"]], [64, 4096])
        d, ffn, layers, tokens = 128, 256, 3, 64
        encoder, decoder = 4 * d * d + 2 * d * ffn, 8 * d * d + 2 * d * ffn
        attention = sum(block["costs"][0]["flops"] for block in document["blocks"])
        vocabulary = len((SAMPLE.parent / "vocab.txt").read_text().splitlines())
        self.assertEqual(document["costs"][0]["flops"] - attention, 2 * tokens * (layers * (encoder + decoder) + d * vocabulary))

    def test_swapping_one_line_swaps_one_mechanism(self):
        text = SAMPLE.read_text().replace('"decoder.cross" = "softmax"', '"decoder.cross" = "leap"')
        text = re.sub(r'"([\w.-]+\.(?:txt|safetensors))"', lambda m: f'"{SAMPLE.parent / m[1]}"', text)
        path = self.folder / "swapped.toml"
        path.write_text(text)
        blocks = self.run_ok("inspect", path, "--json").json()["blocks"]
        self.assertEqual({b["mechanism"] for b in blocks if b["role"] == "decoder.cross"}, {"leap"})


if __name__ == "__main__":
    unittest.main()
