"""attnkit verify: golden activations, the first layer that differs, and files that are none."""

import json
import pathlib
import struct
import unittest

import attnkit
from support import RUNTIME, PackageTest, tiny_model

SOURCE, TARGET = [[5, 6, 7], [4, 0, 0]], [[1, 8], [1, 9]]


def safetensors(**tensors):
    """tensors: (dtype, shape, flat values) by name."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'i'}", *values)
        header[name.replace("__", ".")] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Verify(PackageTest):
    def setUp(self):
        super().setUp()
        self.manifest = pathlib.Path(tiny_model.write_model(self.folder))
        logits = attnkit.Model(RUNTIME, self.manifest).forward([[5, 6, 7], [4]], TARGET)
        self.tensors = {"source": ("I32", [2, 3], sum(SOURCE, [])), "source_len": ("I32", [2], [3, 1]),
                        "target": ("I32", [2, 2], sum(TARGET, [])), "target_len": ("I32", [2], [2, 2]),
                        "logits": ("F32", list(logits.shape), list(logits.cast("B").cast("f")))}

    def write(self, **changes):
        (self.folder / "golden.safetensors").write_bytes(safetensors(**{**self.tensors, **changes}))

    def test_the_same_model(self):
        self.write()
        self.assertIn("ok, 1 layers", self.run_ok("verify", self.manifest).lines()[-1])
        document = self.run_ok("verify", self.manifest, "--json").json()
        self.assertEqual((document["schema"], document["ok"], document["first"]), ("attnkit.verification/1", True, None))
        self.assertEqual(document["layers"][0]["error"], 0)

    def test_what_stands_behind_a_row_does_not_count(self):
        shape, values = self.tensors["logits"][1:]
        self.write(target_len=("I32", [2], [2, 1]), logits=("F32", shape, [*values[:-shape[2]], *[9.0] * shape[2]]))
        self.run_ok("verify", self.manifest)

    def test_inputs_of_another_shape_are_refused(self):
        for changes in ({"source": ("I32", [2, 3, 1], sum(SOURCE, []))}, {"target_len": ("I32", [1, 2], [2, 2])}):
            self.write(**changes)
            self.assertIn("where they must be (rows, length) and (rows)", self.run_code(6, "verify", self.manifest).err)

    def test_names_the_first_layer_that_differs(self):
        zeros = ("F32", [2, 2, tiny_model.WIDTH], [0.0] * 4 * tiny_model.WIDTH)
        self.write(decoder__cross__1=zeros, decoder__ffn__1=zeros)
        result = self.run_code(7, "verify", self.manifest)
        self.assertIn("decoder.cross.1 is the first layer that differs", result.lines()[-1])
        document = self.run_code(7, "verify", self.manifest, "--json").json()
        self.assertEqual([layer["layer"] for layer in document["layers"]], ["decoder.cross.1", "decoder.ffn.1", "logits"])
        self.assertEqual((document["ok"], document["first"]), (False, "decoder.cross.1"))

    def test_a_bundle_is_the_same_model(self):
        self.write()
        bundle = self.folder / "bundle"
        self.run_ok("bundle", self.manifest, "-o", bundle)
        self.assertLess((bundle / "tiny.safetensors").stat().st_size, (self.folder / "tiny.safetensors").stat().st_size)
        said = self.run_ok("verify", bundle / "model.toml", "--golden", self.folder / "golden.safetensors", "--json").json()
        self.assertEqual(said["layers"][0]["error"], 0)

    def test_tolerance_and_place(self):
        dtype, shape, values = self.tensors["logits"]
        values[shape[1] * shape[2] + 3] += 0.01
        self.write(logits=(dtype, shape, values))
        layer = self.run_code(7, "verify", self.manifest, "--json").json()["layers"][0]
        self.assertEqual((layer["row"], layer["position"], layer["channel"]), (1, 0, 3))
        self.assertAlmostEqual(layer["error"], 0.01, places=5)
        self.run_ok("verify", self.manifest, "--tolerance", "0.1")
        self.assertIn("--tolerance", self.run_code(2, "verify", self.manifest, "--tolerance", "much").err)

    def test_padding_does_not_count(self):
        width = tiny_model.WIDTH
        got = [0.0] * 6 * width
        self.write(encoder=("F32", [2, 3, width], got))
        layer = self.run_code(7, "verify", self.manifest, "--json").json()["layers"][0]
        self.assertLessEqual((layer["row"], layer["position"]), (1, 0))

    def test_not_a_number_differs(self):
        self.write(encoder=("F32", [2, 3, tiny_model.WIDTH], [float("nan")] * 6 * tiny_model.WIDTH))
        self.assertIn("encoder is the first layer that differs", self.run_code(7, "verify", self.manifest).lines()[-1])
        self.write(encoder=("F32", [2, 3, tiny_model.WIDTH], [float("inf")] * 6 * tiny_model.WIDTH))
        result = self.run_code(7, "verify", self.manifest)
        self.assertIn("encoder is the first layer that differs, by inf of its largest number", result.lines()[-1])
        self.assertRegex(result.out, r"(?m)^encoder +NaN +inf$")
        self.assertEqual([self.run_code(7, "verify", self.manifest, "--json").json()["layers"][0][key] for key in ("error", "largest")], [None, None])

    def test_files_that_do_not_fit(self):
        self.assertIn("golden.safetensors", self.run_code(6, "verify", self.manifest).err)
        for part, change in (("encoder.self.9", {"encoder__self__9": ("F32", [1], [0.0])}),
                             ("\"logits\" is 2x2", {"logits": ("F32", [2, 2], [0.0] * 4)}),
                             ("lengths", {"source_len": ("I32", [1], [3])}),
                             ("I32", {"target": ("F32", [2, 2], [1.0] * 4)}),
                             ("outside the vocabulary", {"target": ("I32", [2, 2], [99999] * 4)}),
                             ("row 0 has length 9", {"target_len": ("I32", [2], [9, 1])})):
            self.write(**change)
            with self.subTest(part):
                self.assertIn(part, self.run_code(6, "verify", self.manifest).err)
        del self.tensors["source"]
        self.write()
        self.assertIn("\"source\"", self.run_code(6, "verify", self.manifest).err)


if __name__ == "__main__":
    unittest.main()
