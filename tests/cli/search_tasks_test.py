"""attnkit search over every kind of model: speech, classifiers and language models, with every strategy."""

import math
import pathlib
import shutil
import unittest

import tiny_model
from recordings import FIRST_ROW, ROW, noise, sine, write_wav
from search_support import SearchTest, search_table, texts

NAMES = ["softmax", "relu", "leap"]
STRATEGIES = [("grid",), ("ablation", "--per-layer"), ("pareto", "--per-layer", "--trials", "10")]
SPEECH = pathlib.Path(__file__).resolve().parents[2] / "samples/models/numbers-speech"

# Untrained: its weights are made from a seed.
MANIFEST = """schema = "attnkit.model/1"
[model]
name = "tiny-speech"
kind = "KIND"
d_model = 16
heads = 2
ffn = 32
max_length = 64
encoder = { layers = 2, causal = true, features = { type = "fbank" }, frontend = { type = "conv", channels = 16 } }
LAST
[weights]
seed = 1
[attention]
default = "softmax"
"""
DECODER = 'decoder = { layers = 1, vocab = "vocab.txt" }'
CLASSIFIER = f'head = {{ type = "classifier", classes = {tiny_model.CLASSES} }}'


class Search(SearchTest):
    def search_by(self, strategy, model, *options):
        """Returns the result of a search that is checked and has a winner."""
        out = self.folder / f"out-{len(list(self.folder.iterdir()))}"
        self.said = self.search("--strategy", *strategy, *options, model=model, out=out).out
        document = self.result(out)
        self.check_result(document)
        self.assertTrue((out / "winner.toml").exists())
        return document, out


class Speech(Search):
    def speech(self, kind, last, references):
        """A model with a list of recordings of different lengths, which name their folder."""
        folder = self.folder / kind
        (folder / "wav").mkdir(parents=True)
        (folder / "vocab.txt").write_text("".join(token + "\n" for token in tiny_model.TOKENS), encoding="utf-8")
        roles = {"encoder-decoder": ["encoder.self", "decoder.self", "decoder.cross"], "encoder": ["encoder.self"]}
        model = folder / "model.toml"
        model.write_text(MANIFEST.replace("KIND", kind).replace("LAST", last) +
                         search_table({role: NAMES for role in roles[kind]}))
        lines = []
        for n, reference in enumerate(references):
            write_wav(folder / f"wav/{n}.wav", noise(FIRST_ROW + ROW * (3 + 2 * n), seed=n))
            lines.append(f"wav/{n}.wav\t{reference}\n")
        (folder / "data.tsv").write_text("".join(lines))
        return model

    def translation(self):
        return self.speech("encoder-decoder", DECODER, texts(8))

    def test_translation_by_every_strategy(self):
        model = self.translation()
        for strategy in STRATEGIES:
            document, out = self.search_by(strategy, model, "--metric", "perplexity", "--screen", "4")
            self.assertEqual(document["settings"]["lists"], {"data": 8, "test": 0})
            self.assertGreater(len(document["placements"]), 5)
            qualities = {p["quality"]["value"] for p in document["placements"]}
            self.assertGreater(len(qualities), 3)
            self.assertTrue(all(math.isfinite(q) and q > 1 for q in qualities))
        self.run_ok("run", out / "winner.toml", "--audio", model.parent / "wav/0.wav", "--limit", "5")

    def test_other_metrics_and_a_test_set(self):
        model = self.translation()
        test = model.parent / "test.tsv"
        test.write_text(f"{write_wav(self.folder / 'elsewhere.wav', sine(FIRST_ROW + 9 * ROW))}\tone two\r\n")
        for metric in ("exact", "accuracy", "bleu"):
            document, _ = self.search_by(("grid",), model, "--metric", metric, "--test", test, "--space",
                                         "encoder.self=softmax", "--space", "decoder.self=softmax")
            self.assertEqual(document["settings"]["lists"], {"data": 8, "test": 1})

    def test_classifier(self):
        model = self.speech("encoder", CLASSIFIER, [n % tiny_model.CLASSES for n in range(8)])
        for strategy in STRATEGIES:
            document, _ = self.search_by(strategy, model)
            self.assertEqual(document["settings"]["metric"], "accuracy")

    def test_sample_hears(self):
        # Of the eight recordings softmax in decoder.cross with leap elsewhere gets most right; noise has no number in it.
        shutil.copytree(SPEECH / "recordings", self.folder / "recordings")
        data = self.folder / "recordings/recordings.tsv"
        document, out = self.search_by(("grid",), SPEECH / "model.toml", "--data", data, "--space", "encoder.self=leap",
                                       "--space", "decoder.self=leap", "--space", "decoder.cross=leap,softmax")
        by_id = {p["id"]: p["quality"]["value"] for p in document["placements"]}
        self.assertGreater(by_id["encoder.self=leap decoder.self=leap decoder.cross=softmax"], 0.5)
        self.assertEqual({p["quality"]["lists"] for p in document["placements"]}, {8})
        said = self.run_ok("run", out / "winner.toml", "--audio", data.parent / "060.flac").out
        self.assertIn("der ", said)

    def test_bad_lists(self):
        model = self.translation()
        data = model.parent / "data.tsv"
        good = data.read_text()
        write_wav(model.parent / "wav/rate.wav", noise(9000), rate=8000)
        (model.parent / "wav/text.wav").write_text("no sound")
        for line, said in (("wav/none.wav\tone", "there is no such file"), ("wav/rate.wav\tone", "8000 samples a second"),
                           ("wav/text.wav\tone", "is no WAV, FLAC or OGG file"), ("\tone", "path of a recording"),
                           ("wav/0.wav", "has no tab; a line is the path of a recording, a tab and its reference"),
                           ("wav/0.wav\t", "the reference is empty"), ("wav/0.wav\tone\ttwo", "more than one tab")):
            data.write_text(good + line + "\n")
            said_all = self.search(model=model, code=6).err
            self.assertIn(f"{data}:9", said_all)
            self.assertIn(said, said_all)

    def test_resume_refuses_other_recordings(self):
        model = self.translation()
        self.search(model=model)
        self.search("--resume", model=model)
        write_wav(model.parent / "wav/3.wav", noise(FIRST_ROW + 20 * ROW, seed=77))
        self.assertIn("recordings", self.search("--resume", model=model, code=6).err)


class Texts(Search):
    def test_classifier_by_every_strategy(self):
        data = "".join(f"{t}\t{n % tiny_model.CLASSES}\n" for n, t in enumerate(texts(30)))
        model = self.tiny("encoder", search_table({"encoder.self": NAMES}), kind="encoder", head="classifier", data=data)
        for strategy in STRATEGIES:
            document, out = self.search_by(strategy, model)
            self.assertEqual(document["settings"]["metric"], "accuracy")
            head = document["model"]["head"]
            self.assertEqual((head["type"], head["classes"]), ("classifier", tiny_model.CLASSES))
            self.assertIn(" accuracy, %", self.said)
            self.assertNotIn("token accuracy", self.said + (out / "report.html").read_text())
            if "nothing that was tried" not in document["answer"]["text"]:
                self.assertIn("prefill throughput", document["answer"]["text"])

    def test_language_model_by_every_strategy(self):
        model = self.tiny("decoder", search_table({"decoder.self": NAMES}), kind="decoder",
                          data="".join(t + "\n" for t in texts(30)))
        for strategy in STRATEGIES:
            document, out = self.search_by(strategy, model)
            self.assertEqual(document["settings"]["metric"], "perplexity")
            values = {p["id"]: p["quality"]["value"] for p in document["placements"]}
            self.assertEqual(len(values), 3)
            self.assertTrue(all(1 < v < 1e6 for v in values.values()), values)
        self.run_ok("run", out / "winner.toml", "--text", "one two", "--limit", "4")


if __name__ == "__main__":
    unittest.main()
