"""The errors of attnkit import for folders and files that are wrong."""
import json
import shutil
import unittest

from arrays import read_safetensors, write_safetensors
from command import attnkit
from imported import DECODERS, GOLDEN, SPEECH, SUPPORTED, TRANSLATORS, ImportTest


class Mistakes(ImportTest):
    """Every one is one line, and nothing is written."""

    def refused(self, folder, message, code=6):
        before = sorted(self.folder.rglob("*"))
        result = self.run_code(code, "import", folder, "-o", self.folder / "model.toml")
        self.assertIn(message, result.err)
        errors = [line for line in result.err.splitlines() if line.startswith("attnkit: ") or ": error[" in line]
        self.assertEqual(len(errors), 1, result.err)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def edited(self, name, file, **values):
        folder = self.copy(name)
        document = json.loads((folder / file).read_text())
        for key, value in values.items():
            if value is None:
                document.pop(key)
            else:
                document[key] = value
        (folder / file).write_text(json.dumps(document))
        return folder

    def test_folders(self):
        self.refused(self.folder / "nowhere", "is no folder")
        self.refused(self.folder, "config.json: is not there")
        folder = self.copy("bert-sharded")
        shard = next(folder.glob("model-00001*"))
        before = shard.read_bytes()
        result = self.run_code(2, "import", folder, "-o", shard)
        self.assertIn("exists and is by its name no manifest", result.err)
        self.assertEqual(shard.read_bytes(), before)
        (self.folder / "a.gguf").write_bytes(b"GGUF")
        self.refused(self.folder, f"name the GGUF file: attnkit import {self.folder}/a.gguf")

    def test_names_that_are_not_utf8(self):
        folder = self.copy("bert").rename(self.folder / b"\xff".decode("utf-8", "surrogateescape"))
        self.refused(folder, "a name there is not UTF-8, and a manifest must be")

    def test_unknown_architecture(self):
        folder = self.edited("bert", "config.json", model_type="gpt_bigcode")
        self.refused(folder, 'config.json: model_type "gpt_bigcode" is not supported; ' + SUPPORTED + ' are')
        result = self.run_code(6, "import", folder, "-o", self.folder / "model.toml")
        self.assertIn("docs/importing.md", result.err)

    def test_config(self):
        for key, value, message in (("model_type", 3, "model_type must be a string, not an integer"),
                                    ("model_type", None, "model_type must be a string, not absent"),
                                    ("hidden_size", None, "hidden_size is not there"),
                                    ("hidden_size", [True], "hidden_size must be text, a number, true or false"),
                                    ("hidden_act", "mish", 'hidden_act is "mish", which is not supported; gelu, '),
                                    ("position_embedding_type", "relative_key",
                                     'position_embedding_type is "relative_key", which "bert" does not support'),
                                    ("quantization_config", {"quant_method": "gptq", "bits": 4},
                                     "quantization_config says that the weights are quantised, which is not supported"),
                                    ("is_decoder", True, 'is_decoder is true, which "bert" does not support; false is')):
            folder = self.edited("bert", "config.json", **{key: value})
            self.refused(folder, message)
            shutil.rmtree(folder)

    def test_decoders_that_see_what_follows(self):
        for name in DECODERS + TRANSLATORS + SPEECH:
            folder = self.edited(name, "config.json", is_causal=False)
            self.refused(folder, "is_causal is false, which ")
            shutil.rmtree(folder)

    def test_what_no_manifest_can_say_is_said_of_the_folder(self):
        """Once, though it is said of both sides, and with no place in a manifest that is not written."""
        folder = self.edited("bart", "config.json", vocab_size=-1)
        self.refused(folder, f'{folder}: error[AK104]: "vocab_size" is -1; it must be an integer from 1 to 16777216', 3)

    def test_files_that_are_cut_off(self):
        for name, file, code in (("bert", "config.json", 6), ("bert", "modules.json", 6), ("bert", "tokenizer.json", 6),
                                 ("bert", "1_Pooling/config.json", 6), ("bert", "model.safetensors", 5),
                                 ("bert-sharded", "model.safetensors.index.json", 5),
                                 ("bert-sharded", "model-00002-of-00003.safetensors", 5)):
            folder = self.copy(name)
            whole = (folder / file).read_bytes()
            for size in (0, len(whole) // 2, len(whole) - 1 - whole.endswith(b"\n")):
                (folder / file).write_bytes(whole[:size])
                self.refused(folder, file.split("/")[-1], code)
            (folder / file).unlink()
            if file not in ("modules.json", "tokenizer.json"):  # without these a folder may be sound
                self.refused(folder, file.split("/")[-1], 5 if "-of-" in file else 6)
            shutil.rmtree(folder)

    def test_tokenizers(self):
        folder = self.copy("bert")
        (folder / "tokenizer.json").unlink()
        self.refused(folder, "vocab.txt: is not there")
        shutil.rmtree(folder)
        folder = self.edited("bert", "tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 1}})
        self.refused(folder, 'model is "WordLevel", which is not supported')
        shutil.rmtree(folder)
        folder = self.copy("distilbert")
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
        self.refused(folder, "without a tokenizer.json, accents are stripped exactly where letters are lower-cased")
        special = {str(id): {"content": token} for id, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))}
        settings = folder / "tokenizer_config.json"
        settings.write_text(json.dumps({"added_tokens_decoder": special}))
        (folder / "added_tokens.json").write_text(json.dumps({"[MASK]": 4}))
        self.imported(folder)
        (self.folder / "model.toml").unlink()
        settings.write_text(json.dumps({"added_tokens_decoder": {**special, "99": {"content": "[E1]"}}}))
        self.refused(folder, 'tokenizer_config.json: added_tokens_decoder."99" adds the token "[E1]", which without a tokenizer.json')
        settings.write_text(json.dumps({"additional_special_tokens": ["[E1]"]}))
        self.refused(folder, 'adds the token "[E1]", which without a tokenizer.json')
        settings.unlink()
        (folder / "added_tokens.json").write_text(json.dumps({"[E1]": 99}))
        self.refused(folder, 'added_tokens.json: "[E1]" adds the token "[E1]", which without a tokenizer.json texts cannot hold')

    def test_sentence_transformers(self):
        folder = self.edited("bert", "1_Pooling/config.json", pooling_mode_max_tokens=True)
        self.refused(folder, "pools by \"pooling_mode_max_tokens, pooling_mode_mean_tokens\", which is not supported")
        shutil.rmtree(folder)
        folder = self.copy("bert")
        modules = json.loads((folder / "modules.json").read_text())
        for change, message in (({"type": "sentence_transformers.models.Dense"}, "the module \"sentence_transformers.models.Dense\""),
                                ({"path": "../elsewhere"}, 'is "../elsewhere", which leads out of the folder'),
                                ({"type": 3}, "type must be a string, not an integer")):
            (folder / "modules.json").write_text(json.dumps([modules[0], {**modules[1], **change}]))
            self.refused(folder, message)
        (folder / "modules.json").write_text(json.dumps(modules[:1]))
        self.refused(folder, "names no module Pooling")

    def test_tensors(self):
        folder = self.copy("bert")
        sound = read_safetensors(folder / "model.safetensors")
        query = "encoder.layer.1.attention.self.query.weight"
        missing = {name: tensor for name, tensor in sound.items() if name != query}
        for tensors, message in (
                (missing, f'no tensor "encoder.self.2.q.weight", which bert calls "{query}"'),
                ({**sound, "encoder.layer.2.output.dense.bias": ([32], [0.0] * 32)},
                 'tensor "encoder.ffn.3.out.bias" of shape 32 belongs to nothing in this model'),
                ({**sound, "surprise": ([1], [0.0])}, 'tensor "surprise" of shape 1 belongs to nothing in this model'),
                ({**sound, query: ([32, 16], [0.0] * 512)}, f'("{query}" in the file) is 32x16, the model needs 32x32'),
                ({**sound, "bert." + query: sound[query]}, 'are tensor "encoder.self.2.q.weight"')):
            write_safetensors(folder / "model.safetensors", tensors)
            self.refused(folder, message, 5)
        for name, extra in (("llama", "model.layers.0.extra.weight"), ("bart", "model.encoder.layers.0.extra.weight")):
            other = self.copy(name)
            write_safetensors(other / "model.safetensors", {**read_safetensors(other / "model.safetensors"), extra: ([1], [0.0])})
            self.refused(other, f'error[AK402]: {other}/model.safetensors: tensor "{extra}" of shape 1 belongs to nothing', 5)
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.refused(folder, "holds neither model.safetensors nor model.safetensors.index.json")

    def test_outputs(self):
        folder = self.copy("bert")
        weights = (folder / "model.safetensors").read_bytes()
        self.assertIn("--output FILE is missing", self.run_code(2, "import", folder).err)
        self.assertIn("is an input", self.run_code(2, "import", folder, "-o", folder / "model.safetensors").err)
        self.assertEqual((folder / "model.safetensors").read_bytes(), weights)
        self.run_code(6, "import", folder, "-o", self.folder / "no" / "model.toml")
        old = self.folder / "model.toml"
        old.write_text("kept")
        self.run_code(6, "import", self.folder / "nowhere", "-o", old)
        self.assertEqual(old.read_text(), "kept")

    def test_texts_that_are_too_long(self):
        for name, most in (("llama", 64), ("bart", 48)):
            result = self.run_code(6, "run", self.imported(GOLDEN / name), "--text", "attention of each head " * 40, "--limit", 5)
            self.assertRegex(result.err, rf"--text 1: the input has \d+ tokens, .* max_length is {most}: split it")
            self.assertEqual(result.out, "")

    def test_texts(self):
        manifest = self.imported(GOLDEN / "bert")
        result = attnkit("run", manifest, "--text", b"\xff".decode("utf-8", "surrogateescape"))
        self.assertEqual((result.code, result.err.splitlines()[0]),
                         (6, "attnkit: --text 1: the text is not UTF-8 at byte column 1"))


if __name__ == "__main__":
    unittest.main()
