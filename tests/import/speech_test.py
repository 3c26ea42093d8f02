"""Models that hear and write: the numbers and the tokens of transformers, and recordings of any length."""
import json
import re
import unittest
import wave

from imported import GOLDEN, RECORDINGS, ImportTest


class Speech(ImportTest):
    """Models that hear and write."""

    def ids(self, manifest, *more):
        results = self.run_ok("run", manifest, *RECORDINGS, "--limit", 19, *more, "--json").json()["results"]
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

    def test_what_else_a_checkpoint_forces_is_a_note(self):
        folder = self.copy("whisper")
        file = folder / "generation_config.json"
        plain, ids = json.loads(file.read_text()), json.loads((folder / "tokenizer.json").read_text())
        ids = {token["content"]: token["id"] for token in ids["added_tokens"]}
        def notes(**settings):
            file.write_text(json.dumps({**plain, **settings}))
            return self.run_ok("import", folder, "-o", self.folder / "model.toml", "--json").json()["notes"]
        self.assertEqual(notes(language=None, task="transcribe", forced_decoder_ids=[[1, None], [2, ids["<|transcribe|>"]]]), [])
        for key, value in (("language", "de"), ("task", "translate"), ("forced_decoder_ids", [[1, ids["<|de|>"]]])):
            said = json.dumps(value, separators=(",", ":"))
            self.assertEqual([note.partition("says ")[2] for note in notes(**{key: value})],
                             [f"{key} = {said} of how texts are written, and the manifest does not"])

    def test_a_target_ends_where_the_decoder_has_no_more_positions(self):
        manifest = self.imported(GOLDEN / "whisper")
        results = self.run_ok("run", manifest, *RECORDINGS, "--limit", 100, "--json").json()["results"]
        self.assertEqual([result["tokens"] for result in results], [40, 40])
        self.assertTrue(self.run_ok("run", manifest, *RECORDINGS, "--beams", 3).out)
        with wave.open(str(GOLDEN / "whisper/1.wav")) as file:
            samples = file.readframes(file.getnframes())
        live = self.run_ok("stream", manifest, "--audio", "-", "--policy", "offline", "--limit", 100, "--json", stdin=samples).json()
        self.assertEqual(live["results"][0]["tokens"], 40)
        self.assertIn("--length 48: the model takes up to 40 tokens (max_length)", self.run_code(2, "bench", manifest, "--length", 48).err)

    def test_lengths_of_references_count_forced_tokens(self):
        manifest = self.imported(GOLDEN / "whisper")
        manifest.write_text(manifest.read_text().replace("[attention]", '[length]\npredict = "reference"\n[attention]\n"decoder.self" = "cosformer"'))
        result = self.run_ok("run", manifest, *RECORDINGS[:2], "--target", "and so on", "--limit", 8, "--json").json()["results"][0]
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
        texts = [result["output"] for result in self.run_ok("run", manifest, *RECORDINGS, "--limit", 19, "--json").json()["results"]]
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


if __name__ == "__main__":
    unittest.main()
