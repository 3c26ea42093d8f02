"""attnkit quantize: weights of fewer bits in files, with the answers of [weights] type, and what it says of them."""

import array
import json
import math
import platform
import re
import shutil
import struct
import unittest

from bundle_test import PHRASES, tensors
from command import SAMPLE, CommandTest

MANIFESTS = SAMPLE.parent.parent.parent / "manifests"


def absolute(path):
    """A manifest's text with its files where they are."""
    return re.sub(r'"([\w./-]+\.(?:txt|tsv|safetensors))"', lambda m: f'"{(path.parent / m[1]).resolve()}"', path.read_text())


def shape_of(path, name):
    raw = path.read_bytes()
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])[name]["shape"]


class Quantize(CommandTest):
    def setUp(self):
        super().setUp()
        self.made = self.folder / "made"

    def typed(self, path, kind):
        """The same model, whose weights become that type while they load."""
        model = self.folder / f"{kind}.toml"
        model.write_text(absolute(path).replace("[weights]\n", f'[weights]\ntype = "{kind}"\n', 1))
        return model

    def quantize(self, path, *options):
        return self.run_ok("quantize", path, "-o", self.made, "--json", *options).json()

    def vectors(self, manifest):
        out = self.folder / "vectors.npy"
        self.run_ok("run", manifest, "--text", "one two", "--text", "three hundred", "--output", out)
        return out.read_bytes()

    def translations(self, manifest):
        return self.run_ok("run", manifest, *[o for p in PHRASES for o in ("--text", p)], "--json").json()["results"]

    def test_a_type_that_a_processor_multiplies_slowly_says_what_it_costs(self):
        for kind, slow in (("f32", False), ("bf16", False), ("int8", True), ("int4", True)):
            model = self.typed(SAMPLE, kind)
            for instructions, words in (("baseline", "five to ten times as long as with f32"), ("avx2", "at best two thirds of the time with f32")):
                err = self.run_ok("run", model, "--text", PHRASES[0], env={"ATTNKIT_INSTRUCTIONS": instructions}).err
                if instructions == "baseline" or platform.machine() == "x86_64":
                    self.assertEqual(slow, "AK405" in err and words in err, (kind, instructions, err))

    def test_vectors_are_those_of_the_type(self):
        for kind in ("int8", "bf16", "int4"):
            model = MANIFESTS / "sentence-encoder.toml"
            expected = self.vectors(self.typed(model, kind))
            self.quantize(model, "--type", kind)
            self.assertEqual(self.vectors(self.made / "model.toml"), expected, kind)
            plain = self.folder / "plain.toml"
            plain.write_text((self.made / "model.toml").read_text().replace(f'type = "{kind}"\n', ""))
            shutil.copy(self.made / "weights.safetensors", self.folder)
            shutil.copy(self.made / "vocab.txt", self.folder)
            # Of bf16 the weights alone are rounded; with integers the inputs are as well.
            (self.assertEqual if kind == "bf16" else self.assertNotEqual)(self.vectors(plain), expected)
            shutil.rmtree(self.made)

    def test_a_language_model(self):
        model = MANIFESTS / "language-model.toml"
        said = [self.run_ok("run", m, "--text", "two hundred", "--limit", 12).out
                for m in (self.typed(model, "int8"),)]
        self.quantize(model)
        said.append(self.run_ok("run", self.made / "model.toml", "--text", "two hundred", "--limit", 12).out)
        self.assertEqual(said[0], said[1])

    def test_the_sample(self):
        document = self.quantize(SAMPLE, "--examples", "200")
        report = document["report"]
        self.assertEqual(json.loads((self.made / "report.json").read_text()), report)
        self.assertEqual((report["schema"], report["type"]), ("attnkit.quantize/1", "int8"))
        self.assertLess(report["bytes"]["after"], 0.75 * report["bytes"]["before"])  # what adapters scale stays f32
        self.assertEqual(report["rounded_at_opening"], 3 * (3 + 6))  # q, k and o of each block
        quality = report["quality"]
        self.assertEqual((quality["metric"], quality["examples"]), ("exact", 200))
        self.assertGreater(quality["after"]["value"], 90)
        self.assertLess(abs(quality["after"]["value"] - quality["before"]["value"]), 2)
        self.assertLessEqual(quality["after"]["low"], quality["after"]["value"])
        # Errors and numbers are what a plain loop makes of the file.
        self.run_ok("bundle", SAMPLE, "-o", self.folder / "whole")
        name = "encoder.embed.weight"
        kept = tensors(self.made / "weights.safetensors")
        self.assertEqual(kept[name][0], "I8")
        outputs, inputs = shape_of(self.made / "weights.safetensors", name)
        numbers, scales = array.array("b", kept[name][1]), array.array("f", kept[name + ".scale"][1])
        self.assertEqual(len(scales), outputs)
        whole = tensors(self.folder / "whole" / "numbers-en-de.safetensors")[name]
        values = [struct.unpack("<e", whole[1][i:i + 2])[0] for i in range(0, len(whole[1]), 2)]
        self.assertEqual(whole[0], "F16")
        off = size = 0.0
        for i, w in enumerate(values):
            scale = scales[i // inputs]
            self.assertLessEqual(abs(w - numbers[i] * scale), 0.50001 * scale)
            off += (w - numbers[i] * scale) ** 2
            size += w * w
        error = next(l["error"] for l in report["layers"] if l["name"] == name)
        self.assertAlmostEqual(error, math.sqrt(off / size), delta=1e-4 * error)
        # Once more changes nothing, and a bundle keeps the scales.
        weights = (self.made / "weights.safetensors").read_bytes()
        for command in (("quantize", "--type", "int8"), ("bundle",)):
            again = self.folder / command[0]
            self.run_ok(command[0], self.made / "model.toml", "-o", again, *command[1:])
            self.assertEqual(tensors(again / "weights.safetensors"), tensors(self.made / "weights.safetensors"))
        self.assertEqual(self.translations(self.made / "model.toml"), self.translations(self.folder / "bundle" / "model.toml"))
        self.assertEqual(weights, (self.made / "weights.safetensors").read_bytes())

    def test_int4(self):
        document = self.quantize(SAMPLE, "--type", "int4", "--examples", "200")
        report = document["report"]
        self.assertEqual(report["type"], "int4")
        self.assertGreater(report["quality"]["after"]["value"], 80)
        name = "encoder.embed.weight"
        outputs, width = shape_of(self.made / "weights.safetensors", name)
        inputs = 2 * width
        self.assertEqual(shape_of(self.made / "weights.safetensors", name + ".scale"), [outputs, inputs // 32])
        kept = tensors(self.made / "weights.safetensors")
        self.assertEqual(kept[name][0], "U8")
        scales = array.array("f", kept[name + ".scale"][1])
        self.run_ok("bundle", SAMPLE, "-o", self.folder / "whole")
        whole = tensors(self.folder / "whole" / "numbers-en-de.safetensors")[name]
        values = [struct.unpack("<e", whole[1][i:i + 2])[0] for i in range(0, len(whole[1]), 2)]
        off = size = 0.0
        for i, w in enumerate(values):
            half = (kept[name][1][i // 2] >> i % 2 * 4 & 15) - 8
            scale = scales[i // inputs * (inputs // 32) + i % inputs // 32]
            self.assertLessEqual(abs(w - half * scale), 1.00001 * abs(scale))
            off += (w - half * scale) ** 2
            size += w * w
        error = next(l["error"] for l in report["layers"] if l["name"] == name)
        self.assertAlmostEqual(error, math.sqrt(off / size), delta=1e-4 * error)
        # Once more changes nothing, and a bundle keeps the scales.
        for command in (("quantize", "--type", "int4"), ("bundle",)):
            again = self.folder / command[0]
            self.run_ok(command[0], self.made / "model.toml", "-o", again, *command[1:])
            self.assertEqual(tensors(again / "weights.safetensors"), tensors(self.made / "weights.safetensors"))

    def test_what_it_prints(self):
        said = self.run_ok("quantize", MANIFESTS / "sentence-encoder.toml", "-o", self.made, "--rows", "2").out
        self.assertIn("quality: not measured, no data is given (--data FILE)", said)
        self.assertRegex(said, r"and \d+ layers that lose less")
        self.assertIn(f"{self.made}/model.toml runs it", said)

    def test_refusals(self):
        model = MANIFESTS / "sentence-encoder.toml"
        self.assertIn("--type", self.run_code(2, "quantize", model, "-o", self.made, "--type", "int3").err)
        self.assertIn("--output DIR", self.run_code(2, "quantize", model).err)
        for option in ("--rows", "--examples"):  # before the model is read
            self.assertIn(option, self.run_code(2, "quantize", "none.toml", "-o", self.made, option, "0").err)
        self.assertIn("no.tsv", self.run_code(6, "quantize", model, "-o", self.made, "--data", "no.tsv").err)
        self.assertFalse(self.made.exists())
        self.made.mkdir()
        (self.made / "mine").write_text("x")
        self.run_code(6, "quantize", model, "-o", self.made)
        self.assertEqual((self.made / "mine").read_text(), "x")

    def rewritten(self, edit):
        """A quantised model whose file has other tensors; its manifest's problems."""
        file = self.made / "weights.safetensors"
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + size])
        blobs = {n: raw[8 + size:][slice(*t["data_offsets"])] for n, t in header.items() if n != "__metadata__"}
        edit(header, blobs)
        data = b""
        for name in blobs:
            header[name]["data_offsets"] = [len(data), len(data) + len(blobs[name])]
            data += blobs[name]
        text = json.dumps({n: header[n] for n in blobs}).encode()
        text += b" " * (-len(text) % 8)
        (self.folder / "weights.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        model = self.folder / "broken.toml"
        model.write_text(re.sub(r"(?m)^sha256 = .*\n", "", (self.made / "model.toml").read_text()))
        return self.run_code(5, "run", model, "--text", "one").err

    def test_files_that_lost_their_scales(self):
        self.quantize(MANIFESTS / "sentence-encoder.toml")
        shutil.copy(self.made / "vocab.txt", self.folder)
        name = "encoder.ffn.1.in.weight"
        scale = name + ".scale"

        def without(header, blobs):
            del header[scale], blobs[scale]

        def short(header, blobs):
            header[scale]["shape"][0] -= 1
            blobs[scale] = blobs[scale][4:]

        def whole(header, blobs):  # a byte for each number
            blobs[name] *= 2
            header[name]["shape"][1] *= 2

        self.assertIn(f'tensor "{name}" has type I8 and no scales: {scale} is missing', self.rewritten(without))
        self.assertIn(f'tensor "{scale}" is F32 255, the scales of "{name}" are F32 256', self.rewritten(short))
        shutil.rmtree(self.made)
        self.quantize(MANIFESTS / "sentence-encoder.toml", "--type", "int4")
        blocks = shape_of(self.made / "weights.safetensors", scale)[1]
        self.assertIn(f'tensor "{name}" has type U8 and no scales: {scale} is missing', self.rewritten(without))

        def narrow(header, blobs):
            header[scale]["shape"] = [256]
            blobs[scale] = blobs[scale][:1024]

        self.assertIn(f'tensor "{scale}" is F32 256, the scales of "{name}" are F32 256x{blocks}', self.rewritten(narrow))
        self.assertIn(f'tensor "{name}" has type U8; F32', self.rewritten(whole))


if __name__ == "__main__":
    unittest.main()
