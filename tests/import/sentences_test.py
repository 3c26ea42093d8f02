"""Sentence encoders: the rows of every layer, ids and vectors are those of transformers."""
import json
import re
import shutil
import unittest

from arrays import read_npy, read_safetensors
from imported import DECODERS, GOLDEN, HERE, MODELS, SENTENCES, SPEECH, TRANSLATORS, ImportTest


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
        said = self.run_ok("search", manifest, "--strategy", "ablation", "--per-layer", "--space", "encoder.self=softmax,relu,latte",
                           "--data", data, "--length", 16, "--lengths", "16", "--rank", "quality", "--thorough", "-o", out).out
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
        self.check_table(said, placements)

    def check_table(self, said, placements):
        """By layer down and mechanism across."""
        header, *rows = re.search(r"(?m)^layer .*\n(?:encoder\.self.*\n)+", said)[0].splitlines()
        self.assertEqual(header.split(), ["layer", "relu", "latte"])
        table = {}
        for row in rows:
            name, *cells = re.split(r"  +", row)
            table.update({(name, mechanism): cell for mechanism, cell in zip(("relu", "latte"), cells, strict=True)})
        expected = {}
        for placement in placements:
            changed = {layer: mechanism for layer, mechanism in enumerate(placement["blocks"]["encoder.self"], 1) if mechanism != "softmax"}
            if len({*changed.values()}) == 1:
                name = "encoder.self, all layers" if len(changed) == 2 else f"encoder.self.{[*changed][0]}"
                expected[name, [*changed.values()][0]] = f"{placement['quality']['value']:.5f}"
        self.assertEqual({key: cell.split("\u00b1")[0] for key, cell in table.items()}, expected)
        self.assertEqual(len(expected), 6)

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


if __name__ == "__main__":
    unittest.main()
