"""Manifests as graphs of ONNX: their logits are attnkit's; LinearAttention there and back."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import attnkit
import attnkit.onnx
import numpy as np
import onnx
import onnxruntime
from attnkit.onnx._graph import Graph
from attnkit.onnx._linear import OPSET, as_linear_attention
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

SAMPLES = pathlib.Path(os.environ["ATTNKIT_SAMPLE"]).parents[1]
NUMBERS = SAMPLES / "models/numbers-en-de/model.toml"
RUNTIME = attnkit.Runtime(threads=2)


def session(file):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(attnkit.onnx.library())
    return onnxruntime.InferenceSession(str(file) if isinstance(file, pathlib.Path) else file, options, ["CPUExecutionProvider"])


class Exports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def same(self, manifest, tolerance=1e-5, standard=False, seed=1):
        """Both answer to the same random inputs of differing lengths; what operators the graph has."""
        file = self.folder / "model.onnx"
        attnkit.onnx.export(manifest, file, standard=standard, runtime=RUNTIME)
        on, random = session(file), np.random.default_rng(seed)
        with attnkit.Model(RUNTIME, manifest) as model:
            info, inputs = model.info, {}
            for side, vocabulary in (("source", info.source_vocab), ("target", info.target_vocab)):
                if side not in {i.name for i in on.get_inputs()}:
                    continue
                lengths = np.array([13, 7, 1])
                if side == "source" and info.features:
                    whole = model.describe()["speech"]["features"]["frames"]  # of every recording, where they have one length
                    lengths = np.array([whole] * 3 if whole else [40, 23, 9])
                    inputs[side] = random.standard_normal((3, lengths[0], info.features)).astype(np.float32)
                else:
                    inputs[side] = random.integers(0, vocabulary, (3, 13))
                inputs[f"{side}_len"] = lengths
            given = {name.replace("_len", "_lengths"): x if x.dtype == np.float32 else x.astype(np.int32) for name, x in inputs.items()}
            expected = np.asarray(model.forward(**given))
        got, = on.run(None, inputs)
        self.assertEqual(got.shape, expected.shape)
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())
        return [node.op_type for node in onnx.load(file).graph.node]

    def written(self, attention, side="decoder", extra="", **model):
        """A manifest of random weights."""
        tables = {"name": '"made"', "kind": f'"{side}"', "d_model": 32, "heads": 4, "ffn": 48, "norm": '"pre"', "positions": '"sinusoidal"',
                  "max_length": 64, side: f'{{ layers = 2, vocab = "{NUMBERS.parent}/vocab.txt" }}', **model}
        manifest = self.folder / "made.toml"
        manifest.write_text("\n".join(['schema = "attnkit.model/1"', "[model]", *(f"{key} = {value}" for key, value in tables.items()),
                                       "[weights]", "seed = 3", "[attention]", *attention, extra, ""]))
        return manifest

    def test_what_models_may_have(self):
        heads = {"kv_heads": 2, "bias": '"none"', "norm_type": '"rms"', "gated": "true", "activation": '"silu"'}
        rotary = {"positions": '"rotary"', "rotary": '{ base = 100.0, layout = "interleaved", width = 4 }', "qk_norm": "true"}
        for model in (heads, rotary, {**heads, **rotary}, {"activation": '"gelu"', "tie_embeddings": "true", "head_scale": "true"},
                      {"activation": '"gelu_tanh"', "positions": '"learned"', "norm": '"post"', "embed_norm": "true", "head_norm": "true"},
                      {"activation": '"quick_gelu"', "attention_scale": 0.1, "head_width": 12, "bias": '"all_but_k"'}):
            for mechanism in ("softmax", "local", "latte"):
                with self.subTest(**model, mechanism=mechanism):
                    self.same(self.written([f'default = "{mechanism}"'], **model), 2e-5)

    def test_lengths_that_are_predicted(self):
        vocabulary = NUMBERS.parent / "vocab.txt"
        for predict in ('predict = "ratio"\nalpha = 1.5', 'predict = "fixed"\nlength = 20', 'predict = "reference"',
                        f'predict = "lut"\nfile = "{NUMBERS.parent}/lengths.tsv"\nmean = 1.0',
                        f'predict = "network"\nfile = "{NUMBERS.parent}/length.safetensors"'):
            with self.subTest(predict=predict):
                manifest = self.written(['default = "cosformer"'], extra=f"[length]\n{predict}", kind='"encoder-decoder"', d_model=128,
                                        encoder=f'{{ layers = 1, vocab = "{vocabulary}" }}')
                self.same(manifest, 2e-5)

    def test_a_trained_translator(self):
        operators = self.same(NUMBERS)
        self.assertEqual(operators.count("Block"), 9)

    def test_it_translates(self):
        file = self.folder / "model.onnx"
        attnkit.onnx.export(NUMBERS, file, runtime=RUNTIME)
        on, model = session(file), attnkit.Model(RUNTIME, NUMBERS)
        source = np.array([[*model.tokenize(attnkit.SOURCE, "half past three"), model.info.end_id]])
        target = [model.info.begin_id]
        while target[-1] != model.info.end_id and len(target) < 20:
            logits, = on.run(None, {"source": source, "source_len": np.array([source.shape[1]]), "target": np.array([target]),
                                    "target_len": np.array([len(target)])})
            target.append(int(logits[0, -1].argmax()))
        self.assertEqual(model.detokenize(attnkit.TARGET, target[1:-1]), "halb vier")

    def test_every_manifest_of_the_samples(self):
        exported = []
        for manifest in sorted((SAMPLES / "manifests").glob("*.toml")):
            with self.subTest(manifest=manifest.name):
                self.same(manifest, 2e-5)
                exported.append(manifest.name)
        self.assertGreater(len(exported), 20)

    def test_speech(self):
        self.same(SAMPLES / "models/numbers-speech/model.toml", 2e-5)

    def test_the_command(self):
        file = self.folder / "model.onnx"
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", NUMBERS, file], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(file.is_file())
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", self.folder / "none.toml", file], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^attnkit.onnx: .*none.toml.*\n$")

    def test_library_beside_another(self):
        done = subprocess.run([sys.executable, "-c", "import attnkit.onnx; attnkit.onnx.library()"], capture_output=True, text=True,
                              env={**os.environ, "ATTNKIT_LIBRARY": os.__file__})
        self.assertIn("libattnkit-onnxruntime.so is no file", done.stderr)


if __name__ == "__main__":
    unittest.main()
