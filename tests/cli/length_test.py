"""Target lengths as attnkit run, stream and inspect show them: predictors, and tokens beyond what was told."""

import struct
import json
import unittest

import tiny_model
from command import CommandTest

TEXTS = ["one two three four", "seven six five four three two one"]


def length(predict, more=""):
    return f'[length]\npredict = "{predict}"\n{more}'


def cosformer(beyond):
    return f'default = "softmax"\n"decoder.self" = {{ use = "cosformer", beyond = "{beyond}" }}'


def write_network(path, width, channels=3):
    """Tensors of zeros but for the last bias: every row lasts e^1.1 - 1, which rounds to 2."""
    shapes = {"out.bias": [1], "out.weight": [1, channels]}
    for layer, inputs in (("1", width), ("2", channels)):
        shapes[f"conv.{layer}.weight"] = [channels, inputs, 3]
        shapes |= {f"conv.{layer}.{name}": [channels] for name in ("bias", "norm.weight", "norm.bias")}
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1) * (shape[2] if len(shape) > 2 else 1)
        raw = struct.pack("<f", 1.1) if name == "out.bias" else bytes(4 * count)
        header["length." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Beyond(CommandTest):
    def model(self, beyond, extra):
        return tiny_model.write_model(self.folder / beyond, attention=cosformer(beyond), extra=extra)

    def test_tokens_beyond_are_counted_and_reported(self):
        for beyond in ("clamp", "saturate"):
            model = self.model(beyond, length("fixed", "length = 3\n"))
            for command in (["run", model], ["run", model, "--beams", 3], ["stream", model, "--policy", "offline"]):
                result = self.run_ok(*command, *[o for t in TEXTS for o in ("--text", t)], "--limit", 8, "--json")
                document = result.json()
                for r in document["results"]:
                    self.assertEqual(r["target_length"], 3)
                    self.assertEqual(r["beyond_target_length"], max(0, r["tokens"] - 3))
                over = [r["tokens"] - 3 for r in document["results"] if r["tokens"] > 3]
                self.assertTrue(over, "a tiny model that writes something")
                self.assertEqual(document["summary"]["beyond_target_length"], sum(over))
                verb = "is" if len(over) == 1 else "are"
                self.assertIn(f"{len(over)} of {len(TEXTS)} outputs {verb} longer than the target length that mechanisms were "
                              f"told, by {sum(over)} token{'' if sum(over) == 1 else 's'} in all\n", result.err)

    def test_error_refuses_what_goes_beyond(self):
        model = self.model("error", length("fixed", "length = 3\n"))
        for command in (["run", model], ["stream", model, "--policy", "offline"]):
            result = self.run_code(6, *command, "--text", TEXTS[0], "--limit", 8)
            self.assertIn("token 4 is beyond the target length 3 that a mechanism was told", result.err)
            self.run_ok(*command, "--text", TEXTS[0], "--limit", 3)

    def test_nothing_is_said_where_it_matters_to_nobody(self):
        enough = self.model("clamp", length("fixed", "length = 64\n"))
        result = self.run_ok("run", enough, "--text", TEXTS[0], "--json")
        self.assertEqual(result.json()["results"][0]["beyond_target_length"], 0)
        self.assertNotIn("target length", result.err)
        softmax = tiny_model.write_model(self.folder / "softmax", extra=length("fixed", "length = 1\n"))
        result = self.run_ok("run", softmax, "--text", TEXTS[0], "--json")
        self.assertNotIn("target_length", result.json()["results"][0])
        self.assertNotIn("target length", result.err)


class Predictors(CommandTest):
    def test_table(self):
        model = tiny_model.write_model(self.folder / "lut", attention=cosformer("clamp"),
                                       extra=length("lut", 'lut = "lengths.tsv"\ndampening = 2\n'))
        (self.folder / "lut" / "lengths.tsv").write_text("▁one\t3\n▁two\t5\n</s>\t1\n", encoding="utf-8")
        result = self.run_ok("run", model, "--text", "one two two", "--text", "seven", "--json")
        self.assertEqual([r["target_length"] for r in result.json()["results"]], [7, 2])
        shown = self.run_ok("inspect", model)
        self.assertIn("target length: lut (", shown.out)
        self.assertIn("dampening 2.0, tokens 3, mean 3.0), needed by decoder.self.1\n", shown.out)
        (self.folder / "lut" / "lengths.tsv").write_text("▁one\t3\n▁nine\t5\n", encoding="utf-8")
        refused = self.run_code(6, "validate", model)
        self.assertRegex(refused.out + refused.err, r"model\.toml:\d+:7: error\[AK122\]: .*lengths\.tsv:2: token \"▁nine\"")

    def test_network(self):
        model = tiny_model.write_model(self.folder / "network", attention='default = "softmax"\n"decoder.cross" = "cosformer"',
                                       extra=length("network", 'file = "length.safetensors"\n'))
        write_network(self.folder / "network" / "length.safetensors", tiny_model.WIDTH)
        texts = [o for t in TEXTS for o in ("--text", t)]
        for batch in (1, 2):
            result = self.run_ok("run", model, *texts, "--batch", batch, "--json").json()
            self.assertEqual([r["target_length"] for r in result["results"]], [10, 16])
        self.assertIn("needed by decoder.cross.1\n", self.run_ok("inspect", model).out)
        self.assertEqual(self.run_ok("inspect", model, "--json").json()["length"]["parameters"], 3 * 16 * 3 + 3 * 3 * 3 + 6 * 3 + 3 + 1)
        grown = self.run_ok("stream", model, "--policy", "wait-k:1", "--replay", "--text", TEXTS[0], "--json")
        self.assertEqual(grown.json()["results"][0]["target_length"], 10)
        self.assertGreater(grown.json()["summary"]["tokens_predicted_again"], 0)
        self.assertIn(" in the prediction of lengths\n", grown.err)


if __name__ == "__main__":
    unittest.main()
