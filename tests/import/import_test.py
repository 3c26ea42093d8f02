"""attnkit import of tiny random models: the very same numbers as transformers', and one clear error for what does not fit."""
import base64
import json
import pathlib
import re
import shutil
import struct
import unittest
import wave
import zipfile

from arrays import read_npy, read_safetensors, write_safetensors
from command import CommandTest, attnkit

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden"
MODELS = ["bert", "bert-sharded", "distilbert", "roberta", "xlm-roberta"]
DECODERS = ["gemma", "gpt2", "llama", "llama-attention-bias", "llama-longrope", "llama-mlp-bias", "llama3", "mistral", "phi3", "qwen2", "qwen2-window",
            "qwen3"]
# After the last layer of these nothing is left to do, or a norm.
POST_NORM, PRE_NORM = ["bart", "marian"], ["m2m100", "mt5", "nllb", "t5", "t5-gated"]
TRANSLATORS = POST_NORM + PRE_NORM
SUPPORTED = "bart, bert, distilbert, gemma, gpt2, llama, m2m_100, marian, mistral, mt5, phi3, qwen2, qwen3, roberta, xlm-roberta, t5, whisper"
SPEECH = ["whisper"]
SENTENCES = ["The attention of each head.", "", "Unaffable tokens run: 3.14!", "naïve façade мир", "a " * 80]


def spiece(tokenizer):
    """SentencePiece's file of a tokenizer.json's pieces, in protocol buffers."""

    def field(number, value):
        if isinstance(value, float):
            return bytes([number << 3 | 5]) + struct.pack("<f", value)
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def varint(value):
        made = b""
        while value > 127:
            made, value = made + bytes([value & 127 | 128]), value >> 7
        return made + bytes([value])

    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    pieces = [field(1, text.encode()) + field(2, float(score)) + field(3, kinds.get(text, 1)) for text, score in tokenizer["model"]["vocab"]]
    charsmap = base64.b64decode(tokenizer["normalizer"]["normalizers"][0]["precompiled_charsmap"])
    return b"".join(field(1, piece) for piece in pieces) + field(2, field(3, 1) + field(42, 2)) + field(3, field(2, charsmap))


class ImportTest(CommandTest):
    def copy(self, name):
        folder = self.folder / name
        shutil.copytree(GOLDEN / name, folder)
        return folder

    def imported(self, folder, *more):
        manifest = self.folder / "model.toml"
        self.run_ok("import", folder, "-o", manifest, *more)
        return manifest

    def written(self, manifest, text, *more):
        """What one text becomes."""
        return self.run_ok("run", manifest, "--text", text, *more, "--json").json()["results"][0]

    def compare_searches(self, manifest, golden, what):
        """The ids of up to 12 tokens that another library writes of each text greedily, and with four beams until none can be better;
        and their texts, where it has them."""
        manifest.write_text(manifest.read_text().replace('early_stop = "guess"', 'early_stop = "never"'))
        for text, searches in golden.items():
            for beams, expected in ((1, searches["greedy"]), (4, searches["beams"])):
                made = self.written(manifest, text, "--limit", 12, "--beams", beams)
                ids, back = (expected["ids"], expected["text"]) if isinstance(expected, dict) else (expected, made["output"])
                self.assertEqual((made["ids"], made["output"].strip()), (ids, back.strip()), (what, text, beams))


class Models(ImportTest):
    def test_are_all_that_there_are(self):
        self.assertEqual(sorted(folder.name for folder in GOLDEN.iterdir()), sorted(MODELS + DECODERS + TRANSLATORS + SPEECH))

    def test_every_layer_is_that_of_transformers(self):
        for name in MODELS:
            manifest = self.imported(GOLDEN / name)
            layers = self.run_ok("verify", manifest, "--golden", GOLDEN / name / "golden.safetensors", "--json").json()["layers"]
            self.assertEqual([layer["layer"] for layer in layers], ["encoder.ffn.1", "encoder.ffn.2", "encoder", "logits"])
            for layer in layers:
                self.assertLessEqual(layer["error"], 1e-5, (name, layer))
                self.assertGreater(layer["largest"], 0.1, (name, layer))

    def test_texts_become_the_same_ids_and_vectors(self):
        texts = [argument for text in SENTENCES for argument in ("--text", text)]
        for name in MODELS:
            manifest, golden = self.imported(GOLDEN / name), read_safetensors(GOLDEN / name / "golden.safetensors")
            (rows, length), source = golden["source"]
            ids = [list(source[length * b:length * b + n]) for b, n in enumerate(golden["source_len"][1])]
            self.assertEqual(rows, len(SENTENCES))
            self.assertEqual([r["ids"] for r in self.run_ok("tokenize", manifest, *texts, "--json").json()["results"]], ids)
            lines = self.run_ok("tokenize", manifest, *texts).lines()
            self.assertEqual([list(map(int, line.split())) for line in lines], ids)
            (_, width), vectors = golden["logits"]
            expected = [vectors[width * b:width * (b + 1)] for b in range(rows)]
            array = self.folder / "vectors.npy"
            # One by one and all at once: the result of a text does not depend on the others.
            results = self.run_ok("run", manifest, *texts, "--batch", 1, "--output", array, "--json").json()["results"]
            printed = [list(map(float, line.split())) for line in self.run_ok("run", manifest, *texts).lines()]
            for i, row in enumerate(read_npy(array)):
                for c in range(width):
                    self.assertAlmostEqual(row[c], expected[i][c], delta=1e-5)
                    self.assertAlmostEqual(results[i]["vector"][c], row[c], delta=1e-7)
                    self.assertEqual(printed[i][c], results[i]["vector"][c])

    def test_pieces_without_a_tokenizer_json_have_the_ids_of_fairseq(self):
        folder, texts = self.copy("xlm-roberta"), [argument for text in SENTENCES for argument in ("--text", text)]
        ids = self.run_ok("tokenize", self.imported(folder), *texts).out
        (folder / "tokenizer.json").unlink()
        manifest = self.imported(folder)
        self.assertIn('numbering = "fairseq"', manifest.read_text())
        self.assertEqual(self.run_ok("tokenize", manifest, *texts).out, ids)
        self.run_ok("verify", manifest, "--golden", folder / "golden.safetensors", "--tolerance", "1e-5")

    def test_vectors_of_e5_are_normalised_means(self):
        """E5's files say so in modules.json, of BERT and, the multilingual ones, of XLM-R."""
        for name in ("bert", "xlm-roberta"):
            folder, golden = self.copy(name), read_safetensors(GOLDEN / name / "golden.safetensors")
            pooling = json.loads((folder / "1_Pooling/config.json").read_text())
            pooling.update(pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)
            (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
            manifest = self.imported(folder)
            self.assertIn('head = { type = "embedding", pool = "mean", normalise = true }', manifest.read_text())
            (_, length, width), rows = golden["encoder"]
            for b, (text, n) in enumerate(zip(SENTENCES, golden["source_len"][1], strict=True)):
                own = [rows[(b * length + i) * width:(b * length + i + 1) * width] for i in range(n)]
                mean = [sum(column) / n for column in zip(*own)]
                norm = sum(x * x for x in mean) ** 0.5
                for ours, theirs in zip(self.written(manifest, text)["vector"], mean, strict=True):
                    self.assertAlmostEqual(ours, theirs / norm, delta=1e-5)

    def test_a_pooler_is_that_of_transformers(self):
        manifest = self.imported(GOLDEN / "bert")
        manifest.write_text(re.sub("(?m)^head = .*$", 'head = { type = "embedding", pool = "first", pooler = true }', manifest.read_text()))
        texts = [argument for text in SENTENCES for argument in ("--text", text)]
        results = self.run_ok("run", manifest, *texts, "--json").json()["results"]
        for result, expected in zip(results, json.loads((GOLDEN / "bert/pooler.json").read_text()), strict=True):
            for ours, theirs in zip(result["vector"], expected, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-5)

    def test_an_array_is_for_vectors(self):
        sample = HERE.parent.parent / "samples/models/numbers-en-de/model.toml"
        result = self.run_code(2, "run", sample, "--text", "one", "--output", self.folder / "x.npy")
        self.assertIn("this model gives out no vectors for an array", result.err)

    def test_any_mechanism_by_one_line(self):
        manifest = self.imported(GOLDEN / "bert")
        vector = self.run_ok("run", manifest, "--text", SENTENCES[0]).out
        text = manifest.read_text()
        for mechanism in ("relu", "cosformer", "linformer", "latte", "luna", "local"):
            manifest.write_text(text.replace('default = "softmax"', f'"encoder.self" = "{mechanism}"'))
            other = self.run_ok("run", manifest, "--text", SENTENCES[0]).out
            self.assertEqual(len(other.split()), 32, mechanism)
            self.assertNotEqual(other, vector, mechanism)

    def test_other_commands_take_it(self):
        manifest = self.imported(GOLDEN / "bert-sharded")
        self.assertIn("softmax", self.run_ok("inspect", manifest).out)
        self.assertEqual(self.run_ok("validate", manifest).out.split(":")[1].strip(), "ok, 2 blocks, 25.7 k parameters")
        self.run_ok("bench", manifest, "--length", "16")
        result = self.run_code(2, "search", manifest, "--space", "encoder.self=softmax,relu", "--metric", "exact", "-o", self.folder / "s")
        self.assertIn("--metric exact: this model gives out vectors, which are compared by cosine", result.err)

    def test_a_search_compares_vectors_with_those_of_the_model_as_it_is(self):
        manifest, data, out = self.imported(GOLDEN / "bert"), self.folder / "texts.txt", self.folder / "search"
        texts = [f"The attention of each head {i}." for i in range(20)]
        data.write_text("\n".join(texts) + "\n")
        self.run_ok("search", manifest, "--strategy", "ablation", "--per-layer", "--space", "encoder.self=softmax,relu,latte",
                    "--data", data, "--length", 16, "--lengths", "16", "--rank", "quality", "--thorough", "-o", out)
        placements = json.loads((out / "result.json").read_text())["placements"]
        self.assertEqual(len(placements), 7)  # one layer at a time, and one mechanism in all
        vectors = self.folder / "vectors.npy"
        def vectors_of(model):
            self.run_ok("run", model, "--file", data, "--output", vectors)
            return read_npy(vectors)
        own = vectors_of(manifest)
        for placement in placements:
            layers, text = placement["blocks"]["encoder.self"], manifest.read_text()
            for layer, mechanism in enumerate(layers, 1):
                text += f'[[attention.override]]\nblock = "encoder.self"\nlayers = {layer}\nuse = "{mechanism}"\n'
            other = self.folder / "other.toml"
            other.write_text(text)
            cosines = [sum(x * y for x, y in zip(a, b)) for a, b in zip(own, vectors_of(other))]
            self.assertAlmostEqual(placement["quality"]["value"], sum(cosines) / len(cosines), delta=1e-5)
            if layers == ["softmax", "softmax"]:
                self.assertAlmostEqual(placement["quality"]["value"], 1, delta=1e-6)

    def test_a_bundle_is_the_same_model(self):
        for name in MODELS:
            manifest = self.imported(GOLDEN / name)
            bundle = self.folder / f"bundle-{name}"
            self.run_ok("bundle", manifest, "-o", bundle)
            shutil.copy(GOLDEN / name / "golden.safetensors", bundle)
            self.run_ok("verify", bundle / "model.toml", "--tolerance", "1e-5")

    def test_paths_are_relative_to_the_manifest(self):
        folder = self.copy("bert")
        self.run_ok("import", "bert", "-o", "model.toml", cwd=self.folder)
        text = (self.folder / "model.toml").read_text()
        self.assertIn('file = "bert/model.safetensors"', text)
        self.assertIn('vocab = "bert/tokenizer.json"', text)
        moved = self.folder / "moved"
        moved.mkdir()
        shutil.move(folder, moved)
        shutil.move(self.folder / "model.toml", moved)
        self.run_ok("validate", moved / "model.toml")

    def test_says_what_it_took(self):
        result = self.run_ok("import", GOLDEN / "distilbert", "-o", self.folder / "m.toml", "--name", "tiny", "--json").json()
        self.assertEqual((result["architecture"], result["parameters"]), ("distilbert", 25680))
        self.assertEqual(result["notes"], ["no modules.json says how rows become a vector: their mean, not normalised"])
        self.assertIn('name = "tiny"', (self.folder / "m.toml").read_text())


    def test_notes_a_prompt_that_texts_must_bring_along(self):
        folder = self.copy("bert")
        for prompts, notes in (({"prompts": {"query": "query: "}, "default_prompt_name": None}, 0), ({"default_prompt_name": "query"}, 1)):
            (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
            made = self.run_ok("import", folder, "-o", self.folder / "m.toml", "--json").json()
            self.assertEqual(len(made["notes"]), notes, made)


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

    def test_tokens_are_those_of_transformers(self):
        for name in DECODERS:
            self.compare_searches(self.imported(GOLDEN / name), json.loads((GOLDEN / name / "texts.json").read_text()), name)

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
        file.write_text(json.dumps({**json.loads(file.read_text()), "do_sample": True, "temperature": 1.5, "top_p": 0.9, "typical_p": 0.5}))
        manifest = self.folder / "model.toml"
        notes = self.run_ok("import", folder, "-o", manifest, "--json").json()["notes"]
        self.assertEqual(len([note for note in notes if "typical_p = 0.5" in note]), 1, notes)
        plain = self.folder / "plain.toml"
        self.run_ok("import", GOLDEN / "llama", "-o", plain)
        def written(model, *more):
            return self.run_ok("run", model, "--text", "The attention", "--limit", 12, *more).out
        self.assertEqual(written(plain, "--temperature", 1.5, "--top-p", 0.9, "--top-k", 50), written(manifest))
        self.assertEqual(written(manifest, "--temperature", 0), written(plain))
        self.assertNotEqual(written(manifest), written(plain))

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
        manifest.write_text(text.replace("__en__", "__fr__"))
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


class Speech(ImportTest):
    """Models that hear and write."""

    RECORDINGS = [argument for i in (1, 2) for argument in ("--audio", GOLDEN / "whisper" / f"{i}.wav")]

    def ids(self, manifest, *more):
        results = self.run_ok("run", manifest, *self.RECORDINGS, "--limit", 19, *more, "--json").json()["results"]
        return [result["ids"] for result in results]

    def test_every_layer_is_that_of_transformers(self):
        manifest = self.imported(GOLDEN / "whisper")
        layers = self.run_ok("verify", manifest, "--golden", GOLDEN / "whisper/golden.safetensors", "--json").json()["layers"]
        self.assertEqual([layer["layer"] for layer in layers], ["encoder.ffn.1", "encoder", "decoder.ffn.1", "decoder", "logits"])
        for layer in layers:
            self.assertLessEqual(layer["error"], 1e-5, layer)
            self.assertGreater(layer["largest"], 0.1, layer)

    def test_tokens_are_those_of_transformers_in_every_language(self):
        manifest = self.imported(GOLDEN / "whisper")
        text = manifest.read_text()
        expected = json.loads((GOLDEN / "whisper/texts.json").read_text())
        self.assertNotEqual(expected["<|en|>"], expected["<|de|>"])
        for language, ids in expected.items():
            manifest.write_text(text.replace("<|en|>", language).replace('early_stop = "guess"', 'early_stop = "never"'))
            self.assertEqual(self.ids(manifest), ids["greedy"], language)
            self.assertEqual(self.ids(manifest, "--beams", 4), ids["beams"], language)

    def test_without_its_rules_it_writes_something_else(self):
        manifest = self.imported(GOLDEN / "whisper")
        ids, text = self.ids(manifest), manifest.read_text()
        suppressed = sorted(set(sum(ids, [])))
        for key in ("suppress", "suppress_first"):
            first = {one[0] for one in ids}
            manifest.write_text(re.sub(f"(?m)^{key} = .*$", f"{key} = {suppressed}", text))
            other = self.ids(manifest)
            if key == "suppress":
                self.assertFalse(set(suppressed) & set(sum(other, [])))
            else:
                self.assertFalse(first & {one[0] for one in other})

    def test_a_target_ends_where_the_decoder_has_no_more_positions(self):
        manifest = self.imported(GOLDEN / "whisper")
        results = self.run_ok("run", manifest, *self.RECORDINGS, "--limit", 100, "--json").json()["results"]
        self.assertEqual([result["tokens"] for result in results], [40, 40])
        self.assertTrue(self.run_ok("run", manifest, *self.RECORDINGS, "--beams", 3).out)
        with wave.open(str(GOLDEN / "whisper/1.wav")) as file:
            samples = file.readframes(file.getnframes())
        live = self.run_ok("stream", manifest, "--audio", "-", "--policy", "offline", "--limit", 100, "--json", stdin=samples).json()
        self.assertEqual(live["results"][0]["tokens"], 40)
        self.assertIn("--length 48: the model takes up to 40 tokens (max_length)", self.run_code(2, "bench", manifest, "--length", 48).err)

    def test_lengths_of_references_count_forced_tokens(self):
        manifest = self.imported(GOLDEN / "whisper")
        manifest.write_text(manifest.read_text().replace("[attention]", '[length]\npredict = "reference"\n[attention]\n"decoder.self" = "cosformer"'))
        result = self.run_ok("run", manifest, *self.RECORDINGS[:2], "--target", "and so on", "--limit", 8, "--json").json()["results"][0]
        forced = 3  # the language, the task, no timestamps
        self.assertEqual(result["target_length"], forced + result["reference_tokens"])

    def test_a_long_recording_is_cut_where_it_is_quietest(self):
        manifest = self.imported(GOLDEN / "whisper")
        with wave.open(str(GOLDEN / "whisper/1.wav")) as short:
            spoken = short.readframes(short.getnframes())
        # A window is a second: silence of 0.12 s within its last sixth, and none where the second window ends.
        loud = spoken * 4
        parts = {"0": loud[:2 * 14000], "1": bytes(2 * 1920), "2": loud[:2 * 20000]}
        long, raw = self.folder / "long.wav", b"".join(parts.values())
        self.write(long, raw)
        result = self.run_ok("run", manifest, "--audio", long, "--limit", 19, "--json").json()
        windows = result["results"][0]["windows"]
        ends = [round(16000 * w["end"]) for w in windows]
        self.assertEqual([round(16000 * w["begin"]) for w in windows], [0, *ends[:-1]])
        # The last tenth of a second that lies in the silence, on a grid of hundredths from the last sixth on.
        self.assertEqual((ends[0], ends[-1]), (16000 - 2666 + 160 * 6 + 800, len(raw) // 2))
        self.assertTrue(all(0 < b - a <= 16000 for a, b in zip([0, *ends], ends)), ends)
        self.assertAlmostEqual(result["summary"]["speech_seconds"], len(raw) / 32000)
        alone = []
        for i, (begin, end) in enumerate(zip([0, *ends], ends)):
            self.write(self.folder / f"{i}.wav", raw[2 * begin:2 * end])
            alone.append(self.run_ok("run", manifest, "--audio", self.folder / f"{i}.wav", "--limit", 19, "--json").json()["results"][0])
        self.assertEqual([w["ids"] for w in windows], [one["ids"] for one in alone])
        self.assertEqual(result["results"][0]["output"], "".join(one["output"] for one in alone))
        self.assertEqual(self.run_ok("run", manifest, "--audio", "-", "--limit", 19, stdin=raw).out,
                         result["results"][0]["output"] + "\n")

    def test_where_a_recording_must_be_taken_at_once(self):
        manifest, long = self.imported(GOLDEN / "whisper"), self.folder / "long.wav"
        self.write(long, bytes(2 * 16001))
        message = "16001 samples are 1.00 s, and this model takes up to 1 s at once: split the recording"
        self.assertIn(f"long.wav: {message}", self.run_code(6, "run", manifest, "--audio", long, "--target", "x").err)
        self.assertIn(message, self.run_code(6, "stream", manifest, "--audio", long, "--policy", "offline").err)
        (self.folder / "list.tsv").write_text("long.wav\tx\n")
        self.assertIn(message, self.run_code(6, "run", manifest, "--audio-list", self.folder / "list.tsv").err)
        self.write(long, bytes(2 * 16000))
        self.assertEqual(self.run_ok("run", manifest, "--audio", long, "--json").json()["results"][0]["windows"][0]["end"], 1)

    def write(self, path, samples):
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(samples)

    def test_any_mechanism_by_one_line(self):
        manifest = self.imported(GOLDEN / "whisper")
        as_trained, text = self.ids(manifest), manifest.read_text()
        for line in ('"encoder.self" = "cosformer"', '"encoder.self" = "latte"', '"decoder.self" = "relu"', '"decoder.cross" = "linear"'):
            manifest.write_text(text.replace("[attention]", f"[attention]\n{line}"))
            self.assertNotEqual(self.ids(manifest), as_trained, line)

    def test_other_commands_take_it(self):
        manifest = self.imported(GOLDEN / "whisper")
        self.assertIn("log_mel", self.run_ok("inspect", manifest).out)
        self.run_ok("bench", manifest, "--length", "16")
        bundle = self.folder / "bundle"
        self.run_ok("bundle", manifest, "-o", bundle)
        self.assertEqual(self.ids(bundle / "model.toml"), self.ids(manifest))
        data, out = self.folder / "recordings.tsv", self.folder / "search"
        texts = [result["output"] for result in self.run_ok("run", manifest, *self.RECORDINGS, "--limit", 19, "--json").json()["results"]]
        data.write_text("".join(f"{GOLDEN / 'whisper'}/{i}.wav\t{'The head' if '�' in text else text}\n" for i, text in enumerate(texts, 1)))
        self.run_ok("search", manifest, "--strategy", "ablation", "--space", "encoder.self=softmax,relu", "--data", data, "--length", 16,
                    "--lengths", "16", "--rank", "quality", "--metric", "perplexity", "--quick", "-o", out)
        self.assertEqual(len(json.loads((out / "result.json").read_text())["placements"]), 2)

    def test_a_source_that_grows_is_refused(self):
        manifest = self.imported(GOLDEN / "whisper")
        manifest.write_text(manifest.read_text() + '[stream]\npolicy = "offline"\n')
        self.assertIn("[stream] needs frames that come with the speech", self.run_code(3, "validate", manifest).out)

    def test_other_features_are_refused_by_name(self):
        folder = self.copy("whisper")
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "hop_length": 200}))
        self.assertIn('preprocessor_config.hop_length is 200, which "whisper" does not support; 160 is',
                      self.run_code(6, "import", folder, "-o", self.folder / "x.toml").err)


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
            results = self.run_ok("run", manifest, *Speech.RECORDINGS, "--limit", 19, "--beams", beams, "--json").json()["results"]
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


class Marian(ImportTest):
    """Marian's own files (make_marian.py)."""

    def folder_of(self, name):
        folder = self.folder / name
        shutil.copytree(HERE / "golden-marian" / name, folder)
        if name == "opus":
            for side in ("source", "target"):
                shutil.copy(GOLDEN / "marian" / f"{side}.spm", folder)
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
        folder = self.folder_of("ssru")
        manifest = self.imported(folder)
        layers = self.run_ok("verify", manifest, "--golden", folder / "golden.safetensors", "--json").json()["layers"]
        self.assertEqual([layer["layer"] for layer in layers],
                         [f"{side}.ffn.{layer}" for side in ("encoder", "decoder") for layer in (1, 2)] + ["logits"])
        for layer in layers:
            self.assertLessEqual(layer["error"], 1e-5, layer)
            self.assertGreater(layer["largest"], 0.1, layer)
        manifest.write_text(manifest.read_text().replace("length_penalty = 0.0", "length_penalty = 1.0"))
        self.compare_searches(manifest, json.loads((folder / "texts.json").read_text()), "ssru")

    def test_texts_are_searched_as_decoder_yml_says(self):
        folder = self.folder_of("opus")
        decoder = (folder / "decoder.yml").read_text()
        for said, beams, penalty in (("beam-size: 6\nnormalize: 1\n", "6", "1.0"), ("beam-size: 3\nnormalize: 0.6\n", "3", "0.6"),
                                     ("normalize: true\n", None, "1.0"), ("", None, "0.0")):
            (folder / "decoder.yml").write_text(decoder.replace("beam-size: 6\nnormalize: 1\n", said))
            text = self.imported(folder).read_text()
            self.assertIn(f"\nlength_penalty = {penalty}\n", text)
            self.assertEqual(f"\nbeams = {beams}\n" in text, beams is not None)
            made = self.run_ok("run", self.folder / "model.toml", "--text", "The attention", "--limit", 5, "--json").json()
            self.assertEqual(made["summary"]["beams"], int(beams or 1))
        for said, message in (("beam-size: 65\n", "beam-size must be 1 to 64"), ("normalize: 11\n", "normalize must be 0 to 10"),
                              ("normalize: [1]\n", "normalize must be a number"), ("beam-size: x\n", "beam-size must be an integer")):
            (folder / "decoder.yml").write_text(decoder.replace("beam-size: 6\nnormalize: 1\n", said))
            self.refused(folder, message)
        (folder / "decoder.yml").write_text(decoder + "word-penalty: 0.5\nallow-unk: false\n")
        result = self.run_ok("import", folder, "-o", self.folder / "model.toml")
        self.assertIn("says word-penalty = 0.5 of how texts are written", result.out)
        self.assertNotIn("allow-unk", result.out)

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


class OwnArchitecture(ImportTest):
    def test_is_one_file(self):
        folder, own = self.copy("bert"), self.folder / "own.toml"
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "bertling"}))
        shipped = (HERE.parent.parent / "architectures/bert.toml").read_text()
        own.write_text(shipped.replace('model_type = ["bert"]', 'model_type = ["bertling"]'))
        self.refused(folder, 'model_type "bertling" is not supported; ' + SUPPORTED)
        manifest = self.imported(folder, "--architecture", own)
        self.assertIn('names = "own.toml"', manifest.read_text())
        self.run_ok("verify", manifest, "--golden", folder / "golden.safetensors", "--tolerance", "1e-5")
        self.refused(GOLDEN / "bert", "is of model_type \"bert\"; ", "--architecture", own)
        own.write_text(shipped.replace("[tensors]", "[tensor]"))
        self.refused(folder, "own.toml:", "--architecture", own)

    def refused(self, folder, message, *more):
        result = self.run_code(6, "import", folder, "-o", self.folder / "x.toml", *more)
        self.assertIn(message, result.err)
        self.assertFalse((self.folder / "x.toml").exists())


class Walk(ImportTest):
    """The file that docs/importing.md writes step by step imports the checkpoint that it describes."""

    def test_imports_bertling(self):
        page = (HERE.parent.parent / "docs/importing.md").read_text().split("## Adding an architecture")[1]
        own = self.folder / "bertling.toml"
        own.write_text("".join(re.findall(r"(?ms)^```toml\n(.*?)^```$", page)))
        folder = self.copy("bert")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({
            "model_type": "bertling", "width": config["hidden_size"], "heads": config["num_attention_heads"],
            "inner": config["intermediate_size"], "act": "gelu", "position_rows": config["max_position_embeddings"] + 2,
            "depth": config["num_hidden_layers"], "words": config["vocab_size"]}))
        write_safetensors(folder / "model.safetensors", bertling(read_safetensors(folder / "model.safetensors")))
        manifest = self.imported(folder, "--architecture", own)
        self.assertIn("max_length = 48\n", manifest.read_text())
        layers = self.run_ok("verify", manifest, "--golden", folder / "golden.safetensors", "--json").json()["layers"]
        self.assertLessEqual(max(layer["error"] for layer in layers), 1e-5)


def bertling(bert):
    """The same numbers under bertling's names: q, k and v are one tensor, the output lies the other way."""
    def values(name):
        return bert[name][1]
    words, (rows, width) = bert["embeddings.word_embeddings.weight"], bert["embeddings.position_embeddings.weight"][0]
    first_type = values("embeddings.token_type_embeddings.weight")[:width]
    places = [x + first_type[i % width] for i, x in enumerate(values("embeddings.position_embeddings.weight"))]
    made = {"bertling.words.weight": words, "bertling.pooler.weight": ([1], [0.0]),
            "bertling.places.weight": ([rows + 2, width], [9.0] * 2 * width + places)}
    for part in ("weight", "bias"):
        made[f"bertling.words.norm.{part}"] = bert[f"embeddings.LayerNorm.{part}"]
        for layer in range(2):
            theirs, ours = f"encoder.layer.{layer}.", f"bertling.blocks.{layer}."
            qkv = [x for p in ("query", "key", "value") for x in values(f"{theirs}attention.self.{p}.{part}")]
            made[f"{ours}qkv.{part}"] = ([3 * width] + [width] * (part == "weight"), qkv)
            shape, out = bert[f"{theirs}attention.output.dense.{part}"]
            turned = [out[r * width + c] for c in range(width) for r in range(width)] if part == "weight" else out
            made[f"{ours}out.{part}"] = (shape, turned)
            for name, other in (("norm1", "attention.output.LayerNorm"), ("up", "intermediate.dense"), ("down", "output.dense"),
                                ("norm2", "output.LayerNorm")):
                made[f"{ours}{name}.{part}"] = bert[f"{theirs}{other}.{part}"]
    return made


class Commands(ImportTest):
    """Every model of golden/ and what the other commands do with it."""

    def test_all_take_it(self):
        lines = self.folder / "lines.txt"
        lines.write_text("The attention of each head\nhead by head\n")
        for name in sorted(MODELS + DECODERS + TRANSLATORS):
            manifest, role = self.imported(GOLDEN / name), "decoder.self" if name in DECODERS else "encoder.self"
            as_it_is = {"mistral": "local", "phi3": "local", "mt5": "relative_bias", "t5": "relative_bias", "t5-gated": "relative_bias"}.get(name, "softmax")
            self.assertIn(as_it_is, self.run_ok("inspect", manifest).out, name)
            self.assertTrue(self.run_ok("run", manifest, "--text", "of each head", "--limit", 3).out, name)
            self.run_ok("bench", manifest, "--length", "16")
            data, out = lines, self.folder / f"search-{name}"
            if name in TRANSLATORS:
                data = self.folder / "pairs.tsv"
                data.write_text("The attention\tof each head\nof each head\tThe attention\n")
            more = ["--metric", "perplexity"] if name in TRANSLATORS else []
            self.run_ok("search", manifest, "--strategy", "ablation", "--space", f"{role}={as_it_is},relu", "--data", data, "--length", 16,
                        "--lengths", 16, "--rank", "quality", *more, "--quick", "-o", out, timeout=300)
            placements = json.loads((out / "result.json").read_text())["placements"]
            self.assertEqual({one["blocks"][role][0] for one in placements}, {as_it_is, "relu"}, name)


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
                                    ("is_decoder", True, 'is_decoder is true, which "bert" does not support; false is')):
            folder = self.edited("bert", "config.json", **{key: value})
            self.refused(folder, message)
            shutil.rmtree(folder)

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
