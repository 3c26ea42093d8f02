"""Folders of Marian: the tokens that CTranslate2 writes with the same weights, SSRU, and one clear error for what does not fit."""
import json
import shutil
import struct
import unittest
import zipfile

from imported import GOLDEN, HERE, ImportTest


class Marian(ImportTest):
    """Marian's own files (make_marian.py)."""

    def folder_of(self, name):
        folder = self.folder / name
        shutil.copytree(HERE / "golden-marian" / name, folder)
        if name == "opus":
            for side in ("source", "target"):
                shutil.copy(GOLDEN / "marian" / f"{side}.spm", folder)
        elif name != "student":
            shutil.copy(HERE / "golden-marian/student/vocab.spm", folder)
        return folder

    def test_texts_are_those_of_ctranslate2(self):
        for name in ("opus", "student"):
            folder = self.folder_of(name)
            self.compare_searches(self.imported(folder), json.loads((folder / "texts.json").read_text()), name)

    def test_other_commands_take_it(self):
        manifest = self.imported(self.folder_of("opus"))
        text = self.run_ok("run", manifest, "--text", "The attention", "--limit", 12).out
        bundle = self.folder / "bundle"
        self.run_ok("bundle", manifest, "-o", bundle)
        self.assertEqual(self.run_ok("run", bundle / "model.toml", "--text", "The attention", "--limit", 12).out, text)
        manifest.write_text(manifest.read_text().replace('"decoder.self" = "softmax"', '"decoder.self" = "relu"'))
        self.assertIn("decoder.self", self.run_ok("inspect", manifest).out)
        self.run_ok("run", manifest, "--text", "The attention", "--limit", 12)

    def test_a_decoder_of_ssru_is_its_float64_form(self):
        for name, shown in (("ssru", ["ffn.1", "ffn.2"]), ("ssru-pre", ["ffn.1", ""])):
            folder = self.folder_of(name)
            layers = self.run_ok("verify", self.imported(folder), "--golden", folder / "golden.safetensors", "--json").json()["layers"]
            self.assertEqual([layer["layer"] for layer in layers],
                             [f"{side}.{layer}".rstrip(".") for side in ("encoder", "decoder") for layer in shown] + ["logits"])
            for layer in layers:
                self.assertLessEqual(layer["error"], 1e-5, layer)
                self.assertGreater(layer["largest"], 0.1, layer)

    def test_texts_are_those_of_marian(self):
        """As its decoder.yml says: with four beams, of which each text that ends takes one along."""
        for name in ("ssru", "ssru-pre"):
            folder = self.folder_of(name)
            manifest, texts, others = self.imported(folder), json.loads((folder / "texts.json").read_text()), 0
            for text, expected in texts.items():
                for key, more in (("greedy", ("--beams", 1)), ("beams", ())):
                    self.assertEqual(self.written(manifest, text, "--limit", expected["limit"], *more)["ids"], expected[key], (name, text, key))
            manifest.write_text(manifest.read_text().replace('"shrink"', '"never"'))
            for text, expected in texts.items():
                others += self.written(manifest, text, "--limit", expected["limit"])["ids"] != expected["beams"]
            self.assertGreater(others, 0, name)

    def test_texts_are_searched_as_decoder_yml_says(self):
        folder = self.folder_of("opus")
        decoder = (folder / "decoder.yml").read_text()
        for said, beams, penalty in (("beam-size: 6\nnormalize: 1\n", "6", "1.0"), ("beam-size: 3\nnormalize: 0.6\n", "3", "0.6"),
                                     ("normalize: true\n", "12", "1.0"), ("", "12", "0.0")):
            (folder / "decoder.yml").write_text(decoder.replace("beam-size: 6\nnormalize: 1\n", said))
            text = self.imported(folder).read_text()
            self.assertIn(f"\nlength_penalty = {penalty}\n", text)
            self.assertIn(f"\nbeams = {beams}\n", text)
            self.assertIn('\nearly_stop = "shrink"\n', text)
            made = self.run_ok("run", self.folder / "model.toml", "--text", "The attention", "--limit", 5, "--json").json()
            self.assertEqual(made["summary"]["beams"], int(beams))
        for said, message in (("beam-size: 65\n", "beam-size must be 1 to 64"), ("normalize: 11\n", "normalize must be 0 to 10"),
                              ("normalize: [1]\n", "normalize must be a number"), ("beam-size: x\n", "beam-size must be an integer")):
            (folder / "decoder.yml").write_text(decoder.replace("beam-size: 6\nnormalize: 1\n", said))
            self.refused(folder, message)
        (folder / "decoder.yml").write_text(decoder + "word-penalty: 0.5\nallow-unk: false\n")
        result = self.run_ok("import", folder, "-o", self.folder / "model.toml")
        self.assertIn("says word-penalty = 0.5 of how texts are written", result.out)
        self.assertNotIn("allow-unk", result.out)

    def test_the_binary_format_is_refused_by_name(self):
        folder, message = self.folder_of("student"), "is Marian's binary format, which is not supported; .npz is"
        # 64-bit numbers, as marian-conv writes them: the version, how many tensors.
        binary = struct.pack("<QQ", 1, 2) + bytes(200)
        (folder / "model.intgemm.alphas.bin").write_bytes(binary)
        (folder / "decoder.yml").write_text("models: [model.intgemm.alphas.bin]\nvocabs: [vocab.spm, vocab.spm]\n")
        self.refused(folder, "model.intgemm.alphas.bin: " + message)
        (folder / "model.npz").unlink()
        for name in ("model.intgemm.alphas.bin", "model.bin"):
            (folder / "model.intgemm.alphas.bin").rename(folder / name)
            self.refused(folder, f"{name}: {message}")
            result = self.run_code(6, "import", folder, "-o", self.folder / "x.toml")
            self.assertIn("give the folder of the .npz that marian-conv made it of", result.err)
            (folder / name).rename(folder / "model.intgemm.alphas.bin")
        (folder / "decoder.yml").unlink()
        self.refused(folder, message)

    def test_vocabularies_without_a_decoder_yml(self):
        folder = self.folder_of("opus")
        (folder / "decoder.yml").unlink()
        self.imported(folder)
        (folder / "opus.vocab.yml").unlink()
        self.refused(folder, "there are 0 vocabularies; one, or one for each side, is needed")

    def test_what_is_not_supported_is_named(self):
        for change, message in (((b"transformer-ffn-activation: swish", b"transformer-ffn-activation: mishy"),
                                 'transformer-ffn-activation is "mishy", which is not supported; gelu, relu, swish are'),
                                ((b"transformer-decoder-autoreg: self-attention", b"transformer-decoder-autoreg: average-attent"),
                                 'transformer-decoder-autoreg is "average-attent", which is not supported; self-attention, ssru are'),
                                ((b"transformer-decoder-autoreg: self-attention", b"transformer-decoder-autoreg: rnn           "),
                                 'transformer-decoder-autoreg is "gru", which is not supported; self-attention, ssru are'),
                                ((b"type: transformer\n", b"type: transformes\n"), 'type "transformes" is not supported; transformer are'),
                                ((b"right-left: false", b"right-left: true "), 'right-left is true, which "marian" does not support; false is'),
                                ((b"dec-cell: gru", b"dec-cell: [ru"), "is no YAML"),
                                ((b"special:model.yml", b"special:modal.yml"), "has no special:model.yml")):
            folder = self.folder_of("opus")
            whole = (folder / "model.npz").read_bytes()
            self.assertIn(change[0], whole)
            (folder / "model.npz").write_bytes(whole.replace(*change))
            self.refused(folder, message)
            shutil.rmtree(folder)

    def test_tensors(self):
        """Missing, left over, of another shape."""
        folder, name = self.folder_of("opus"), "decoder_l2_ffn_W1"
        with zipfile.ZipFile(folder / "model.npz") as archive:
            whole = {entry: archive.read(entry) for entry in archive.namelist()}
        entry = f"{name}.npy"
        bent = whole[entry].replace(b"(32, 40)", b"(40, 32)")
        self.assertNotEqual(bent, whole[entry])
        for tensors, message in (({key: value for key, value in whole.items() if key != entry}, f'which marian calls "{name}"'),
                                 ({**whole, "surprise.npy": whole[entry]}, 'tensor "surprise" of shape 32x40 belongs to nothing in this model'),
                                 ({**whole, entry: bent}, f'("{name}" in the file) is')):
            with zipfile.ZipFile(folder / "model.npz", "w") as archive:
                for key, value in tensors.items():
                    archive.writestr(key, value)
            self.refused(folder, message, 5)

    def test_files_that_are_cut_off_or_damaged(self):
        folder = self.folder_of("student")
        whole = (folder / "model.npz").read_bytes()
        for bytes_, message in ((whole[:-1], "the file is cut off"), (whole[:1000], "the file is cut off"), (b"", "the file is cut off"),
                                (whole[:300] + b"xxxx" + whole[304:], "is damaged")):
            (folder / "model.npz").write_bytes(bytes_)
            self.refused(folder, message)
        (folder / "model.npz").write_bytes(whole)
        for text, message in (("models: [a.npz, b.npz]\nvocabs: [vocab.spm]\n", "there are 2 models; one is supported"),
                              ("models: [none.npz]\nvocabs: [vocab.spm]\n", "none.npz: is not there"),
                              ("models: [model.npz]\nvocabs: [vocab.txt]\n", "vocab.txt"),
                              ("models: 3\n", "models must be an array"), ("]", "is no YAML")):
            (folder / "decoder.yml").write_text(text)
            self.refused(folder, message)

    def refused(self, folder, message, code=6):
        result = self.run_code(code, "import", folder, "-o", self.folder / "x.toml")
        self.assertIn(message, result.err)
        self.assertEqual(len([line for line in result.err.splitlines() if line.startswith("attnkit: ") or ": error[" in line]), 1, result.err)
        self.assertFalse((self.folder / "x.toml").exists())


if __name__ == "__main__":
    unittest.main()
