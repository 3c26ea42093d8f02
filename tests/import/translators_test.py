"""Models that read and write: the numbers and the tokens of transformers, their languages and vocabularies."""
import json
import shutil
import unittest

from imported import GOLDEN, POST_NORM, TRANSLATORS, ImportTest, spiece


class Translators(ImportTest):
    """Models that read and write."""

    def test_every_layer_is_that_of_transformers(self):
        for name in TRANSLATORS:
            manifest = self.imported(GOLDEN / name)
            layers = self.run_ok("verify", manifest, "--golden", GOLDEN / name / "golden.safetensors", "--json").json()["layers"]
            shown = ["ffn.1", "ffn.2"] if name in POST_NORM else ["ffn.1", ""]
            self.assertEqual([layer["layer"] for layer in layers],
                             [f"{side}.{layer}".rstrip(".") for side in ("encoder", "decoder") for layer in shown] + ["logits"])
            for layer in layers:
                self.assertLessEqual(layer["error"], 1e-5, (name, layer))
                self.assertGreater(layer["largest"], 0.1, (name, layer))

    def test_tokens_are_those_of_transformers(self):
        for name in TRANSLATORS:
            self.compare_searches(self.imported(GOLDEN / name), json.loads((GOLDEN / name / "texts.json").read_text()), name)

    def test_texts_are_written_as_the_checkpoint_says(self):
        for name in ("bart", "llama"):
            for case in json.loads((GOLDEN / name / "decode.json").read_text()):
                folder = self.copy(name)
                file = folder / "generation_config.json"
                file.write_text(json.dumps({**json.loads(file.read_text()), **case["generation_config"]}))
                manifest = self.imported(folder)
                for source, ids in case["ids"].items():
                    self.assertEqual(self.written(manifest, source)["ids"], ids, (name, case["generation_config"], source))
                shutil.rmtree(folder)

    def test_drawing_is_what_the_checkpoint_says(self):
        folder = self.copy("llama")
        file = folder / "generation_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "do_sample": True, "temperature": 1.5, "top_p": 0.9, "typical_p": 0.5, "guidance_scale": 1.5, "stop_strings": ["x"]}))
        manifest = self.folder / "model.toml"
        notes = self.run_ok("import", folder, "-o", manifest, "--json").json()["notes"]
        for unsaid in ("typical_p = 0.5", "guidance_scale = 1.5", "stop_strings = "):
            self.assertEqual(len([note for note in notes if unsaid in note]), 1, notes)
        plain = self.folder / "plain.toml"
        self.run_ok("import", GOLDEN / "llama", "-o", plain)
        def written(model, *more):
            return self.run_ok("run", model, "--text", "The attention", "--limit", 12, *more).out
        self.assertEqual(written(plain, "--temperature", 1.5, "--top-p", 0.9, "--top-k", 50), written(manifest))
        self.assertEqual(written(manifest, "--temperature", 0), written(plain))
        self.assertNotEqual(written(manifest), written(plain))

    def test_tokens_behind_the_pieces_of_t5(self):
        """Sentinels, and what added_tokens.json has: where text stands behind one it begins anew."""
        folder = self.copy("t5")
        document = json.loads((folder / "tokenizer.json").read_text())
        size = len(document["model"]["vocab"])
        document["model"]["vocab"] = document["model"]["vocab"][:-3]
        (folder / "spiece.model").write_bytes(spiece(document))
        (folder / "tokenizer.json").unlink()
        (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<s>"}))
        manifest = self.imported(folder)
        self.assertNotIn("extra_id", manifest.read_text())  # a hundred would be more than the model has
        (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 2}))
        (folder / "added_tokens.json").write_text(json.dumps({"<new>": size - 1}))
        manifest = self.imported(folder)
        def ids(text):
            return self.run_ok("tokenize", manifest, "--text", text, "--json").json()["results"][0]["ids"][:-1]
        head = ids("head")
        self.assertEqual(ids("head<extra_id_0>head <new> <extra_id_1>head"), [*head, size - 2, *head, size - 1, size - 3, *head])
        (folder / "added_tokens.json").write_text(json.dumps({"<new>": size}))
        self.assertIn(f'"<new>" has the id {size}, and the token behind those that are there is {size - 1}', self.refusal(folder))

    def test_settings_of_config_json_count_where_there_is_no_generation_config(self):
        folder = self.copy("bart")
        own = {"num_beams": 3, "forced_bos_token_id": 5, "bad_words_ids": [[7]], "repetition_penalty": 1.5, "top_k": 50}
        (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **own}))
        generation = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").write_text(json.dumps({key: value for key, value in generation.items() if key not in own}))
        manifest, lines = self.folder / "model.toml", ("beams = 3", "forced = [", "suppress = [", "repetition_penalty = 1.5")
        note = self.run_ok("import", folder, "-o", manifest, "--json").json()["notes"][-1]
        self.assertIn("says num_beams = 3, repetition_penalty = 1.5, bad_words_ids = [[7]], forced_bos_token_id = 5 of how texts are written, "
                      "which counts for nothing beside", note)
        for line in lines:
            self.assertNotIn(line, manifest.read_text())
        (folder / "generation_config.json").unlink()
        self.imported(folder)
        for line in lines:
            self.assertIn(line, manifest.read_text())

    def test_nllb_has_its_languages_first_in_both(self):
        folder = self.copy("nllb")
        texts = json.loads((folder / "texts.json").read_text())
        whole = self.imported(folder)
        ids = [self.run_ok("tokenize", whole, "--text", source).out for source in texts]
        (folder / "tokenizer.json").unlink()
        manifest = self.imported(folder)
        for line in ('begin = "eng_Latn"', 'numbering = "fairseq"', "forced = [242]"):
            self.assertIn(line, manifest.read_text())
        self.assertEqual([self.run_ok("tokenize", manifest, "--text", source).out for source in texts], ids)
        self.compare_searches(manifest, texts, "ids of fairseq")
        manifest.write_text(manifest.read_text().replace("forced = [242]", 'forced = ["deu_Latn"]'))
        self.compare_searches(manifest, texts, "a language by name")
        manifest.write_text(manifest.read_text().replace('numbering = "fairseq"', 'numbering = "fairseq", ids = "x.json"', 1))
        self.assertIn('"numbering" is for files without "ids"', self.run_code(3, "validate", manifest).out)

    def test_pieces_without_a_tokenizer_json_are_the_same_tokens(self):
        folder = self.copy("t5")
        with_json, texts = self.imported(folder), json.loads((folder / "texts.json").read_text())
        ids = [self.run_ok("tokenize", with_json, "--text", source).out for source in texts]
        (folder / "spiece.model").write_bytes(spiece(json.loads((folder / "tokenizer.json").read_text())))
        (folder / "tokenizer.json").unlink()
        self.assertIn('spiece.model: has no token "<pad>", which begin names', self.refusal(folder))
        (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "<s>"}, "eos_token": "</s>"}))
        manifest = self.imported(folder)
        self.assertIn('spiece.model"', manifest.read_text())
        self.assertEqual([self.run_ok("tokenize", manifest, "--text", source).out for source in texts], ids)
        self.compare_searches(manifest, texts, "spiece.model")
        (folder / "spiece.model").write_bytes(b"pieces")
        self.assertIn("spiece.model: is no SentencePiece file, or is damaged", self.run_code(6, "validate", manifest).out)
        (folder / "spiece.model").unlink()
        self.assertIn("holds no tokenizer.json, no spiece.model, and no vocab.json", self.refusal(folder))

    def refusal(self, folder):
        return self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err

    def test_what_begins_and_what_never_comes(self):
        for name, line in (("bart", 'begin = "</s>"'), ("marian", 'begin = "<pad>"'), ("marian", 'suppress = ["<pad>"]'),
                           ("m2m100", 'begin = "__en__"'), ("m2m100", 'forced = ["__de__"]')):
            self.assertIn(line, self.imported(GOLDEN / name).read_text())

    def test_languages_are_words_of_the_manifest(self):
        manifest = self.imported(GOLDEN / "m2m100")
        text = manifest.read_text()
        ids = self.run_ok("tokenize", manifest, "--text", "The attention").out.split()
        german = self.run_ok("run", manifest, "--text", "The attention", "--limit", 12).out
        manifest.write_text(text.replace('forced = ["__de__"]', 'forced = ["__fr__"]'))
        self.assertNotEqual(self.run_ok("run", manifest, "--text", "The attention", "--limit", 12).out, german)
        manifest.write_text(text.replace('begin = "__en__"', 'begin = "__fr__"'))
        other = self.run_ok("tokenize", manifest, "--text", "The attention").out.split()
        self.assertEqual((ids[1:], ids[0] != other[0]), (other[1:], True))
        manifest.write_text(text.replace('forced = ["__de__"]', 'forced = ["__nowhere__"]'))
        self.assertIn('"forced": "__nowhere__" is no token of the decoder\'s vocabulary', self.run_code(3, "validate", manifest).out)

    def test_a_code_in_front_of_a_text_is_a_token(self):
        manifest = self.imported(GOLDEN / "marian")
        ids = [self.run_ok("tokenize", manifest, "--text", text).out.split() for text in ("of each", ">>de<<of each", ">>xx<<of each")]
        self.assertEqual(ids[1][1:], ids[0])
        self.assertNotEqual(ids[2][-len(ids[0]):], ids[2])

    def test_other_mechanisms_do_without_the_bias(self):
        manifest = self.imported(GOLDEN / "t5")
        text, golden = manifest.read_text(), GOLDEN / "t5/golden.safetensors"
        for role in ("encoder.self", "decoder.self"):
            manifest.write_text(text.replace(f'"{role}" = "relative_bias"', f'"{role}" = "softmax"'))
            document = self.run_code(7, "verify", manifest, "--golden", golden, "--json").json()
            self.assertEqual(document["first"], role.replace("self", "ffn.1"))

    def test_characters_of_the_other_side_are_its_tokens(self):
        manifest, ids = self.imported(GOLDEN / "marian"), json.loads((GOLDEN / "marian/vocab.json").read_text())
        self.assertIn(str(ids["T"]), self.run_ok("tokenize", manifest, "--text", "The attention").out.split())

    def test_what_a_config_cannot_say(self):
        for name, change, message in (
                ("marian", {"activation_function": "mish"}, 'activation_function is "mish", which is not supported; gelu, '),
                ("marian", {"normalize_before": True}, 'normalize_before is true, which "marian" does not support; false is'),
                ("m2m100", {"pad_token_id": 0}, 'pad_token_id is 0, which "m2m100" does not support; 1 is'),
                ("t5", {"feed_forward_proj": "gated-mish"}, 'feed_forward_proj is "gated-mish", which is not supported'),
                ("gemma", {"final_logit_softcapping": 30.0}, 'final_logit_softcapping is 30.0, which "gemma" does not support; it must not be there')):
            folder = self.copy(name)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, **change}))
            self.assertIn(message, self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)
            shutil.rmtree(folder)

    def test_vocabularies_that_are_broken(self):
        for file, content, message in (
                ("vocab.json", "{}", "is 219, which is no token of the vocabulary"), ("vocab.json", "[", "vocab.json"),
                ("vocab.json", json.dumps({"</s>": 0, "<unk>": 0, "<pad>": 219}), "have the same id 0"),
                ("vocab.json", json.dumps({"</s>": 0, "<pad>": 219}), 'has no token "<unk>"'),
                ("vocab.json", json.dumps({"</s>": 0, "<unk>": -1, "<pad>": 219}), "is -1; ids are 0 to"),
                ("target.spm", None, "target.spm: is not there"), ("source.spm", "x", "source.spm: is no SentencePiece file")):
            folder = self.copy("marian")
            (folder / file).unlink()
            if content is not None:
                (folder / file).write_text(content)
            self.assertIn(message, self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)
            shutil.rmtree(folder)


if __name__ == "__main__":
    unittest.main()
