"""attnkit run --device cuda, with the emulator for a device: the CPU's texts, and what it says where something is missing;
searches and measurements of models on it."""

import os
import pathlib
import unittest

from command import SAMPLE, CommandTest
from search_support import SearchTest, search_table, texts

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
            result = self.run_code(6, "run", SAMPLE, *TEXTS, "--device", "cuda", env=env)
            self.assertIn(words, result.err)
            self.assertIn("--device cpu runs it on the CPU", result.err)
            self.assertEqual(result.out, "")

    def test_a_plugin_for_a_device_is_none_for_the_cpu(self):
        model = self.folder / "model.toml"
        model.write_text(MANIFEST.format(vocab=SAMPLE.parent / "vocab.txt"))
        folder = os.environ["ATTNKIT_PLUGINS_OF_CUDA"]
        result = self.run_code(4, "run", model, *TEXTS, "--plugin-dir", folder)
        self.assertIn(f'mechanism "mean" has no variant for this device, the CPU; it is here for CUDA: {folder}/mean-cuda.so', result.err)
        self.assertIn('help: device = "cuda" at the top, or --device cuda, runs the model there; mechanisms found: ', result.err)
        model.write_text(model.read_text().replace('"mean"', '"reformer"'))
        result = self.run_code(4, "run", model, *TEXTS, "--device", "cuda")
        self.assertIn('mechanism "reformer" has no variant for this device, CUDA; it is here for the CPU: /', result.err)
        self.assertIn("--device cpu, runs the model there", result.err)

    def test_a_variant_has_no_name_of_its_own(self):
        model = self.folder / "model.toml"
        model.write_text(MANIFEST.format(vocab=SAMPLE.parent / "vocab.txt").replace('"mean"', '"relu-cuda"'))
        for device in ("cpu", "cuda"):
            result = self.run_code(4, "run", model, *TEXTS, "--device", device)
            self.assertIn('error[AK201]: no mechanism "relu-cuda"; did you mean "relu"?', result.err)
            self.assertIn('device = "cuda" at the top, or --device cuda, takes its variant for CUDA', result.err)

    def test_memory_of_a_device_is_not_said(self):
        of = [SAMPLE, "--length", "4", "--device", "cuda"]
        self.assertNotIn("peak_memory_bytes", self.run_ok("bench", *of, "--json").json()["results"][0])
        sessions = self.run_ok("bench", *of, "--sessions", "2", "--json").json()
        self.assertNotIn("resident_bytes", sessions["memory_per_session"])


class Searches(SearchTest):
    def test_a_journal_is_of_the_device(self):
        data = "".join(f"{text}\t{i % 5}\n" for i, text in enumerate(texts(8)))
        model = self.tiny("device", search_table({"encoder.self": ["softmax", "relu"]}), data=data, kind="encoder", head="classifier")
        model.write_text('device = "cuda"\n' + model.read_text())
        options = ["--length", "8", "--lengths", "8", "--jobs", "1"]
        refused = self.search(*options, model=model, code=2)
        self.assertIn("rank rcp_mem, which is the default, counts the memory of a process, and a GPU's is none of it", refused.err)
        options += ["--rank", "rcp"]
        self.search(*options, model=model)
        result = self.result()
        self.check_result(result)
        self.assertTrue(result["machine"]["cpu"].endswith(", an emulated device"), result["machine"]["cpu"])
        self.assertEqual({at["peak_bytes"] for p in result["placements"] for at in p["cost"]["at"]}, {None})
        identity = self.journal()[0]["identity"]
        self.assertIn("plugin relu", identity)
        self.assertNotIn("plugin reformer", identity)  # which has no variant
        self.search(*options, "--resume", model=model)

        def changed(path):
            copy = self.folder / pathlib.Path(path).name
            copy.write_bytes(pathlib.Path(path).read_bytes() + b"\0")
            return copy

        relu = changed(f"{os.environ['ATTNKIT_PLUGIN_PATH']}/relu-cuda.so")
        self.assertIn("plugin relu is", self.search(*options, "--resume", "--plugin-dir", relu.parent, model=model, code=6).err)
        other = {"ATTNKIT_DEVICE_LIBRARY": str(changed(os.environ["ATTNKIT_DEVICE_LIBRARY"]))}
        self.assertIn("device library is", self.search(*options, "--resume", model=model, code=6, env=other).err)


if __name__ == "__main__":
    unittest.main()
