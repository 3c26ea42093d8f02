"""The samples that take imported models, of one language: they print what the library that the model comes from computed.

    samples_test.py tiny|real SUFFIX COMMAND...    # the last of the command with a topic and the suffix behind it is a program

tiny: models of golden/.  real: those of PyPI; without a network, or an espeak-ng that speaks as that of whisper.json, the test is skipped.
"""
import json
import re
import subprocess
import sys
import unittest

import minilm_test
import smollm2_test
import whisper_test
from arrays import read_safetensors
from command import CommandTest
from imported import GOLDEN, SENTENCES
from speak import can_speak, speak, sentences


def cosines(vectors, texts):
    first = vectors[0]
    return "".join(f"{1 - minilm_test.distance(first, v):.4f} {text}\n" for v, text in zip(vectors[1:], texts[1:]))


class Samples(CommandTest):
    def model(self, path):
        manifest = self.folder / "model.toml"
        self.run_ok("import", path, "-o", manifest)
        return manifest

    def run_sample(self, topic, *arguments):
        return subprocess.run([*COMMAND[:-1], COMMAND[-1] + topic + SUFFIX, *map(str, arguments)], capture_output=True, timeout=300)

    def sample(self, topic, *arguments):
        done = self.run_sample(topic, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""), done)
        return done.stdout.decode()

    def refuses(self, topic, *arguments):
        done = self.run_sample(topic, *arguments)
        self.assertNotEqual(done.returncode, 0, done)
        self.assertEqual(done.stdout, b"")


class Tiny(Samples):
    def test_embed(self):
        (rows, width), vectors = read_safetensors(GOLDEN / "bert/golden.safetensors")["logits"]
        self.assertEqual(rows, len(SENTENCES))
        expected = cosines([vectors[width * i:width * (i + 1)] for i in range(rows)], SENTENCES)
        self.assertEqual(self.sample("embed", self.model(GOLDEN / "bert"), *SENTENCES), expected)

    def test_complete(self):
        for name in ("llama", "gpt2"):
            model = self.model(GOLDEN / name)
            for text, expected in json.loads((GOLDEN / name / "texts.json").read_text()).items():
                self.assertEqual(self.sample("complete", model, text, 12, 0), expected["greedy"]["text"] + "\n", text)
            drawn = self.run_ok("run", model, "--text", text, "--limit", 12, "--temperature", 0.8, "--top-p", 0.95, "--seed", 1).out
            self.assertEqual(self.sample("complete", model, text, 12), drawn)
            stop = re.search("[^\ufffd\n]{2}", drawn[3:])[0]  # its beginning is held back until it is whole, or something else
            self.assertEqual(self.sample("complete", model, text, 12, 0.8, stop), drawn[:drawn.index(stop)] + "\n")
        for numbers in (("12x",), ("-1",), (12, "warm"), (12, -1)):
            self.refuses("complete", model, text, *numbers)

    def test_transcribe(self):
        model, recording = self.model(GOLDEN / "whisper"), GOLDEN / "whisper/1.wav"
        expected = self.run_ok("run", model, "--audio", recording).out
        self.assertGreater(len(expected), 10)
        self.assertEqual(self.sample("transcribe", model, recording), expected)
        whole, changed = recording.read_bytes(), self.folder / "changed.wav"
        self.assertEqual((whole[:4], whole[12:16], whole[36:40]), (b"RIFF", b"fmt ", b"data"))
        for data in (b"RIFX" + whole[4:], whole[:12] + whole[36:], whole[:12] + whole[36:] + whole[12:36]):
            changed.write_bytes(data)
            self.refuses("transcribe", model, changed)
        said = []
        for cut in (1, 2):  # half a sample is none
            changed.write_bytes(whole[:-cut])
            said.append(self.sample("transcribe", model, changed))
        self.assertEqual(said[0], said[1])


class Real(Samples):
    def test_embed(self):
        texts = (minilm_test.HERE / "minilm.txt").read_text().splitlines()[:5]
        self.assertEqual(self.sample("embed", self.model(MINILM), *texts), cosines(minilm_test.reference(), texts))

    def test_complete(self):
        text = json.loads((smollm2_test.HERE / "smollm2.json").read_text())["texts"][0]
        written = self.sample("complete", self.model(SMOLLM2), text["prompt"], 32, 0)
        self.assertTrue(text["text"].startswith(written[:-1]), written)
        self.assertGreater(len(written), 100)

    def test_transcribe(self):
        if not can_speak():
            self.skipTest("there is no espeak-ng")
        recording, golden = self.folder / "1.wav", json.loads((whisper_test.HERE / "whisper.json").read_text())[2]
        if speak(*sentences()[2], recording) != golden["sha256"]:
            self.skipTest("this espeak-ng speaks otherwise than that of whisper.json")
        self.assertEqual(self.sample("transcribe", self.model(WHISPER), recording), golden["text"] + "\n")


if __name__ == "__main__":
    KIND, SUFFIX, *COMMAND = sys.argv[1:]
    if KIND == "real":
        MINILM, SMOLLM2, WHISPER = minilm_test.model(), smollm2_test.model(), whisper_test.model()
    result = unittest.main(argv=[sys.argv[0], {"tiny": "Tiny", "real": "Real"}[KIND]], exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
