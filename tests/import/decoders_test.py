"""Language models: the numbers and the tokens of transformers, and how tokens are drawn."""
import json
import shutil
import unittest

from arrays import read_safetensors, write_safetensors
from imported import DECODERS, GOLDEN, SENTENCES, ImportTest, spiece


class Decoders(ImportTest):
    """Language models."""

    def test_every_layer_is_that_of_transformers(self):
        for name in DECODERS:
            manifest = self.imported(GOLDEN / name)
            layers = self.run_ok("verify", manifest, "--golden", GOLDEN / name / "golden.safetensors", "--json").json()["layers"]
            self.assertEqual([layer["layer"] for layer in layers], ["decoder.ffn.1", "decoder", "logits"])
            for layer in layers:
                self.assertLessEqual(layer["error"], 1e-5, (name, layer))
                self.assertGreater(layer["largest"], 0.1, (name, layer))

    def test_a_bundle_is_the_same_model(self):
        for name in DECODERS:
            bundle = self.folder / f"bundle-{name}"
            self.run_ok("bundle", self.imported(GOLDEN / name), "-o", bundle)
            shutil.copy(GOLDEN / name / "golden.safetensors", bundle)
            self.run_ok("verify", bundle / "model.toml", "--tolerance", "1e-4")

    def test_any_mechanism_by_one_line(self):
        texts = ["--text", SENTENCES[0], "--text", SENTENCES[3], "--limit", 12]
        for name in ("llama", "qwen3"):
            manifest = self.imported(GOLDEN / name)
            as_trained, text = self.run_ok("run", manifest, *texts).out, manifest.read_text()
            for mechanism in ("relu", "linear", "latte", *(["s4d"] if name == "llama" else [])):
                manifest.write_text(text.replace('default = "softmax"', f'"decoder.self" = "{mechanism}"'))
                self.assertNotEqual(self.run_ok("run", manifest, *texts).out, as_trained, mechanism)

    def test_what_config_json_leaves_out_is_what_transformers_takes(self):
        """A key that is not there (without), or says something else."""
        for name, without, changes, lines, absent in (
                ("mistral", ["sliding_window"], {}, ["window = 4096"], []),
                ("mistral", [], {"sliding_window": None}, ['default = "softmax"'], ["window ="]),
                ("mistral", [], {"layer_types": ["full_attention", "sliding_attention"]},
                 ['default = "softmax"', 'layers = [2]\nuse = "local"', "window = 5"], []),
                ("mistral", [], {"layer_types": ["sliding_attention"] * 2, "sliding_window": None}, ['default = "softmax"'], ["override", "window ="]),
                ("mistral", [], {"layer_types": ["full_attention"] * 2}, ['default = "softmax"'], ["override"]),
                ("t5", [], {"dense_act_fn": "silu"}, ['activation = "silu"'], []),
                ("mt5", [], {"dense_act_fn": "relu"}, ["gated = true", 'activation = "relu"'], []),
                ("llama3", [], {"rope_parameters": {"original_max_position_embeddings": None}}, ["original_length = 64"], []),
                ("llama3", [], {"original_max_position_embeddings": 16}, ["original_length = 16"], []),
                ("llama3", [], {"rope_parameters": {"rope_type": "linear"}}, ['scaling = "linear"'], ["original_length"]),
                ("phi3", ["original_max_position_embeddings"], {}, ["original_length = 4096"], []),
                ("qwen2-window", ["layer_types"], {"sliding_window": None}, [], ["window ="]),
                ("mt5", ["feed_forward_proj"], {}, ["gated = true", 'activation = "gelu_tanh"'], [])):
            folder = self.copy(name)
            config = json.loads((folder / "config.json").read_text())
            for key, value in changes.items():
                config[key] = {**config[key], **value} if isinstance(value, dict) else value
            if config.get("rope_parameters", {}).get("rope_type") == "linear":
                for key in ("low_freq_factor", "high_freq_factor"):
                    del config["rope_parameters"][key]
            (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in without}))
            manifest = self.imported(folder).read_text()
            for line in lines:
                self.assertIn(line, manifest, (name, without, changes))
            for line in absent:
                self.assertNotIn(line, manifest, (name, without, changes))
            shutil.rmtree(folder)

    def test_tokens_are_those_of_transformers(self):
        for name in DECODERS:
            self.compare_searches(self.imported(GOLDEN / name), json.loads((GOLDEN / name / "texts.json").read_text()), name)

    def test_tokens_behind_the_pieces_of_a_file(self):
        """A decoder alone has one side of text."""
        folder = self.copy("llama")
        (folder / "tokenizer.json").unlink()
        document = json.loads((GOLDEN / "t5/tokenizer.json").read_text())
        (folder / "spiece.model").write_bytes(spiece(document))
        behind = len(document["model"]["vocab"])
        (folder / "added_tokens.json").write_text(json.dumps({"<new>": behind}))
        manifest = self.imported(folder)
        self.assertNotIn("[model.encoder]", manifest.read_text())
        ids = self.run_ok("tokenize", manifest, "--text", "head<new>", "--json").json()["results"][0]["ids"]
        self.assertIn(behind, ids)

    def test_several_tokens_end_a_text(self):
        folder, golden = self.copy("llama"), json.loads((GOLDEN / "llama/ends.json").read_text())
        settings = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": golden["eos_token_id"]}))
        manifest = self.imported(folder)
        self.assertIn("more_ends = [", manifest.read_text())
        self.compare_searches(manifest, golden["ids"], "ends")

    def test_a_tensor_that_the_manifest_has_no_place_for_is_named(self):
        folder = self.copy("llama")
        tensors = read_safetensors(folder / "model.safetensors")
        tensors["model.layers.0.self_attn.q_proj.bias"] = ([32], [3.0] * 32)
        write_safetensors(folder / "model.safetensors", tensors)
        result = self.run_code(5, "import", folder, "-o", self.folder / "x.toml")
        self.assertIn('tensor "decoder.self.1.q.bias" of shape 32 belongs to nothing in this model', result.err)

    def test_a_head_that_is_tied_may_be_there_twice(self):
        folder = self.copy("qwen3")
        tensors = read_safetensors(folder / "model.safetensors")
        shape, values = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = (shape, values)
        write_safetensors(folder / "model.safetensors", tensors)
        self.run_ok("verify", self.imported(folder), "--golden", folder / "golden.safetensors", "--tolerance", "1e-5")
        tensors["lm_head.weight"] = (shape, (*values[:-1], 9.0))
        write_safetensors(folder / "model.safetensors", tensors)
        result = self.run_code(5, "import", folder, "-o", self.folder / "x.toml")
        self.assertIn(f'tensor "head.weight" of shape {shape[0]}x{shape[1]} belongs to nothing in this model', result.err)

    def test_what_a_manifest_does_not_say_is_a_note(self):
        folder = self.copy("llama")
        (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Transformer", "path": ""},
                                                         {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]))
        shutil.copytree(GOLDEN / "bert/1_Pooling", folder / "1_Pooling")
        file = folder / "generation_config.json"
        plain = json.loads(file.read_text())
        def notes(**settings):
            file.write_text(json.dumps({**plain, **settings}))
            return self.run_ok("import", folder, "-o", self.folder / "model.toml", "--json").json()["notes"]
        neutral = notes(renormalize_logits=False, token_healing=False, num_return_sequences=1, max_time=None, force_words_ids=None)
        self.assertEqual(neutral, ["modules.json makes one vector of a text: this model writes texts and makes none"])
        said = {"renormalize_logits": True, "token_healing": True, "num_return_sequences": 2, "max_time": 2.5, "force_words_ids": [[5]],
                "constraints": [1], "top_h": 0.4, "dola_layers": "low", "forced_bos_token_id": 5}
        for key, value in said.items():
            self.assertIn(f"says {key} = {json.dumps(value).replace(' ', '')} of how texts are written, and the manifest does not",
                          "\n".join(notes(**{key: value})))

    def test_biases_are_said_by_projection(self):
        for name, attention, mlp, said in (("llama-attention-bias", True, False, '["q", "k", "v", "o"]'), ("llama", False, False, '"none"'),
                                           ("llama-mlp-bias", False, True, '["in", "gate", "out"]')):
            config = json.loads((GOLDEN / name / "config.json").read_text())
            self.assertEqual((config["attention_bias"], config["mlp_bias"]), (attention, mlp))
            self.assertIn(f"bias = {said}\n", self.imported(GOLDEN / name).read_text())

    def test_windows_are_said_by_layer(self):
        folder = self.copy("qwen2-window")
        config = json.loads((folder / "config.json").read_text())
        def override(**said):
            (folder / "config.json").write_text(json.dumps({key: value for key, value in {**config, **said}.items() if value is not None}))
            _, _, text = self.imported(folder).read_text().partition("[[attention.override]]\n")
            return text.partition("\n\n")[0].strip()
        self.assertEqual(override(), 'block = "decoder.self"\nlayers = [1]\nuse = "local"\nparams = { window = 5 }')
        # Older configurations say from which layer on.
        self.assertIn('layers = "2..2"', override(layer_types=None, max_window_layers=1))
        self.assertEqual(override(layer_types=None, max_window_layers=2), "")
        self.assertEqual(override(use_sliding_window=False), "")
        self.assertEqual(override(layer_types=["full_attention"] * 2), "")

    def test_a_fused_layer_has_the_parts_that_heads_say(self):
        folder = self.copy("phi3")
        config = json.loads((folder / "config.json").read_text())
        self.assertEqual((config["num_attention_heads"], config["num_key_value_heads"]), (4, 1))
        (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
        self.assertIn("is 8x16, the model needs 16x16", self.run_code(5, "import", folder, "-o", self.folder / "x.toml").err)
        (folder / "config.json").write_text(json.dumps({**config, "partial_rotary_factor": 0.75}))
        self.assertIn("partial_rotary_factor is 0.75", self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)

    def test_keys_that_must_say_the_same(self):
        folder = self.copy("bart")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "decoder_attention_heads": 1}))
        self.assertIn("decoder_attention_heads is 1, and encoder_attention_heads is 4: they must be the same",
                      self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)

    def test_texts_that_no_token_begins(self):
        folder = self.copy("gpt2")
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
        manifest = self.imported(folder)
        self.assertTrue(self.run_ok("run", manifest, "--text", "The head", "--limit", 4).out)
        self.run_ok("bench", manifest, "--length", 16)
        self.assertIn("head", self.run_ok("inspect", manifest, "--attention", "decoder.self.1", "--text", "The head").out)
        self.assertIn("is empty", self.run_code(6, "run", manifest, "--text", "").err)
        data = self.folder / "texts.txt"
        data.write_text("The attention of each head\nThe head\n")
        self.run_ok("search", manifest, "--strategy", "ablation", "--space", "decoder.self=softmax,relu", "--data", data, "--length", 16,
                    "--lengths", "16", "--rank", "quality", "--quick", "-o", self.folder / "search")

    def test_texts_are_drawn_at_random_the_same_for_a_seed(self):
        manifest = self.imported(GOLDEN / "qwen3")
        texts = [argument for text in SENTENCES[:4] for argument in ("--text", text)]
        def drawn(*more):
            return self.run_ok("run", manifest, *texts, "--limit", 12, *more, "--json").json()["results"]
        hot = drawn("--temperature", 1.5, "--seed", 4)
        for batch in (1, 3):  # whatever stands beside it
            self.assertEqual(drawn("--temperature", 1.5, "--seed", 4, "--batch", batch), hot)
        self.assertNotEqual(drawn("--temperature", 1.5, "--seed", 5), hot)
        greedy = drawn()
        self.assertNotEqual(greedy, hot)
        self.assertEqual(drawn("--temperature", 1.5, "--top-k", 1), greedy)
        self.assertEqual(drawn("--temperature", 1.5, "--top-p", 0), greedy)
        self.assertEqual(drawn("--temperature", 1e-6), greedy)
        self.assertNotEqual(drawn("--repetition-penalty", 5), greedy)

    def test_an_output_ends_before_a_stop(self):
        manifest = self.imported(GOLDEN / "gpt2")
        whole = self.run_ok("run", manifest, "--text", SENTENCES[0], "--limit", 12, "--json").json()["results"][0]["output"]
        stop = whole[4:6]
        out = self.run_ok("run", manifest, "--text", SENTENCES[0], "--limit", 12, "--stop", "never", "--stop", stop, "--json").json()
        self.assertEqual(out["results"][0]["output"], whole[:whole.index(stop)])

    def test_options_that_contradict_each_other(self):
        manifest = self.imported(GOLDEN / "gpt2")
        for options, message in ((("--top-k", 3), "--top-k says how tokens are drawn: it needs --temperature"),
                                 (("--temperature", "hot"), '--temperature "hot": it must be a number from 0 to 1000'),
                                 (("--temperature", 1, "--beams", 2), "draw one text; give --beams 1"),
                                 (("--stop", ""), "--stop needs a text")):
            self.assertIn(message, self.run_code(2, "run", manifest, "--text", "a", *options).err)
        self.assertIn("are for models that write", self.run_code(
            2, "run", self.imported(GOLDEN / "bert"), "--text", "a", "--temperature", 1).err)


if __name__ == "__main__":
    unittest.main()
