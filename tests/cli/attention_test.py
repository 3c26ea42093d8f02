"""inspect --attention: as a picture, as CSV, as JSON, as text."""

import csv
import io
import os
import pathlib
import re
import shutil
import unittest
import xml.dom.minidom

import tiny_model
from command import SAMPLE, CommandTest


class Attention(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_model(self.folder / "model")

    def weights(self, *options):
        return self.run_ok("inspect", self.model, "--text", "one two", "--json", *options).json()

    def test_shapes_and_labels(self):
        target = ["--target", "drei zwei eins"]
        cross = self.weights("--attention", "decoder.cross.1", *target)
        self.assertEqual((cross["queries"], cross["keys"]), (["drei", "zwei", "eins", "</s>"], ["one", "two", "</s>"]))
        own = self.weights("--attention", "decoder.self.1", *target)
        self.assertEqual(own["queries"], ["<s>", "drei", "zwei", "eins"])
        encoder = self.weights("--attention", "encoder.self.1")
        self.assertEqual(encoder["queries"], ["one", "two", "</s>"])
        for document in (cross, own, encoder):
            self.assertEqual([h["head"] for h in document["heads"]], [1, 2])
            for head in document["heads"]:
                for row in head["weights"]:
                    self.assertAlmostEqual(sum(row), 1, places=5)  # softmax
        for i, row in enumerate(own["heads"][0]["weights"]):
            self.assertTrue(all(w == 0 for w in row[i + 1:]))  # causal

    def test_an_encoder_whose_texts_no_token_ends(self):
        vocabulary = pathlib.Path(__file__).parents[1] / "core/tokenizer/golden/llama2.json"
        self.model = self.folder / "encoder.toml"
        self.model.write_text(f"""schema = "attnkit.model/1"
[model]
name = "encoder"
kind = "encoder"
d_model = 8
heads = 2
ffn = 8
max_length = 64
encoder = {{ layers = 1, vocab = "{vocabulary}", tokenizer = "huggingface", end = false }}
head = {{ type = "embedding" }}
[weights]
seed = 1
[attention]
default = "softmax"
""")
        tokens = self.run_ok("tokenize", self.model, "--text", "one two").out.split()
        self.assertGreater(len(tokens), 1)
        self.assertEqual(len(self.weights("--attention", "encoder.self.1")["queries"]), len(tokens))
        self.run_ok("run", self.model, "--text", "one two")

    def test_own_translation_is_the_default_target(self):
        document = self.run_ok("inspect", SAMPLE, "--attention", "decoder.cross.2", "--text", "two hundred and forty-one euros",
                               "--head", 3, "--json").json()
        self.assertEqual("".join(document["queries"]), "zweihunderteinundvierzigEuro</s>")
        self.assertEqual([h["head"] for h in document["heads"]], [3])

    def test_targets_are_those_of_the_manifest(self):
        forced = tiny_model.write_model(self.folder / "forced", extra='[decode]\nforced = ["\u2581drei"]\n')
        cross = ["--attention", "decoder.cross.1", "--json"]
        document = self.run_ok("inspect", forced, *cross, "--text", "one", "--target", "zwei").json()
        self.assertEqual(document["queries"], ["drei", "zwei", "</s>"])
        beams = tiny_model.write_model(self.folder / "beams", extra="[decode]\nbeams = 4\n")
        text = ["--text", "one two three four"]
        searched, greedy = (self.run_ok("run", beams, *text, *more).out for more in ([], ["--beams", 1]))
        self.assertNotEqual(searched, greedy)
        queries = self.run_ok("inspect", beams, *cross, *text).json()["queries"]
        self.assertEqual("".join(q for q in queries if not q.startswith("<") and q != "\u2581"), searched.replace(" ", "").strip())

    def test_the_encoder_needs_no_target(self):
        model = tiny_model.write_model(self.folder / "told", attention='default = "cosformer"', extra='[length]\npredict = "reference"\n')
        self.run_ok("inspect", model, "--attention", "encoder.self.1", "--text", "one two", "--json")

    def test_csv(self):
        text = self.run_ok("inspect", self.model, "--attention", "encoder.self.1", "--text", "one two", "--csv").out
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual(len(rows), 2 * 3 * 3)
        self.assertEqual(list(rows[0]), ["head", "query", "key", "query_token", "key_token", "weight"])
        json = self.weights("--attention", "encoder.self.1")
        self.assertAlmostEqual(float(rows[5]["weight"]), json["heads"][0]["weights"][1][2], places=6)

    def test_text(self):
        text = self.run_ok("inspect", self.model, "--attention", "encoder.self.1", "--text", "one two").out
        self.assertIn("head 2", text)

    def test_decoder_alone_and_encoder_alone(self):
        decoder = tiny_model.write_model(self.folder / "decoder", kind="decoder", attention='default = "relu"')
        document = self.run_ok("inspect", decoder, "--attention", "decoder.self.1", "--text", "one two", "--json").json()
        self.assertEqual(document["keys"], ["<s>", "one", "two"])
        encoder = tiny_model.write_model(self.folder / "encoder", kind="encoder", head="classifier")
        self.run_ok("inspect", encoder, "--attention", "encoder.self.1", "--text", "", "--json")

    def test_refusals(self):
        say = ["--text", "one"]
        self.assertIn('did you mean "decoder.cross.1"?', self.run_code(2, "inspect", self.model, "--attention", "decoder.cros.1", *say).err)
        self.run_code(2, "inspect", self.model, "--attention", "decoder.cross.2", *say)
        self.run_code(2, "inspect", self.model, "--attention", "decoder.cross.1")
        self.run_code(2, "inspect", self.model, "--attention", "decoder.cross.1", *say, "--head", 3)
        self.run_code(6, "inspect", self.model, "--attention", "decoder.cross.1", "--text", "nine")
        self.run_code(6, "inspect", self.model, "--attention", "decoder.cross.1", "--text", "one " * 100)
        self.run_code(6, "inspect", self.model, "--attention", "decoder.cross.1", *say, "-o", self.folder)

    def test_a_text_that_nothing_begins(self):
        model = tiny_model.write_model(self.folder / "bytes", kind="decoder")
        tiny_model.write_bytes_tokenizer(model.parent / "bytes.json")
        text = re.sub("(?m)^decoder = .*$", tiny_model.BYTES_DECODER.replace('begin = "<s>", ', ""), model.read_text())
        model.write_text(re.sub("(?m)^file = .*\nsha256 = .*$", "seed = 1", text))
        own = ["inspect", model, "--attention", "decoder.self.1", "--json", "--text"]
        self.assertEqual(self.run_ok(*own, "ab").json()["queries"], ["a", "b"])
        self.assertIn("nothing to look at: no token begins this model's texts", self.run_code(6, *own, "").err)

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_picture(self):
        out = self.folder / "map.svg"
        self.run_ok("inspect", self.model, "--attention", "decoder.cross.1", "--text", "one ß Ü", "-o", out)
        picture = xml.dom.minidom.parseString(out.read_bytes())
        labels = [t.firstChild.data for t in picture.getElementsByTagName("text") if t.firstChild]
        for label in ("head 1", "head 2", "one", "ß", "</s>"):
            self.assertIn(label, [l.strip() for l in labels])
        one = self.run_ok("inspect", self.model, "--attention", "decoder.cross.1", "--text", "", "--target", "", "--head", 1, "-o", "-")
        xml.dom.minidom.parseString(one.out)

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_picture_of_per_cent(self):
        vocabulary = self.model.parent / "vocab.txt"
        vocabulary.write_text(vocabulary.read_text().replace("\u2581seven\n", "\u258150%s%g\n").replace("\u2581six\n", "\u2581%%\n"))
        picture = xml.dom.minidom.parseString(
            self.run_ok("inspect", self.model, "--attention", "encoder.self.1", "--text", "50%s%g %%", "-o", "-").out)
        labels = [t.firstChild.data.strip() for t in picture.getElementsByTagName("text") if t.firstChild]
        self.assertIn("50%s%g", labels)
        self.assertIn("%%", labels)

    def test_without_gnuplot(self):
        out = self.folder / "map.svg"
        result = self.run_code(6, "inspect", self.model, "--attention", "decoder.cross.1", "--text", "one", "-o", out,
                               env={"PATH": str(self.folder)})
        self.assertIn("gnuplot-nox", result.err)
        self.assertFalse(out.exists())

    def test_failing_gnuplot_leaves_the_old_file(self):
        out = self.folder / "map.svg"
        out.write_text("before")
        fake = self.folder / "bin" / "gnuplot"
        fake.parent.mkdir()
        for script in ("echo broken >&2; exit 3", "exit 0", "kill -9 $$"):
            fake.write_text(f"#!/bin/sh\n{script}\n")
            fake.chmod(0o755)
            self.run_code(6, "inspect", self.model, "--attention", "decoder.cross.1", "--text", "one", "-o", out,
                          env={"PATH": f"{fake.parent}:{os.environ['PATH']}"})
            self.assertEqual(out.read_text(), "before")


if __name__ == "__main__":
    unittest.main()
