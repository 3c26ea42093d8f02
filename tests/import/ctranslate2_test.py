"""Folders of CTranslate2: the tokens that it writes, and one clear error for what does not fit."""
import json
import re
import shutil
import struct
import unittest

from imported import GOLDEN, HERE, RECORDINGS, ImportTest


class Ctranslate2(ImportTest):
    """Folders as CTranslate2's converters write them; here of the tiny Whisper, in 8 bits."""

    FOLDER = HERE / "golden-ctranslate2/whisper"

    def imported_tiny(self, folder):
        return self.imported(folder, "--architecture", self.architecture())

    def architecture(self):
        own = self.folder / "own.toml"
        shipped = (HERE.parent.parent / "architectures/whisper.toml").read_text()
        own.write_text(re.sub(r"(?m)51865 = ", "511 = ", shipped))
        return own

    def test_tokens_are_those_of_ctranslate2(self):
        manifest = self.imported_tiny(self.FOLDER)
        for key, beams in (("greedy", 1), ("beams", 4)):
            results = self.run_ok("run", manifest, *RECORDINGS, "--limit", 19, "--beams", beams, "--json").json()["results"]
            self.assertEqual([result["ids"] for result in results], json.loads((self.FOLDER / "ids.json").read_text())[key], key)

    def translator(self, name):
        folder = self.folder / name
        shutil.copytree(HERE / "golden-ctranslate2" / name, folder)
        if name == "marian":  # which the converter does not copy
            for side in ("source", "target"):
                shutil.copy(GOLDEN / "marian" / f"{side}.spm", folder)
        elif name != "bart":
            shutil.copy(GOLDEN / name / {"m2m100": "sentencepiece.bpe.model", "nllb": "tokenizer.json"}[name], folder)
        return folder

    def test_translations_are_those_of_ctranslate2(self):
        for name in ("marian", "bart", "m2m100", "nllb"):
            folder = self.translator(name)
            manifest = self.imported(folder)
            if languages := {"m2m100": ("__en__", "__de__"), "nllb": ("eng_Latn", "deu_Latn")}.get(name):
                text = manifest.read_text().replace("encoder = { ", f'encoder = {{ begin = "{languages[0]}", ')
                manifest.write_text(text + f'\n[decode]\nforced = ["{languages[1]}"]\n')
            self.compare_searches(manifest, json.loads((folder / "texts.json").read_text()), name)

    def test_sources_begin_and_end_as_the_configuration_says(self):
        folder = self.translator("m2m100")
        for case in json.loads((HERE / "golden-ctranslate2/opennmt.json").read_text()):
            (folder / "config.json").write_text(json.dumps(case["config"]))
            self.compare_searches(self.imported(folder), case["texts"], case["config"])
        # The source's vocabulary need not have an end then, and may have its own ids.
        vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())
        case = json.loads((HERE / "golden-ctranslate2/opennmt.json").read_text())[0]
        (folder / "config.json").write_text(json.dumps(case["config"]))
        (folder / "target_vocabulary.json").write_text(json.dumps(vocabulary))
        (folder / "source_vocabulary.json").write_text(json.dumps(["<blank>" if token == "</s>" else token for token in vocabulary]))
        (folder / "shared_vocabulary.json").unlink()
        manifest = self.imported(folder)
        self.compare_searches(manifest, case["texts"], "two vocabularies")
        self.assertEqual(self.written(manifest, "")["ids"], [])
        self.assertIn('1,1,2,"y","<blank>",0', self.run_ok("inspect", manifest, "--attention", "decoder.cross.1", "--text", "the", "--csv").out)
        manifest.write_text(manifest.read_text() + "\n[stream]\n")
        self.assertIn("[stream] needs sources that end with a token", self.run_code(3, "run", manifest, "--text", "The").err)

    def test_translators_that_are_not_supported(self):
        folder = self.translator("marian")
        whole = (folder / "model.bin").read_bytes()
        for change, message in (((b"/activation\0\0\1\1\0\0\0\2", b"/activation\0\0\1\1\0\0\0\7"),
                                 "encoder/activation is 7, which is not supported; 0, 1, 2, 3, 4 are"),
                                ((b"decoder/alibi\0\0\1\1\0\0\0\0", b"decoder/alibi\0\0\1\1\0\0\0\1"),
                                 'decoder/alibi is 1, which "transformer" does not support; 0 is'),
                                ((b"/scale_embeddings\0\0\0\4\0\0\0\xf3\4\xb5\x40", b"/scale_embeddings\0\0\0\4\0\0\0\0\0\0\x40"),
                                 "encoder/scale_embeddings is 2.0, which is not supported; false, true are")):
            self.assertIn(change[0], whole)
            (folder / "model.bin").write_bytes(whole.replace(*change))
            self.assertIn(message, self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)
        (folder / "model.bin").write_bytes(whole)
        (folder / "shared_vocabulary.json").write_text('["</s>", 3]')
        self.assertIn("must be a string", self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)

    def test_tensors(self):
        """Missing with one left over, of another shape."""
        folder, name = self.translator("marian"), b"decoder/layer_1/ffn/linear_0/weight\0"
        whole = (folder / "model.bin").read_bytes()
        shape = name + b"\2" + struct.pack("<II", 40, 32)
        self.assertIn(shape, whole)
        for bytes_, messages in ((whole.replace(name, name.replace(b"weight", b"weighs")),
                                  ('which transformer calls "decoder/layer_1/ffn/linear_0/weight"', 'tensor "decoder.ffn.2.in.weighs" of shape 40x32 belongs to nothing')),
                                 (whole.replace(shape, name + b"\2" + struct.pack("<II", 20, 64)),
                                  ('("decoder/layer_1/ffn/linear_0/weight" in the file) is',))):
            (folder / "model.bin").write_bytes(bytes_)
            said = self.run_code(5, "import", folder, "-o", self.folder / "x.toml").err
            for message in messages:
                self.assertIn(message, said)
            self.assertFalse((self.folder / "x.toml").exists())

    def test_other_vocabularies_are_not_guessed(self):
        self.assertIn("decoder/embeddings/weight[0] is 511, which is not supported; 51864, 51865, 51866 are",
                      self.run_code(6, "import", self.FOLDER, "-o", self.folder / "x.toml").err)

    def test_a_file_that_is_cut_off_or_of_another_kind(self):
        folder = self.folder / "damaged"
        shutil.copytree(self.FOLDER, folder)
        whole = (folder / "model.bin").read_bytes()
        for bytes_, message in ((whole[:-100], "the file is cut off"), (whole[:1000], "the file is cut off"), (b"", "is no model of CTranslate2"),
                                (whole.replace(b"WhisperSpec", b"WhisperSpek", 1), 'spec "WhisperSpek" is not supported; TransformerSpec, WhisperSpec are'),
                                (whole.replace(b"decoder/activation\0\0\1\1\0\0\0\3", b"decoder/activation\0\0\1\1\0\0\0\2", 1),
                                 'decoder/activation is 2, which "whisper" does not support; 3 is')):
            (folder / "model.bin").write_bytes(bytes_)
            result = self.run_code(6, "import", folder, "-o", self.folder / "x.toml")
            self.assertIn(message, result.err)
        (folder / "model.bin").write_bytes(whole)
        (folder / "tokenizer.json").unlink()
        said = self.run_code(6, "import", folder, "-o", self.folder / "x.toml", "--architecture", self.architecture()).err
        self.assertIn("holds no tokenizer.json", said)


if __name__ == "__main__":
    unittest.main()
