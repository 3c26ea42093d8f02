"""Manifests as graphs of ONNX: their logits are attnkit's; LinearAttention there and back."""

import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import attnkit
import attnkit.onnx
import numpy as np
import onnx
import onnxruntime
from attnkit.onnx._export import tensors_of
from attnkit.onnx._graph import Graph
from attnkit.onnx._linear import OPSET, as_gated_recurrence, as_linear_attention
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

SAMPLES = pathlib.Path(os.environ["ATTNKIT_SAMPLE"]).parents[1]
NUMBERS = SAMPLES / "models/numbers-en-de/model.toml"
RUNTIME = attnkit.Runtime(threads=2)


def session(file):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(attnkit.onnx.library())
    return onnxruntime.InferenceSession(str(file) if isinstance(file, pathlib.Path) else file, options, ["CPUExecutionProvider"])


class Document(unittest.TestCase):
    def test_its_program_prints_what_it_says(self):
        page = SAMPLES.parent / "docs/onnx.md"
        programs, names = re.findall(r"(?ms)^```python\n(.*?)^```$", page.read_text(encoding="utf-8")), {}
        self.assertEqual(len(programs), 2)
        for program in programs:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(program, page, "exec"), names)
            self.assertEqual(" ".join(said.getvalue().split("\n")).strip(), program.rsplit("# ", 1)[1].strip())


class Exports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def same(self, manifest, tolerance=1e-5, standard=False, seed=1):
        """Both answer to the same random inputs of differing lengths; what operators the graph has."""
        file = self.folder / "model.onnx"
        attnkit.onnx.export(manifest, file, standard=standard, runtime=RUNTIME)
        onnx.checker.check_model(file)
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
        self.assertEqual(on.run(None, inputs)[0].tobytes(), got.tobytes())
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
                      {"activation": '"quick_gelu"', "attention_scale": 0.1, "head_width": 12, "bias": '"all_but_k"'},
                      {"bias": '["q", "o", "out"]', "head_scale": 0.3, "final_norm": "false"}, {"norm": '"post"', "final_norm": "true"}):
            for mechanism in ("softmax", "local", "latte"):
                with self.subTest(**model, mechanism=mechanism):
                    self.same(self.written([f'default = "{mechanism}"'], **model), 2e-5)

    def test_embeddings_that_are_one_table(self):
        stack = f'{{ layers = 1, vocab = "{NUMBERS.parent}/vocab.txt" }}'
        for ties in ('["source", "target", "output"]', '["source", "target"]', '["source", "output"]', "true"):
            with self.subTest(ties=ties):
                self.same(self.written(['default = "softmax"'], kind='"encoder-decoder"', encoder=stack, decoder=stack, tie_embeddings=ties), 2e-5)

    def test_lengths_that_are_predicted(self):
        vocabulary, halves, header, data = NUMBERS.parent / "vocab.txt", self.folder / "bf16.safetensors", {}, b""
        for name, x in tensors_of((NUMBERS.parent / "length.safetensors").read_bytes()).items():
            half = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
            header[name] = {"dtype": "BF16", "shape": x.shape, "data_offsets": [len(data), len(data) + len(half)]}
            data += half
        text = json.dumps(header).encode()
        halves.write_bytes(struct.pack("<Q", len(text)) + text + data)
        for predict in ('predict = "ratio"\nalpha = 1.5', 'predict = "fixed"\nlength = 20', 'predict = "reference"',
                        f'predict = "lut"\nlut = "{NUMBERS.parent}/lengths.tsv"',
                        f'predict = "network"\nfile = "{NUMBERS.parent}/length.safetensors"', f'predict = "network"\nfile = "{halves}"'):
            with self.subTest(predict=predict):
                manifest = self.written(['default = "cosformer"'], extra=f"[length]\n{predict}", kind='"encoder-decoder"', d_model=128,
                                        encoder=f'{{ layers = 1, vocab = "{vocabulary}" }}')
                self.same(manifest, 2e-5)

    def test_a_trained_translator(self):
        operators = self.same(NUMBERS)
        self.assertEqual(operators.count("Block"), 9)
        on, model = session(self.folder / "model.onnx"), attnkit.Model(RUNTIME, NUMBERS)
        for line in (NUMBERS.parent / "test.tsv").read_text().splitlines()[:50]:
            source, target = ([*model.tokenize(side, text), model.info.end_id] for side, text in enumerate(line.split("\t")))
            target.insert(0, model.info.begin_id)
            logits, = on.run(None, {"source": [source], "source_len": [len(source)], "target": [target], "target_len": [len(target)]})
            expected = np.asarray(model.forward([source], [target]))
            self.assertEqual(logits.argmax(-1).tolist(), expected.argmax(-1).tolist())

    def test_large_weights_lie_beside_the_graph(self):
        file = self.folder / "model.onnx"
        for _ in range(2):
            attnkit.onnx.export(NUMBERS, file, runtime=RUNTIME, large=1 << 20)
            self.assertEqual(sorted(f.name for f in self.folder.iterdir()), ["model.onnx", "model.onnx.data"])
            self.assertLess(file.stat().st_size, 1 << 19)
            size = file.with_name("model.onnx.data").stat().st_size
            self.assertLess(size, 1 << 23)
        self.assertEqual(len(session(file).get_inputs()), 4)

    def test_a_failed_export_leaves_what_was_there(self):
        file = self.folder / "model.onnx"
        attnkit.onnx.export(NUMBERS, file, runtime=RUNTIME, large=1 << 20)
        before = {f.name: f.read_bytes() for f in self.folder.iterdir()}
        limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # as on a disk that is full
        try:
            self.assertRaises(OSError, attnkit.onnx.export, NUMBERS, file, runtime=RUNTIME, large=1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        self.assertEqual({f.name: f.read_bytes() for f in self.folder.iterdir()}, before)
        attnkit.onnx.export(NUMBERS, file, runtime=RUNTIME)
        self.assertEqual([f.name for f in self.folder.iterdir()], ["model.onnx"])

    def test_heads_of_sentence_encoders(self):
        text = (SAMPLES / "manifests/sentence-encoder.toml").read_text().replace("../models", str(SAMPLES / "models"))
        manifest = self.folder / "sentences.toml"
        for head in ('pool = "mean", normalise = true', 'pool = "mean", normalise = true, pooler = true', 'pool = "first", pooler = true'):
            with self.subTest(head=head):
                manifest.write_text(text.replace('pool = "mean", normalise = true', head))
                self.same(manifest, 2e-5)

    def test_longrope_beyond_its_first_factors(self):
        factors = "short_factors = [1.0, 1.1, 1.2, 1.3], long_factors = [2.0, 3.0, 4.0, 5.0], attention_factor = 1.2"
        model = {"positions": '"rotary"', "rotary": f'{{ base = 100.0, scaling = "longrope", original_length = 16, {factors} }}'}
        self.same(self.written(['default = "softmax"'], **{**model, "max_length": 16}), 2e-5)
        manifest = self.written(['default = "softmax"'], **model)
        for export in (attnkit.onnx.export, attnkit.onnx.export_steps):
            with self.assertRaisesRegex(attnkit.Error, "texts of more than 16 tokens.*max_length = 16, not 64, and attention_factor = 1.2") as caught:
                export(manifest, self.folder / "longer", runtime=RUNTIME)
            self.assertEqual(caught.exception.code, attnkit.UNSUPPORTED)

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

    def test_ids(self):
        file = self.folder / "model.onnx"
        attnkit.onnx.export(NUMBERS, file, runtime=RUNTIME)
        on = session(file)
        given = {"source": np.array([[5, 6, 2, 0]]), "source_len": np.array([3]), "target": np.array([[3, 7, 0]]), "target_len": np.array([2])}
        expected, = on.run(None, given)
        padded = {"source": np.array([[5, 6, 2, -1]]), "target": np.array([[3, 7, 10**6]])}
        self.assertEqual(on.run(None, {**given, **padded})[0].tobytes(), expected.tobytes())
        for wrong in ({"source": np.array([[5, -6, 2, 0]])}, {"target": np.array([[3, -1, 0]])}):
            with self.assertRaisesRegex(Exception, "out of data bounds"):
                on.run(None, {**given, **wrong})

    def test_every_manifest_of_the_samples(self):
        exported = []
        for manifest in sorted((SAMPLES / "manifests").glob("*.toml")):
            with self.subTest(manifest=manifest.name):
                self.same(manifest, 2e-5)
                exported.append(manifest.name)
        self.assertGreater(len(exported), 20)

    def steps(self, manifest, prompt, count, standard=False, change=None, given=None, **source):
        """Tokens that the graphs of steps write after a prompt, greedily, and all logits.  change: of the decoder's graph."""
        attnkit.onnx.export_steps(manifest, self.folder, standard=standard, runtime=RUNTIME)
        decoder = onnx.load(self.folder / "decoder.onnx")
        onnx.checker.check_model(decoder)
        if change:
            change(decoder)
        on, state = session(decoder.SerializeToString()), {}
        if source:
            names = [o.name for o in session(self.folder / "encoder.onnx").get_outputs()]
            state = dict(zip(names, session(self.folder / "encoder.onnx").run(None, source)))
        state.update(given or {})
        rows, written, logits = np.array(prompt), [np.array(prompt)], []
        state.update({i.name: np.zeros((len(rows), 0), np.uint8) if i.type == "tensor(uint8)" else np.zeros((len(rows), *i.shape[1:]), np.float32)
                      for i in on.get_inputs() if i.name.endswith(".state")})
        self.operators = [node.op_type for node in decoder.graph.node]
        names = [o.name.replace(".next", ".state") for o in on.get_outputs()]
        for _ in range(count):
            position = sum(x.shape[1] for x in written) - rows.shape[1]
            made = dict(zip(names, on.run(None, {"target": rows, "target_pos": np.array(position), **state})))
            logits.append(made.pop("logits"))
            state.update(made)
            if source:
                state["memory"] = state["memory"][:, :0]
            rows = logits[-1][:, -1:].argmax(-1)
            written.append(rows)
        return np.concatenate(written, 1), np.concatenate(logits, 1)

    def test_steps_write_what_attnkit_writes(self):
        model = attnkit.Model(RUNTIME, NUMBERS)
        phrases = ["half past three", "two hundred and forty-one euros"]
        ids = [[*model.tokenize(attnkit.SOURCE, p), model.info.end_id] for p in phrases]
        source = np.zeros((2, max(map(len, ids))), np.int64)
        for row, values in zip(source, ids):
            row[:len(values)] = values
        for text in (NUMBERS.read_text(), NUMBERS.read_text().replace('"decoder.cross" = "softmax"', '"decoder.cross" = "cosformer"')):
            manifest = self.folder / "numbers.toml"
            manifest.write_text(re.sub(r'= "([\w-]+\.(?:txt|safetensors|tsv))"', rf'= "{NUMBERS.parent}/\1"', text).replace(
                'vocab = "vocab.txt"', f'vocab = "{NUMBERS.parent}/vocab.txt"'))
            written, _ = self.steps(manifest, [[model.info.begin_id]] * 2, 16, source=source, source_len=np.array([len(x) for x in ids]))
            other = attnkit.Model(RUNTIME, manifest)
            for row, phrase in zip(written.tolist(), phrases):
                end = row.index(model.info.end_id)
                self.assertEqual(model.detokenize(attnkit.TARGET, row[1:end]), other.translate(phrase))

    def test_steps_of_every_kind_of_decoder(self):
        prompt = [[5, 6, 7], [8, 9, 10]]
        made = (self.written([f'default = "{m}"'], **more) for m in ("local", "s4d", "ssru")
                for more in ({}, {"positions": '"learned"', "norm": '"post"'}, {"positions": '"rotary"'} if m == "local" else {}))
        for manifest in itertools.chain([SAMPLES / "manifests/language-model.toml"], made):
            with self.subTest(manifest=manifest.read_text()):
                written, logits = self.steps(manifest, prompt, 9)
                with attnkit.Model(RUNTIME, manifest) as model:
                    whole = np.asarray(model.forward(target=np.ascontiguousarray(written[:, :-1]).astype(np.int32)))
                np.testing.assert_allclose(logits, whole, rtol=0, atol=2e-5 * np.abs(whole).max())

    def test_steps_of_a_target_that_begins_with_nothing(self):
        self.same_steps(SAMPLES / "manifests/translator.toml")

    def test_steps_of_heads_that_share_keys(self):
        """linformer has as many heads of keys as of queries, and the second step has no keys."""
        manifest = self.written(['default = "softmax"\n"decoder.cross" = "linformer"'], kind='"encoder-decoder"', kv_heads=2,
                                encoder=f'{{ layers = 1, vocab = "{NUMBERS.parent}/vocab.txt" }}')
        self.same_steps(manifest)

    def same_steps(self, manifest):
        source = np.array([[5, 6, 7, 2], [9, 2, 0, 0]])
        written, logits = self.steps(manifest, [[3], [3]], 7, source=source, source_len=np.array([4, 2]))
        with attnkit.Model(RUNTIME, manifest) as model:
            whole = np.asarray(model.forward(source.astype(np.int32), np.ascontiguousarray(written[:, :-1]).astype(np.int32), source_lengths=[4, 2]))
        np.testing.assert_allclose(logits, whole, rtol=0, atol=2e-5 * np.abs(whole).max())

    def test_steps_that_a_session_refuses(self):
        for positions, standard in itertools.product(("sinusoidal", "learned", "rotary", "none"), (False, True)):
            with self.subTest(positions=positions, standard=standard):
                manifest = self.written(['default = "relu"'], positions=f'"{positions}"', max_length=16)
                self.steps(manifest, [[5] * 15], 2, standard)
                for prompt, count, given in (([5] * 15, 3, {}), ([5] * 17, 1, {}), ([5], 1, {"target_pos": np.array(-1)})):
                    with self.assertRaisesRegex(Exception, "target_within_max_length.*out of data bounds"):
                        self.steps(manifest, [prompt], count, standard, given=given)
                with self.assertRaisesRegex(Exception, "out of data bounds"):
                    self.steps(manifest, [[5, -1]], 1, standard)

    def test_models_that_have_no_steps(self):
        for manifest, pattern in ((SAMPLES / "manifests/sentence-encoder.toml", "a model without a decoder writes nothing"),
                                  (self.written(['default = "luna"']), "decoder.self.1: luna carries sequences")):
            with self.assertRaisesRegex(attnkit.Error, pattern):
                attnkit.onnx.export_steps(manifest, self.folder, runtime=RUNTIME)

    def test_speech(self):
        self.same(SAMPLES / "models/numbers-speech/model.toml", 2e-5)

    def test_standard_operators(self):
        for mechanism in ("relu", "linear", "ssru"):
            with self.subTest(mechanism=mechanism):
                manifest = self.written([f'default = "{mechanism}"'], kv_heads=2)
                self.assertEqual(self.same(manifest, 2e-5).count("Block"), 2)
                operators = self.same(manifest, 2e-5, standard=True)
                self.assertEqual((operators.count("LinearAttention"), operators.count("Block")), (2, 0))
                model = onnx.load(self.folder / "model.onnx")
                self.assertEqual(attnkit.onnx.import_linear_attention(model), 2)
                inputs = {"target": np.random.default_rng(2).integers(0, 50, (1, 9)), "target_len": np.array([9])}
                ours, theirs = (session(m.SerializeToString()).run(None, inputs)[0] for m in (model, onnx.load(self.folder / "model.onnx")))
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())
        self.assertEqual(self.same(self.written(['default = "softmax"']), standard=True).count("LinearAttention"), 0)

    def test_steps_in_standard_operators_and_back(self):
        prompt = [[5, 6, 7], [8, 9, 10]]

        def imported(decoder):
            self.assertEqual(attnkit.onnx.import_linear_attention(decoder, capacity=64, position="target_pos", every=True), 2)

        for mechanism, model in itertools.product(("relu", "linear", "ssru"), ({}, {"kv_heads": 2, "bias": '"none"', "positions": '"learned"'})):
            manifest = self.written([f'default = "{mechanism}"'], **model)
            with attnkit.Model(RUNTIME, manifest) as model:
                for change, operators in ((None, {"LinearAttention": 2, "Block": 0}), (imported, {"LinearAttention": 0, "Block": 2})):
                    with self.subTest(manifest=manifest.read_text(), change=change):
                        written, logits = self.steps(manifest, prompt, 9, standard=True, change=change)
                        self.assertEqual({name: self.operators.count(name) for name in operators}, operators)
                        whole = np.asarray(model.forward(target=np.ascontiguousarray(written[:, :-1]).astype(np.int32)))
                        np.testing.assert_allclose(logits, whole, rtol=0, atol=2e-5 * np.abs(whole).max())

    # Those whose feature map is made by operators in front; what is read of a manifest, and the options.
    FEATURES = [("leap", "{}"), ("leap", "{ shared = false, factor = 8, scale = 'inverse_sqrt', guard = 'add' }"), ("leap", "{ factor = 2 }"),
                ("cosformer", "{}"), ("cosformer", "{ beyond = 'saturate', guard = 'add' }"), ("rope_linear", "{}"),
                ("rope_linear", "{ rotated = 8, base = 50.0, scale = 'none', guard = 'clamp' }"), ("performer", "{}"),
                ("performer", "{ stabiliser = 'fixed', fixed = 0.5, feature_eps = 1e-3, guard = 'add', features = 40 }"),
                ("performer", "{ stabiliser = 'global', features = 17 }")]

    def test_feature_maps_in_standard_operators(self):
        prompt, total = [[5, 6, 7], [8, 9, 10]], np.array([11.0, 11.0])
        for (mechanism, options), model in itertools.product(self.FEATURES, ({}, {"kv_heads": 2})):
            if model and "shared = false" in options:
                continue
            options = options.replace("{ ", f'{{ use = "{mechanism}", ').replace("{}", f'"{mechanism}"').replace("'", '"')
            length = "[length]\npredict = 'fixed'\nlength = 11" if mechanism == "cosformer" else ""
            manifest = self.written([f"default = {options}"], extra=length, **model)
            with self.subTest(attention=options, **model), attnkit.Model(RUNTIME, manifest) as made:
                operators = self.same(manifest, 2e-5, standard=True)
                self.assertEqual((operators.count("LinearAttention"), operators.count("Block")), (2, 0))
                inputs = {"target": np.random.default_rng(2).integers(0, 50, (2, 9)), "target_len": np.array([9, 5])}
                graph = onnx.load(self.folder / "model.onnx")
                reference, ours = (on.run(None, inputs)[0] for on in (ReferenceEvaluator(graph), session(graph.SerializeToString())))
                np.testing.assert_allclose(reference, ours, rtol=0, atol=2e-5 * np.abs(ours).max())
                given = {"target_total": total} if mechanism == "cosformer" else {}
                # Past a length that saturates places stay; past one that does not weights turn negative, and their sums cancel.
                count = 12 if "saturate" in options else 7
                written, logits = self.steps(manifest, prompt, count, standard=True, given=given)
                self.assertEqual((self.operators.count("LinearAttention"), self.operators.count("Block")), (2, 0))
                whole = np.asarray(made.forward(target=np.ascontiguousarray(written[:, :-1]).astype(np.int32)))
                np.testing.assert_allclose(logits, whole, rtol=0, atol=2e-5 * np.abs(whole).max())

    def test_what_is_no_linear_attention_stays_a_block(self):
        for use in ('"cosformer", beyond = "error"', '"performer", guard = "add", feature_eps = 1e-3, stabiliser = "fixed"', '"softmax"', '"s4d"'):
            manifest = self.written([f"default = {{ use = {use} }}"], extra="[length]\npredict = 'fixed'\nlength = 16" if "cosformer" in use else "")
            operators = self.same(manifest, 2e-5, standard=True)
            self.assertEqual(operators.count("Block"), 0 if "fixed" in use else 2, use)

    def test_steps_of_a_translator_in_standard_operators(self):
        model = attnkit.Model(RUNTIME, NUMBERS)
        ids = [*model.tokenize(attnkit.SOURCE, "half past three"), model.info.end_id]
        for mechanism in ("relu", "ssru"):
            manifest = self.written([f'default = "softmax"\n"decoder.self" = "{mechanism}"'], kind='"encoder-decoder"',
                                    encoder=f'{{ layers = 1, vocab = "{NUMBERS.parent}/vocab.txt" }}')
            written, logits = self.steps(manifest, [[model.info.begin_id]], 7, standard=True, source=np.array([ids]), source_len=np.array([len(ids)]))
            self.assertEqual((self.operators.count("LinearAttention"), self.operators.count("Block")), (2, 2))
            with attnkit.Model(RUNTIME, manifest) as other:
                whole = np.asarray(other.forward(np.array([ids], np.int32), np.ascontiguousarray(written[:, :-1]).astype(np.int32)))
            np.testing.assert_allclose(logits, whole, rtol=0, atol=2e-5 * np.abs(whole).max())

    def test_the_command(self):
        file = self.folder / "model.onnx"
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", NUMBERS, file], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(file.is_file())
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", "--steps", NUMBERS, self.folder / "steps"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(sorted(f.name for f in (self.folder / "steps").iterdir()), ["decoder.onnx", "encoder.onnx"])
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", "--steps", "--standard", self.written(['default = "relu"']),
                               self.folder / "steps"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("LinearAttention", [node.op_type for node in onnx.load(self.folder / "steps/decoder.onnx").graph.node])
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", "--standard", self.written(['default = "softmax"']), file],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, "attnkit.onnx: no block of this model is a LinearAttention: --standard changes none\n"))
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", self.folder / "none.toml", file], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^attnkit.onnx: .*none.toml.*\n$")
        file = self.folder / "none/model.onnx"
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.onnx", NUMBERS, file], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, f"attnkit.onnx: {file}: No such file or directory\n"))

    def test_library_beside_another(self):
        done = subprocess.run([sys.executable, "-c", "import attnkit.onnx; attnkit.onnx.library()"], capture_output=True, text=True,
                              env={**os.environ, "ATTNKIT_LIBRARY": os.__file__})
        self.assertIn("libattnkit-onnxruntime.so is no file", done.stderr)


HEADS, KV_HEADS, D, E, ROWS = 4, 2, 8, 6, 19


class LinearAttention(unittest.TestCase):
    """Blocks of relu and linear as the standard operator, and back."""

    def setUp(self):
        random = np.random.default_rng(1)
        self.rows = {name: random.standard_normal((2, ROWS, h * w)).astype(np.float32) for name, h, w in
                     (("q", HEADS, D), ("k", KV_HEADS, D), ("v", KV_HEADS, E))}

    def graph(self, mechanism, states=(), factor=1.0, **options):
        """Causal attention by LinearAttention, heads beside each other."""
        graph = Graph()
        for name, x in self.rows.items():
            graph.input(name, TensorProto.FLOAT, ["b", "n", x.shape[2]])
        if states and states[0]:
            graph.input("past", TensorProto.FLOAT, [2, KV_HEADS, D, E + 1])
        options = {"guard": "clamp", "eps": 1e-3, "scale": "none", **options}
        o = as_linear_attention(graph, mechanism, options, "q", "k", "v", HEADS, KV_HEADS, D, *states)
        graph("Identity", o, outputs=["o"])
        for name in ("o", *states[1:]):
            graph.output(name, ["b", "n", HEADS * E] if name == "o" else [2, KV_HEADS, D, E + 1])
        for node in graph.nodes:
            for attribute in node.attribute:
                if node.op_type == "LinearAttention" and attribute.name == "scale":
                    attribute.f = factor
        return graph.model("test", OPSET)

    def direct(self, mechanism, options):
        at = attnkit.Block(RUNTIME, mechanism, "decoder.self", HEADS * D, HEADS, head_width=E, kv_heads=KV_HEADS, options=options)
        port = {p.name: p for p in at.ports}
        heads = {name: np.ascontiguousarray(x.reshape(2, ROWS, port[name].shape[1], -1).transpose(0, 2, 1, 3)) for name, x in self.rows.items()}
        out = np.asarray(at.run(at.request(2, ROWS, ROWS), heads).output)
        return out.transpose(0, 2, 1, 3).reshape(2, ROWS, -1)

    CASES = [(mechanism, guard, eps) for mechanism in ("relu", "linear") for guard, eps in (("none", 0.0), ("add", 0.25), ("clamp", 2.0))]

    def test_both_ways(self):
        for mechanism, guard, eps in self.CASES:
            with self.subTest(mechanism=mechanism, guard=guard):
                model = self.graph(mechanism, guard=guard, eps=eps)
                onnx.checker.check_model(model)
                expected = self.direct(mechanism, f"guard = '{guard}', eps = {eps}")
                for out in (session(model.SerializeToString()).run(None, self.rows), ReferenceEvaluator(model).run(None, self.rows)):
                    np.testing.assert_allclose(out[0], expected, rtol=0, atol=2e-5 * np.nanmax(np.abs(expected)))
                self.assertEqual(attnkit.onnx.import_linear_attention(model), 1)
                self.assertEqual([n.op_type for n in model.graph.node], ["Block", "Reshape", "Reshape", "Identity"])
                got, = session(model.SerializeToString()).run(None, self.rows)
                self.assertEqual(got.tobytes(), np.ascontiguousarray(expected).tobytes())

    def test_scales(self):
        for scale, guard in ((0.0, "add"), (0.5, "add"), (-0.5, "none")):  # 0 is D^-1/2
            model = self.graph("relu", factor=scale, guard=guard, eps=0.25)
            whole, = session(model.SerializeToString()).run(None, self.rows)
            self.assertEqual(attnkit.onnx.import_linear_attention(model), 1)
            np.testing.assert_allclose(session(model.SerializeToString()).run(None, self.rows)[0], whole, rtol=0, atol=1e-5)

    def test_scaled_queries(self):
        model = self.graph("relu", scale="inverse_sqrt", guard="add", eps=0.25)
        expected = self.direct("relu", "guard = 'add', eps = 0.25, scale = 'inverse_sqrt'")
        np.testing.assert_allclose(session(model.SerializeToString()).run(None, self.rows)[0], expected, rtol=0, atol=1e-5)

    def test_a_state_in_chunks(self):
        on = session(self.graph("linear", ("past", "present")).SerializeToString())
        state, got = np.zeros((2, KV_HEADS, D, E + 1), np.float32), []
        for begin, end in ((0, 7), (7, 8), (8, ROWS)):
            o, state = on.run(None, {**{name: x[:, begin:end] for name, x in self.rows.items()}, "past": state})
            got.append(o)
        np.testing.assert_allclose(np.concatenate(got, 1), self.direct("linear", "guard = 'clamp', eps = 1e-3"), rtol=0, atol=1e-5)

    def chunks(self, model, empty):
        """The outputs of a graph for the rows in three parts; empty: its first state."""
        on, state, got = session(model.SerializeToString()), empty, []
        wanted = {i.name for i in on.get_inputs()}
        for begin, end in ((0, 7), (7, 8), (8, ROWS)):
            given = {**{name: x[:, begin:end] for name, x in self.rows.items()}, "past": state, "past_length": np.array(begin)}
            o, state = on.run(None, {name: x for name, x in given.items() if name in wanted})
            got.append(o)
        return np.concatenate(got, 1)

    def test_states_become_those_of_blocks(self):
        for mechanism, guard, eps in self.CASES:
            with self.subTest(mechanism=mechanism, guard=guard):
                model = self.graph(mechanism, ("past", "present"), guard=guard, eps=eps)
                expected = self.direct(mechanism, f"guard = '{guard}', eps = {eps}")
                before = model.SerializeToString()
                self.assertEqual(attnkit.onnx.import_linear_attention(model), 0)
                self.assertEqual(model.SerializeToString(), before)
                self.assertEqual(attnkit.onnx.import_linear_attention(model, capacity=ROWS), 1)
                onnx.checker.check_model(model)
                self.assertEqual({i.name: i.type.tensor_type.elem_type for i in model.graph.input}["past"], TensorProto.UINT8)
                self.assertEqual([i.name for i in model.graph.input], ["q", "k", "v", "past", "past_length"])
                self.assertEqual([n.op_type for n in model.graph.node if n.op_type in ("Block", "LinearAttention")], ["Block"])
                got = self.chunks(model, np.zeros((2, 0), np.uint8))
                np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * np.nanmax(np.abs(expected)))

    def test_a_first_state_alone(self):
        """Only present_state, as of a prompt."""
        model = self.graph("relu", (None, "present"))
        expected = self.direct("relu", "guard = 'clamp', eps = 1e-3")
        self.assertEqual(attnkit.onnx.import_linear_attention(model, capacity=ROWS, every=True), 1)
        self.assertNotIn("past_length", [i.name for i in model.graph.input])
        o, state = session(model.SerializeToString()).run(None, self.rows)
        np.testing.assert_allclose(o, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
        self.assertEqual((state.dtype, state.shape[0]), (np.uint8, 2))

    def recurrence(self, states=()):
        """ssru by LinearAttention, of rows q, and the inputs of a block of it."""
        width, random = HEADS * D, np.random.default_rng(3)
        learned = {name: (random.standard_normal(shape) / 2).astype(np.float32) for name, shape in
                   (("value", (width, width)), ("forget", (width, width)), ("forget_bias", (width,)))}
        self.rows = {"q": self.rows["q"]}
        graph = Graph()
        graph.input("q", TensorProto.FLOAT, ["b", "n", width])
        if states:
            graph.input("past", TensorProto.FLOAT, ["b", width, 1, 1])
        graph("Identity", as_gated_recurrence(graph, width, "q", *learned.values(), *states), outputs=["o"])
        graph.output("o", ["b", "n", width])
        for name in states[1:]:
            graph.output(name, ["b", width, 1, 1])
        return graph.model("recurrence", OPSET), learned

    def float64_recurrence(self, learned):
        x = self.rows["q"].astype(np.float64)
        f = 1 / (1 + np.exp(-(x @ learned["forget"].astype(np.float64) + learned["forget_bias"])))
        written, c, out = x @ learned["value"].astype(np.float64), 0, []
        for t in range(ROWS):
            c = f[:, t] * c + (1 - f[:, t]) * written[:, t]
            out.append(np.maximum(c, 0))
        return np.stack(out, 1)

    def test_a_gated_recurrence_both_ways(self):
        model, learned = self.recurrence()
        onnx.checker.check_model(model)
        expected = self.float64_recurrence(learned)
        for out in (session(model.SerializeToString()).run(None, self.rows), ReferenceEvaluator(model).run(None, self.rows)):
            np.testing.assert_allclose(out[0], expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        self.assertEqual(attnkit.onnx.import_linear_attention(model, every=True), 1)
        self.assertEqual([n.op_type for n in model.graph.node], ["Block", "Identity"])
        got, = session(model.SerializeToString()).run(None, self.rows)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    def test_a_gated_state_in_chunks_both_ways(self):
        model, learned = self.recurrence(("past", "present"))
        expected = self.float64_recurrence(learned)
        got = self.chunks(model, np.zeros((2, HEADS * D, 1, 1), np.float32))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        self.assertEqual(attnkit.onnx.import_linear_attention(model, capacity=ROWS, every=True), 1)
        got = self.chunks(model, np.zeros((2, 0), np.uint8))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    def test_gates_that_are_not_a_mechanism_are_left(self):
        def node(model, kind):
            return next(n for n in model.graph.node if n.op_type == kind)

        def ones(model):
            node(model, "ConstantOfShape").attribute[0].t.raw_data = np.float32(2).tobytes()

        def key(model):
            node(model, "Sigmoid").op_type = "Tanh"

        def decay(model):
            node(model, "Softplus").op_type = "Relu"

        def decay_of_another(model):
            node(model, "Softplus").input[0] = node(model, "MatMul").output[0]

        def behind(model):
            node(model, "Relu").op_type = "Abs"

        def source(model):
            products = [n for n in model.graph.node if n.op_type == "MatMul"]
            model.graph.node.insert(0, onnx.helper.make_node("Neg", ["q"], ["other"]))
            products[1].input[0] = "other"

        def rule(model):
            next(a for a in node(model, "LinearAttention").attribute if a.name == "update_rule").s = b"linear"

        for change in (ones, key, decay, decay_of_another, behind, source, rule):
            with self.subTest(change=change.__name__):
                model, _ = self.recurrence()
                change(model)
                before = model.SerializeToString()
                self.assertEqual(attnkit.onnx.import_linear_attention(model), 0)
                with self.assertRaisesRegex(attnkit.Error, 'LinearAttention ".*": update_rule is "'):
                    attnkit.onnx.import_linear_attention(model, every=True)
                self.assertEqual(model.SerializeToString(), before)

    def refused(self, model, pattern, **more):
        before = model.SerializeToString()
        with self.assertRaisesRegex(attnkit.Error, pattern):
            attnkit.onnx.import_linear_attention(model, every=True, **more)
        self.assertEqual(model.SerializeToString(), before)

    def test_why_a_node_is_left(self):
        states = ("past", "present")
        for rule in ("delta", "gated_delta"):
            model = self.graph("relu")
            next(a for n in model.graph.node for a in n.attribute if a.name == "update_rule").s = rule.encode()
            self.refused(model, f'update_rule is "{rule}": mechanisms have "linear" \\(relu and linear\\) and "gated" \\(ssru\\)')
        self.refused(self.graph("relu", states), "past_state or a present_state: say by capacity")
        model = self.graph("relu", states)
        model.graph.node.append(onnx.helper.make_node("Identity", ["past"], ["again"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("again", TensorProto.FLOAT, None))
        self.refused(model, 'past_state "past" is no input of the graph that this node alone reads', capacity=ROWS)
        model = self.graph("relu", states)
        model.graph.node.append(onnx.helper.make_node("Identity", ["present"], ["again"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("again", TensorProto.FLOAT, None))
        self.refused(model, 'present_state "present" is not an output of the graph alone', capacity=ROWS)
        for name, said in (("past", 'past_state "past" is no input'), ("present", 'present_state "present" is not an output')):
            model = self.graph("relu", states)
            self.read_inside(model, name)
            self.refused(model, said, capacity=ROWS)
        model = self.graph("relu", states)
        sums = next(n for n in model.graph.node if n.op_type == "Max").output[0]
        model.graph.output.append(onnx.helper.make_tensor_value_info(sums, TensorProto.FLOAT, None))
        self.refused(model, "the graph uses its output for something else too", capacity=ROWS)
        model = self.graph("relu", states)
        self.refused(model, 'the graph\'s input "q" is no int32 or int64', capacity=ROWS, position="q")
        self.refused(model, '"Relu_0" is a value inside the graph', capacity=ROWS, position="Relu_0")
        half = self.graph("relu")
        for value in (*half.graph.input, *half.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
        self.refused(half, "it is of FLOAT16: attnkit.Block computes in FLOAT")
        for factor, guard, said in ((1e-8, "add", "its guard of 0.1 over its scale of 1e-08 is 1e\\+07"), (-1.0, "add", "is -0.1"),
                                    (-1.0, "clamp", "a scale above 0")):
            self.refused(self.graph("relu", factor=factor, guard=guard, eps=0.1), said)
        other = self.graph("relu")
        next(n for n in other.graph.node if n.op_type == "LinearAttention").domain = "example"
        self.refused(other, "this graph has no LinearAttention")
        other = self.graph("relu")
        next(n for n in other.graph.node if n.op_type == "Relu").domain = "example"
        other.opset_import.append(onnx.helper.make_opsetid("example", 1))
        self.refused(other, "its query and key are not both Relu")

    def test_what_is_no_mechanism_is_left(self):
        for change in ("rule", "state", "feature", "wrong way", "heads", "twos"):
            model = self.graph("relu", ("past", "present") if change == "state" else ())
            node = next(n for n in model.graph.node if n.op_type == "LinearAttention")
            if change == "rule":
                next(a for a in node.attribute if a.name == "update_rule").s = b"gated"
            if change == "feature":
                next(n for n in model.graph.node if n.op_type == "Relu").op_type = "Softplus"
            if change == "wrong way":
                division = next(n for n in model.graph.node if n.op_type == "Div")
                division.input[0], division.input[1] = division.input[1], division.input[0]
            if change == "heads":
                for shape in (t for t in model.graph.initializer if onnx.numpy_helper.to_array(t).tolist() == [0, 0, HEADS, -1]):
                    shape.CopyFrom(onnx.numpy_helper.from_array(np.array([0, 0, HEADS // 2, -1]), shape.name))
            if change == "twos":
                next(n for n in model.graph.node if n.op_type == "ConstantOfShape").attribute[0].t.raw_data = np.float32(2).tobytes()
            before = model.SerializeToString()
            self.assertEqual(attnkit.onnx.import_linear_attention(model), 0)
            self.assertEqual(model.SerializeToString(), before)
        with self.assertRaisesRegex(attnkit.Error, "this graph has no LinearAttention"):
            attnkit.onnx.import_linear_attention(onnx.helper.make_model(Graph().model("empty", 20).graph))

    def read_inside(self, model, name):
        """Adds an output that a graph inside a node makes of a value."""
        inner = onnx.helper.make_graph([onnx.helper.make_node("Identity", [name], ["inner"])], "inner", [],
                                       [onnx.helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)])
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
        model.graph.node.append(onnx.helper.make_node("If", ["yes"], ["read"], then_branch=inner, else_branch=inner))
        model.graph.output.append(onnx.helper.make_tensor_value_info("read", TensorProto.FLOAT, None))

    def test_what_the_rest_of_the_graph_uses_stays(self):
        model = self.graph("relu")
        self.read_inside(model, next(n for n in model.graph.node if n.op_type == "Max").output[0])
        before = session(model.SerializeToString()).run(None, self.rows)
        self.assertEqual(attnkit.onnx.import_linear_attention(model), 1)
        for ours, theirs in zip(session(model.SerializeToString()).run(None, self.rows), before):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())

    def test_what_else_reads_the_sums_stays(self):
        model = self.graph("relu", guard="none")
        sums = next(n for n in model.graph.node if n.op_type == "LinearAttention").output[0]
        model.graph.node.append(onnx.helper.make_node("Identity", [sums], ["sums"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("sums", TensorProto.FLOAT, None))
        before = session(model.SerializeToString()).run(None, self.rows)
        self.assertEqual(attnkit.onnx.import_linear_attention(model), 1)
        for ours, theirs in zip(session(model.SerializeToString()).run(None, self.rows), before):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * np.nanmax(np.abs(theirs)))

    def test_cuts_of_every_dimension_are_left(self):
        model, most = self.graph("relu"), np.iinfo(np.int64).max
        for node in [n for n in model.graph.node if n.op_type == "Slice"]:
            begin, end = (onnx.numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name))[0] for name in node.input[1:3])
            node.input[1:] = [f"{node.name}_begin", f"{node.name}_end"]
            for name, values in zip(node.input[1:], ([0, 0, 0, begin], [most, most, most, end])):
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values), name))
        onnx.checker.check_model(model)
        self.assertEqual(attnkit.onnx.import_linear_attention(model), 0)

    def test_columns_may_be_split(self):
        model = self.graph("linear")
        one, two = (n for n in model.graph.node if n.op_type == "Slice")
        place = list(model.graph.node).index(one)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([E, 1]), "sizes"))
        split = onnx.helper.make_node("Split", [one.input[0], "sizes"], [one.output[0], two.output[0]], axis=-1)
        for node in (one, two):
            model.graph.node.remove(node)
        model.graph.node.insert(place, split)
        before, = session(model.SerializeToString()).run(None, self.rows)
        self.assertEqual(attnkit.onnx.import_linear_attention(model), 1)
        np.testing.assert_allclose(session(model.SerializeToString()).run(None, self.rows)[0], before, rtol=0, atol=1e-5)

    def test_a_mechanism_that_is_none(self):
        with self.assertRaisesRegex(attnkit.Error, "softmax with these options is no LinearAttention"):
            self.graph("softmax")


if __name__ == "__main__":
    unittest.main()
