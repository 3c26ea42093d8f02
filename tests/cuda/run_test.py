"""attnkit run --device cuda, with the emulator for a device: the CPU's texts, and what it says where something is missing."""

import os
import unittest

from command import SAMPLE, CommandTest

TEXTS = ["--text", "two hundred and forty-one euros", "--text", "half past three"]
MANIFEST = """schema = "attnkit.model/1"
[model]
name = "of-a-device"
kind = "encoder"
d_model = 16
heads = 2
ffn = 16
max_length = 32
encoder = {{ layers = 1, vocab = "{vocab}" }}
head = {{ type = "classifier", classes = 2 }}
[weights]
seed = 1
[attention]
default = "mean"
"""


class OnADevice(CommandTest):
    def test_translates_as_the_cpu_does(self):
        for more in ([], ["--beams", "2"]):
            here, there = (self.run_ok("run", SAMPLE, *TEXTS, *more, "--device", device) for device in ("cpu", "cuda"))
            self.assertEqual(there.out, here.out)
        self.assertEqual(here.lines()[0], "zweihunderteinundvierzig Euro")

    def test_what_is_missing_is_named(self):
        for env, words in (({"ATTNKIT_DEVICE_LIBRARY": "/nowhere/libattnkit_cuda.so"},
                            "models on a device need attnkit's library for it, and it cannot be loaded: /nowhere/libattnkit_cuda.so"),
                           ({"ATTNKIT_EMULATED_DEVICES": "0"}, "there is a driver for CUDA, but no device")):
            result = self.run_code(1, "run", SAMPLE, *TEXTS, "--device", "cuda", env=env)
            self.assertIn(words, result.err)
            self.assertIn("--device cpu runs it on the CPU", result.err)
            self.assertEqual(result.out, "")

    def test_a_plugin_for_a_device_is_none_for_the_cpu(self):
        model = self.folder / "model.toml"
        model.write_text(MANIFEST.format(vocab=SAMPLE.parent / "vocab.txt"))
        result = self.run_code(4, "run", model, *TEXTS, "--plugin-dir", os.environ["ATTNKIT_PLUGINS_OF_CUDA"])
        self.assertIn('mechanism "mean" has no variant for this device', result.err)
        self.assertIn("mechanisms found: ", result.err)


if __name__ == "__main__":
    unittest.main()
