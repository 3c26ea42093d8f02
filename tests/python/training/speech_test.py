"""train_speech.py of numbers-speech: a few steps, on noise in place of what espeak-ng says."""

import array
import contextlib
import importlib
import io
import json
import math
import random
import sys
import types
import unittest.mock
import wave

import torch
from support import SOURCE, TorchTest, command, main

from attnkit.train.__main__ import parser

SAMPLE = SOURCE / "samples/models/numbers-speech"


def read_wav(path):
    with wave.open(str(path)) as file:
        return array.array("f", (n / 32768 for n in array.array("h", file.readframes(file.getnframes()))))


# Of the modules that need numpy, SciPy, Babel or num2words, what the trainer and its batches take.
STAND_INS = {
    "numpy": {"float32": torch.float32, "finfo": torch.finfo, "log": math.log},
    "paths": {"HERE": SAMPLE, "SEPARATOR": " ; "},
    "speakers": {"RATE": 16000, "SHIFT": 160, "SPEAKERS": (), "frames": lambda core, samples: core.features(samples).tolist()[0]},
    "utterances": {"LONGEST": 5, "read_wav": read_wav},
}


class Speech(TorchTest):
    def trainer(self):
        """The class SpeechTrainer, whose lists are noise."""
        modules = {name: types.ModuleType(name) for name in STAND_INS}
        for name, module in modules.items():
            vars(module).update(STAND_INS[name])
        with unittest.mock.patch.dict(sys.modules, modules), unittest.mock.patch.object(sys, "path", [str(SAMPLE), *sys.path]):
            data, training = (importlib.import_module(name) for name in ("speech_data", "train_speech"))

        class Noise(data.Lists):
            def __init__(self, core, folder, seed):
                self.info, self.seed, self.words = core.info, seed, {"one": 1, "two": 2, "three": 3}

            def chunk(self, seed, number, progress, rows):
                rng = random.Random(f"{seed}:{number}")
                made = [(torch.randn(rng.randint(40, 80), self.info.features), rng.choices(range(3, 9), k=rng.randint(1, 4)),
                         rng.choices(range(1, 4), k=3)) for _ in range(8)]
                return data.batches(made, self.info, rows)

        patch = unittest.mock.patch.object(training, "Lists", Noise)
        patch.start()
        self.addCleanup(patch.stop)
        return training

    def test_a_few_steps(self):
        training = self.trainer()
        for name in ("one", "two"):
            with wave.open(str(self.folder / f"{name}.wav"), "wb") as file:
                file.setparams((1, 2, 16000, 0, "NONE", ""))
                file.writeframes(array.array("h", (random.Random(name).randint(-999, 999) for _ in range(8000))).tobytes())
        (self.folder / "dev.tsv").write_text("one.wav\teins\ntwo.wav\tzwei ; drei\n", encoding="utf-8")
        options = [*training.OPTIONS, "--dev", str(self.folder / "dev.tsv"), "--out", str(self.folder / "run"), "--tokens", "60", "--steps", "4",
                   "--evaluate-steps", "4", "--threads", "1"]
        trainer = training.SpeechTrainer(parser().parse_args(options))
        beside = trainer.beside.weight.detach().clone()
        with contextlib.redirect_stderr(io.StringIO()):
            manifest = trainer.run()
        log = (self.folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual(set(json.loads(log[-1])["dev"]), {"baseline", "softmax", "relu", "leap"})
        self.assertFalse(trainer.beside.weight.equal(beside))  # the words are learnt as well
        self.assertEqual(command("verify", manifest).code, 0)


if __name__ == "__main__":
    main()
