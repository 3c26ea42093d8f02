"""Model: every manifest as libattnkit makes it, tensor for tensor; what is exported loads and verifies."""

import os
import pickle
import re
import subprocess
import sys
import tomllib
import unittest.mock

import torch
from support import SOURCE, TorchTest, attnkit, command, main, tiny_model

from attnkit.torch._safetensors import tensors_of

MANIFESTS = sorted([*(SOURCE / "samples/manifests").glob("*.toml"), *(SOURCE / "samples/models").glob("**/model.toml")])
CHECKPOINTS = sorted(path.parent for path in (SOURCE / "tests/import/golden").glob("*/config.json"))
TRANSLATOR = SOURCE / "samples/models/numbers-en-de/model.toml"


def batch(model):
    """Inputs of three rows of differing lengths."""
    random, info, inputs = torch.Generator().manual_seed(1), model.info, {}
    frames = model.description["speech"] and model.description["speech"]["features"]["frames"]  # of every recording
    if hasattr(model, "encoder") and frames:
        inputs.update(source=torch.randn(3, frames, info.features, generator=random), source_lengths=torch.tensor([frames] * 3))
    elif hasattr(model, "encoder") and info.sample_rate:
        inputs.update(source=torch.randn(3, 50, info.features, generator=random), source_lengths=torch.tensor([50, 33, 9]))
    elif hasattr(model, "encoder"):
        inputs.update(source=torch.randint(info.source_vocab, (3, 11), generator=random), source_lengths=torch.tensor([11, 7, 1]))
    if hasattr(model, "decoder"):
        inputs.update(target=torch.randint(info.target_vocab, (3, 9), generator=random), target_lengths=torch.tensor([4, 9, 2]))
    return inputs


def logits_of_core(manifest, inputs):
    core = attnkit.Model(attnkit.torch.runtime(), manifest)

    def rows(side):
        return [row[:n].tolist() for row, n in zip(inputs[side], inputs[f"{side}_lengths"])] if side in inputs else []

    return torch.tensor(core.forward(rows("source"), rows("target")).tolist())


class Model(TorchTest):
    def test_every_manifest_is_cores_model(self):
        self.assertGreater(len(MANIFESTS), 20)
        for manifest in MANIFESTS:
            with self.subTest(manifest=str(manifest.relative_to(SOURCE))):
                model = attnkit.torch.Model.from_manifest(manifest)
                inputs = batch(model)
                with torch.no_grad():
                    logits = model(**inputs)
                if not model.info.sample_rate:  # core's forward of speech: the exported golden activations
                    self.assert_close(logits, logits_of_core(manifest, inputs), 1e-5)
                self.verified(model)

    def test_every_checkpoint_is_cores_model(self):
        self.assertGreater(len(CHECKPOINTS), 15)
        for checkpoint in CHECKPOINTS:
            with self.subTest(checkpoint=checkpoint.name):
                manifest = self.folder / f"{checkpoint.name}.toml"
                imported = command("import", checkpoint, "-o", manifest)
                self.assertEqual(imported.code, 0, imported.err)
                model = attnkit.torch.Model.from_manifest(manifest)
                inputs = batch(model)
                with torch.no_grad():
                    results = model(**inputs)
                if not model.info.sample_rate:
                    self.assert_close(results, logits_of_core(manifest, inputs), 1e-5)
                self.verified(model)

    def test_a_t5_trains_its_biases(self):
        manifest = self.folder / "t5.toml"
        self.assertEqual(command("import", SOURCE / "tests/import/golden/t5", "-o", manifest).code, 0)
        model = attnkit.torch.Model.from_manifest(manifest)
        inputs = batch(model)
        tables = [parameter for name, parameter in model.named_parameters() if "relative_bias" in name]
        self.assertEqual(len(tables), 2)
        model(**inputs).square().mean().backward()
        for table in tables:
            values, way = table.detach().clone(), table.grad / table.grad.norm()
            with torch.no_grad():
                means = [model(**inputs).double().square().mean() for step in (1e-2, -1e-2) if table.copy_(values + step * way) is not None]
                table.copy_(values)
            slope = (means[0] - means[1]).item() / 2e-2
            self.assertAlmostEqual(slope / table.grad.norm().item(), 1, delta=0.02)

    def test_weights_of_few_bits_are_refused(self):
        for kind in ("int8", "bf16"):
            with self.assertRaises(attnkit.Error) as caught:
                attnkit.torch.Model(TRANSLATOR.read_text().replace("[weights]", f'[weights]\ntype = "{kind}"'), TRANSLATOR.parent)
            self.assertIn(f"weights of type {kind} cannot be trained", str(caught.exception))

    def verified(self, model, code=0):
        manifest = model.export(self.folder / "exported")
        result = command("verify", manifest)
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def test_more_rows_than_positions_are_refused(self):
        text = tiny_model.write_model(self.folder, attention='default = "relu"').read_text()
        text = re.sub('file = .*\nsha256 = .*', "seed = 1", text)
        for positions in ("sinusoidal", "learned"):
            model = attnkit.torch.Model(text.replace("max_length", f'positions = "{positions}"\nmax_length'), self.folder)
            long, short = torch.full((1, 65), 4), torch.full((1, 64), 4)
            self.refused("the source has 65 rows, and max_length, which the table of positions ends at, is 64", model, long, None, short)
            self.refused("the target has 65 rows, and max_length, which the table of positions ends at, is 64", model, short, None, long)
            model(short, None, short)

    def test_a_python_without_tomllib_trains_and_says_what_it_cannot(self):
        """As Python 3.9 and 3.10 are."""
        program = """
import sys
sys.modules["tomllib"] = None
import attnkit.torch, torch
model = attnkit.torch.Model.from_manifest(sys.argv[1])
ids = torch.tensor([[3, 4]])
model(ids, None, ids).sum().backward()
for function in (model.export, lambda _: attnkit.torch.Supernet.from_manifest(sys.argv[1])):
    try:
        function(sys.argv[2])
    except attnkit.Error as e:
        print(e)
from attnkit.train.__main__ import main
main([sys.argv[1], "--data", "none", "--out", sys.argv[2]])
"""
        done = subprocess.run([sys.executable, "-B", "-W", "ignore", "-c", program, TRANSLATOR, self.folder / "out"], capture_output=True,
                              text=True, check=False)
        said = (done.stdout + done.stderr).splitlines()
        self.assertEqual(len(said), 3, said)
        for line in said:
            self.assertRegex(line, "^(error: )?manifests are read by tomllib, which Python has from 3.11 on, and this is 3")

    def test_a_layer_that_differs_is_named(self):
        model = attnkit.torch.Model.from_manifest(TRANSLATOR)
        manifest = model.export(self.folder)
        with torch.no_grad():
            model.decoder.block("self", "2").v.weight[5, 7] += 0.5
        other = model.export(self.folder / "other")
        result = command("verify", manifest, "--golden", other.parent / "golden.safetensors")
        self.assertEqual(result.code, 7)
        self.assertIn("decoder.self.2 is the first layer that differs", result.out)
        result = command("verify", TRANSLATOR)
        self.assertEqual(result.code, 6)
        self.assertIn("golden.safetensors is not there\n  help: attnkit.train", result.err)

    def test_what_it_names_does_not_take_the_place_of_what_is_written(self):
        """A vocabulary of the name that the golden activations get."""
        manifest = tiny_model.write_model(self.folder / "tiny")
        os.replace(manifest.parent / "vocab.txt", manifest.parent / "golden.safetensors")
        manifest.write_text(manifest.read_text(encoding="utf-8").replace("vocab.txt", "golden.safetensors"), encoding="utf-8")
        for folder in (self.folder / "out", manifest.parent):
            exported = attnkit.torch.Model.from_manifest(manifest).export(folder)
            self.assertEqual(command("verify", exported).code, 0)
            self.assertIn('vocab = "_golden.safetensors"', exported.read_text(encoding="utf-8"))

    def test_half_of_tied_embeddings(self):
        model = attnkit.torch.Model.from_manifest(SOURCE / "samples/models/debian-en-de/model.toml")
        tensors = tensors_of((model.export(self.folder, half=True).parent / "weights.safetensors").read_bytes())
        self.assertEqual({tensor.dtype for name, tensor in tensors.items() if name.endswith("weight")}, {torch.float16})

    def test_longrope_turns_each_text_by_its_own_length(self):
        manifest = tiny_model.write_model(self.folder / "tiny", kind="decoder")
        rotary = 'positions = "rotary"\nrotary = { scaling = "longrope", original_length = 4, short_factors = [1, 1, 1, 1], long_factors = [2, 3, 4, 5] }'
        manifest.write_text(manifest.read_text(encoding="utf-8").replace("max_length = 64", f"max_length = 64\n{rotary}"), encoding="utf-8")
        inputs = {"target": torch.tensor([[1, 5, 6, 0, 0, 0, 0, 0], [1, 4, 5, 6, 7, 8, 9, 10]]), "target_lengths": torch.tensor([3, 8])}
        model, core = attnkit.torch.Model.from_manifest(manifest), logits_of_core(manifest, inputs)
        with torch.no_grad():
            both, alone = model(**inputs), model(target=inputs["target"][:1, :3])
        self.assertLess(float((both - core).abs().max()), 1e-5)
        self.assertLess(float((both[:1, :3] - alone).abs().max()), 1e-5)

    def test_sources_that_end_with_no_token(self):
        """The token that programs put behind them is not read, also where it is none of the source's vocabulary."""
        tokens = tiny_model.TOKENS
        for predict in ('"ratio"\nalpha = 1.5', '"lut"\nlut = "lut.tsv"'):
            path = tiny_model.write_model(self.folder, attention='default = "cosformer"', extra=f"[length]\npredict = {predict}")
            (self.folder / "lut.tsv").write_text(f"{tokens[4]}\t7.5\n{tokens[5]}\t0.5\n</s>\t9\n", encoding="utf-8")
            target = [*(token for token in tokens if token != "</s>"), "\u2581fünf", "</s>"]
            (self.folder / "target.txt").write_text("".join(f"{token}\n" for token in target), encoding="utf-8")
            text = re.sub("file = .*\nsha256 = .*", "seed = 1", path.read_text(encoding="utf-8"))
            text = text.replace('encoder = { layers = 1,', "encoder = { layers = 1, end = false,")
            path.write_text(text.replace('decoder = { layers = 1, vocab = "vocab.txt"', 'decoder = { layers = 1, vocab = "target.txt"'), encoding="utf-8")
            model = attnkit.torch.Model.from_manifest(path)
            end = model.info.end_id
            self.assertGreaterEqual(end, model.info.source_vocab)
            inputs = {"source": torch.tensor([[4, 5, 6, 7, end], [7, 4, end, 0, 0], [5, 5, 4, 0, 0]]), "source_lengths": torch.tensor([5, 3, 3]),
                      "target": torch.tensor([[1, 4, 5]] * 3), "target_lengths": torch.tensor([3, 2, 3])}
            with torch.no_grad():
                got = model(**inputs)
                self.assert_close(got, logits_of_core(path, inputs), 1e-5)
                bare = {"source": inputs["source"].masked_fill(inputs["source"] == end, 0), "source_lengths": torch.tensor([4, 2, 3])}
                self.assertTrue(got.equal(model(**{**inputs, **bare})))
                long = torch.full((1, 65), 4)
                self.refused("q_len[0] is 65", model, long, None, inputs["target"][:1])
                long[0, 64] = end
                got = model(long, None, inputs["target"][:1])
                self.assertTrue(got.equal(model(long[:, :64], None, inputs["target"][:1])))
                self.assert_close(got, logits_of_core(path, {"source": long, "source_lengths": torch.tensor([65]), "target": inputs["target"][:1],
                                                             "target_lengths": torch.tensor([3])}), 1e-5)
            self.verified(model)

    def test_predicted_lengths_are_cores(self):
        found = []
        for predict in ('"lut"\nlut = "lengths.tsv"', '"network"\nfile = "length.safetensors"', '"ratio"\nalpha = 1.5'):
            text = re.sub(r'predict = "ratio"\nalpha = .*', f"predict = {predict}", TRANSLATOR.read_text())
            text = re.sub(r'"([\w.-]+\.(?:txt|tsv|safetensors))"', lambda m: f'"{TRANSLATOR.parent / m[1]}"', text)
            path = self.folder / "model.toml"
            path.write_text(re.sub(r'(?m)^("encoder.self"|"decoder.self"|"decoder.cross"|default) = .*$', r'\1 = "cosformer"', text))
            model = attnkit.torch.Model.from_manifest(path)
            inputs = batch(model)
            with torch.no_grad():
                found.append(model(**inputs))
            self.assert_close(found[-1], logits_of_core(path, inputs), 1e-5)
        for a, b in ((0, 1), (0, 2), (1, 2)):  # so a wrong length would be noticed
            self.assertGreater(float((found[a] - found[b]).abs().max()), 0.01)

    def test_rows_that_no_token_has(self):
        """Of a lookup table of lengths."""
        path = tiny_model.write_model(self.folder, attention='default = "cosformer"', extra='[length]\npredict = "lut"\nlut = "lut.tsv"')
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *tiny_model.TOKENS[4:]]
        (self.folder / "lut.tsv").write_text(f"{tokens[4]}\t7.5\n{tokens[5]}\t0.5\n", encoding="utf-8")
        (self.folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        rows = len(tokens) + 4
        text = re.sub("file = .*\nsha256 = .*", "seed = 1", path.read_text(encoding="utf-8"))
        text = text.replace('vocab = "vocab.txt"', f'vocab = "vocab.txt", tokenizer = "wordpiece", vocab_size = {rows}')
        path.write_text(text.replace("decoder = {", 'decoder = { begin = "[CLS]", end = "[SEP]",'), encoding="utf-8")
        model = attnkit.torch.Model.from_manifest(path)
        inputs = {"source": torch.tensor([[4, 5, rows - 1, 2], [6, 2, 0, 0]]), "source_lengths": torch.tensor([4, 2]),
                  "target": torch.tensor([[1, 4, 5]] * 2), "target_lengths": torch.tensor([3, 2])}
        with torch.no_grad():
            self.assert_close(model(**inputs), logits_of_core(path, inputs), 1e-5)
        self.verified(model)

    def test_copies_by_pickle(self):
        text = tiny_model.write_model(self.folder).read_text(encoding="utf-8")
        for activation in attnkit.torch.model.ACTIVATIONS:
            model = attnkit.torch.Model(text.replace("max_length", f'activation = "{activation}"\nmax_length'), self.folder)
            inputs, twin = batch(model), pickle.loads(pickle.dumps(model))
            self.assertTrue(twin(**inputs).equal(model(**inputs)))

    def test_names_are_those_of_the_weights(self):
        for manifest in (TRANSLATOR, SOURCE / "samples/manifests/luna-pair.toml", SOURCE / "samples/manifests/performer.toml"):
            model = attnkit.torch.Model.from_manifest(manifest)
            parameters = sum(p.numel() for name, p in model.named_parameters())
            core = attnkit.Model(attnkit.torch.runtime(), manifest)
            adapters = sum(p.numel() for name, p in model.named_parameters() if ".adapter." in name)
            self.assertEqual(parameters - adapters, core.info.parameters)

    def test_embeddings_that_are_one_table_stay_one(self):
        manifest = SOURCE / "samples/manifests/softmax.toml"
        for ties, shared, scorer in (('["source", "target", "output"]', True, "decoder"), ('["source", "target"]', True, None),
                                     ('["source", "output"]', False, "encoder"), ("true", False, "decoder")):
            with self.subTest(ties=ties):
                text = manifest.read_text().replace("tie_embeddings = true", f"tie_embeddings = {ties}\nhead_scale = 0.5\nfinal_norm = false")
                text = re.sub('file = ".*"', "seed = 3", text).replace("../models", str(SOURCE / "samples/models"))
                self.assertIn(ties, text)
                model = attnkit.torch.Model(text, manifest.parent)
                inputs, written = batch(model), self.folder / "tied.toml"
                written.write_text(text)
                with torch.no_grad():
                    self.assert_close(model(**inputs), logits_of_core(written, inputs), 1e-5)
                self.assertEqual(model.encoder.embed.weight is model.decoder.embed.weight, shared)
                self.assertEqual(hasattr(model.head, "weight"), scorer is None)
                core = attnkit.Model(attnkit.torch.runtime(), written)
                adapters = sum(p.numel() for name, p in model.named_parameters() if ".adapter." in name)
                self.assertEqual(sum(p.numel() for p in model.parameters()) - adapters, core.info.parameters)
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                model(**inputs).square().mean().backward()
                optimizer.step()
                self.verified(model)
                exported = model.export(self.folder / "exported")
                stored = attnkit.torch.model.tensors_of((exported.parent / "weights.safetensors").read_bytes())
                self.assertEqual("encoder.embed.weight" in stored, not shared)
                again = attnkit.torch.Model.from_manifest(exported)
                for (name, a), (other, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
                    self.assertEqual(name, other)
                    self.assertTrue(a.equal(b), name)
                self.assertEqual(again.encoder.embed.weight is again.decoder.embed.weight, shared)

    def test_exports_of_short_targets_are_verified(self):
        text = tiny_model.write_model(self.folder, attention='default = "relu"').read_text()
        text = re.sub("file = .*\nsha256 = .*", "seed = 1", text)
        self.verified(attnkit.torch.Model(text.replace("decoder = { layers = 1,", "decoder = { layers = 1, max_length = 5,"), self.folder))

    def test_rows_of_a_centred_front_end_as_they_are(self):
        """A block of raw rows may take them, where no norm stands before it."""
        text = (SOURCE / "samples/manifests/whisper.toml").read_text().replace('norm = "pre"', 'norm = "post"')
        text = text.replace("../models", str(SOURCE / "samples/models")).replace('default = "softmax"', 'default = "softmax"\n"encoder.self" = "s4d"')
        self.verified(attnkit.torch.Model(text, self.folder))

    def test_exported_twice_is_the_same(self):
        model = attnkit.torch.Model.from_manifest(TRANSLATOR)
        first = model.export(self.folder / "first")
        again = attnkit.torch.Model.from_manifest(first)
        for (name, a), (_, b) in zip(model.state_dict().items(), again.state_dict().items()):
            self.assertTrue(a.equal(b), name)
        second = again.export(self.folder / "first")  # over itself
        self.assertEqual(tomllib.loads(second.read_text())["weights"], tomllib.loads(again.toml)["weights"])
        before, after = (tomllib.loads(text) for text in (TRANSLATOR.read_text(), second.read_text()))
        for table in ("attention", "length"):
            self.assertEqual(before[table], after[table])

    def test_of_a_gguf_the_vocabulary_alone_is_exported(self):
        manifest = self.folder / "m.toml"
        self.assertEqual(command("import", SOURCE / "tests/import/gguf/llama3.gguf", "-o", manifest).code, 0)
        self.assertEqual(command("bundle", manifest, "-o", self.folder / "bundle").code, 0)
        exported = attnkit.torch.Model.from_manifest(manifest).export(self.folder / "out")
        self.assertEqual(*((self.folder / name / "llama3.gguf").read_bytes() for name in ("out", "bundle")))
        self.assertEqual(command("verify", exported).code, 0)

    def test_what_weights_says_beside_its_file_stays(self):
        path = tiny_model.write_model(self.folder)
        text = path.read_text(encoding="utf-8")
        digest = re.search("sha256 = .*", text)[0]
        for said, kept in ((f'file = "tiny.safetensors"\n{digest}\nseed = 7\ntf32 = true', {"seed": 7, "tf32": True}),
                           ("seed = 7\ntf32 = false", {"tf32": False}), ('file = "tiny.safetensors"\ncache = true', {})):
            path.write_text(text.replace(f'file = "tiny.safetensors"\n{digest}', said), encoding="utf-8")
            exported = attnkit.torch.Model.from_manifest(path).export(self.folder / "out")
            weights = tomllib.loads(exported.read_text(encoding="utf-8"))["weights"]
            self.assertEqual({key: value for key, value in weights.items() if key not in ("file", "sha256")}, kept)
            self.assertEqual(command("verify", exported).code, 0)

    def test_an_export_that_fails_leaves_what_was_there(self):
        model = attnkit.torch.Model.from_manifest(TRANSLATOR)
        manifest = model.export(self.folder)
        before = {path: path.read_bytes() for path in self.folder.iterdir()}
        with torch.no_grad():
            model.decoder.norm.weight += 1
        sync, left = os.fsync, iter(range(2))
        with unittest.mock.patch("os.fsync", lambda file: sync(file) if next(left, None) is not None else os.open("/none", 0)):
            with self.assertRaises(FileNotFoundError):
                model.export(self.folder)
        self.assertEqual({path: path.read_bytes() for path in self.folder.iterdir()}, before)
        self.assertEqual(command("verify", manifest).code, 0)

    def test_a_step_of_training(self):
        model = attnkit.torch.Model.from_manifest(SOURCE / "samples/manifests/relu.toml")
        inputs = batch(model)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(**inputs).transpose(1, 2), inputs["target"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertEqual([name for name, p in model.named_parameters() if p.grad is None], [])
        self.verified(model)

    def test_a_loss_a_few_rows_at_a_time(self):
        """The sum, and the gradients, of torch's cross entropy of all logits; nothing is expected behind a row's end."""
        for manifest in ("samples/manifests/relu.toml", "samples/manifests/bigbird.toml"):
            model = attnkit.torch.Model.from_manifest(SOURCE / manifest).double()
            inputs, outputs = batch(model), model.info.outputs
            expected = torch.randint(outputs, inputs["target"].shape if "target" in inputs else (3,), generator=torch.Generator().manual_seed(2))
            expected[1] = attnkit.torch.loss.IGNORED
            real = expected.clone()
            if "target" in inputs:
                real[torch.arange(9) >= inputs["target_lengths"][:, None]] = attnkit.torch.loss.IGNORED
            for smoothing in (0.0, 0.1):
                whole = torch.nn.functional.cross_entropy(model(**inputs).flatten(0, -2), real.flatten(), ignore_index=attnkit.torch.loss.IGNORED,
                                                          reduction="sum", label_smoothing=smoothing)
                wanted = torch.autograd.grad(whole, list(model.parameters()), allow_unused=True)
                for numbers in (1, 3 * outputs, 1 << 21):  # logits at a time: rows by one, by three, all
                    with unittest.mock.patch.object(attnkit.torch.loss, "NUMBERS", numbers):
                        loss = model(**inputs, expected=expected, label_smoothing=smoothing)
                        made = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
                    self.assert_close(loss, whole, 1e-12)
                    for a, b in zip(made, wanted):
                        self.assert_close(a, b, 1e-12)
            with torch.autocast("cpu", torch.bfloat16):
                self.assert_close(model.float()(**inputs, expected=expected, label_smoothing=smoothing), whole.float(), 8e-3)

    def test_what_a_teacher_expects(self):
        """The sum of cross entropies to its probabilities, where anything is expected."""
        functional, loss = torch.nn.functional, attnkit.torch.loss
        teacher = attnkit.torch.Model.from_manifest(SOURCE / "samples/manifests/softmax.toml").double()
        model = attnkit.torch.Model.from_manifest(SOURCE / "samples/manifests/relu.toml").double()
        inputs = batch(model)
        expected = torch.randint(model.info.outputs, inputs["target"].shape, generator=torch.Generator().manual_seed(2))
        expected[1, :3] = loss.IGNORED
        real = (torch.arange(9) < inputs["target_lengths"][:, None]) & (expected != loss.IGNORED)
        with torch.no_grad():
            wanted = teacher(**inputs).softmax(-1)
            taught = teacher(**inputs, layer=True)
        whole = functional.cross_entropy(model(**inputs)[real], wanted[real], reduction="sum")
        gradients = torch.autograd.grad(whole, list(model.parameters()))
        for numbers in (1, 1 << 21):
            with unittest.mock.patch.object(loss, "NUMBERS", numbers):
                made = model(**inputs, expected=expected, teacher=taught)
                self.assert_close(made, whole, 1e-12)
                for a, b in zip(torch.autograd.grad(made, list(model.parameters())), gradients):
                    self.assert_close(a, b, 1e-12)

    def test_a_loss_of_other_shapes(self):
        for manifest, shapes in (("relu", ((9,), (1, 9), (3, 8), (3, 10), (3,))), ("bigbird", ((3, 1), (1,), (2,)))):
            model = attnkit.torch.Model.from_manifest(SOURCE / f"samples/manifests/{manifest}.toml")
            inputs = batch(model)
            for shape in shapes:
                self.refused(f"expected has the shape {shape}: an id, or -100, for each of (3", model, **inputs, expected=torch.ones(shape, dtype=torch.int64))
            expected = torch.ones(model(**inputs).shape[:-1], dtype=torch.int64)
            for smoothing in (-0.1, 1.1, float("nan")):
                self.refused(f"label_smoothing {smoothing}: it must be 0 to 1", model, **inputs, expected=expected, label_smoothing=smoothing)

    def test_a_loss_has_no_second_derivative(self):
        """Else torch would take its gradient for a constant."""
        model = attnkit.torch.Model.from_manifest(tiny_model.write_model(self.folder))
        inputs, weight = batch(model), model.decoder.norm.weight
        grad, = torch.autograd.grad(model(**inputs, expected=inputs["target"]), weight, create_graph=True)
        self.refused("no second derivative", torch.autograd.grad, grad.sum(), weight, code=attnkit.UNSUPPORTED)

    def test_a_loss_of_nothing(self):
        model = attnkit.torch.Model.from_manifest(SOURCE / "samples/manifests/relu.toml")
        inputs = batch(model)
        loss = model(**inputs, expected=torch.full_like(inputs["target"], attnkit.torch.loss.IGNORED))
        loss.backward()
        self.assertEqual(loss.item(), 0)
        self.assertTrue(all(not p.grad.any() for p in model.parameters() if p.grad is not None))

    def test_compiled(self):
        model = attnkit.torch.Model.from_manifest(tiny_model.write_model(self.folder, attention='default = "leap"'))
        inputs, made = batch(model), []
        for run in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
            model.zero_grad()
            logits = run(**inputs)
            logits.square().mean().backward()
            made.append([logits.detach(), *(p.grad for p in model.parameters())])
        for a, b in zip(*made):
            self.assert_close(b, a)

    def test_wait_k(self):
        model = attnkit.torch.Model.from_manifest(SOURCE / "samples/manifests/leap.toml")
        inputs = batch(model)
        visible = torch.full((3, 9), 7)
        visible[:, 0] = 1
        with torch.no_grad():
            cut = {**inputs, "source": inputs["source"][:, :7]}
            inputs["source_lengths"] = cut["source_lengths"] = torch.tensor([7, 7, 7])
            self.assertFalse(torch.allclose(model(**inputs, visible=visible)[:, 0], model(**cut)[:, 0]))
            visible[:, 0] = 7
            self.assert_close(model(**inputs, visible=visible), model(**cut))

    def test_results_are_tensors_without_a_copy(self):
        with attnkit.Runtime(threads=1) as runtime, attnkit.Model(runtime, TRANSLATOR) as model:
            result = model.forward([[5, 2]], [[1, 8]])
            tensor = torch.from_dlpack(result)
            self.assertEqual(tensor.shape, result.shape)
            tensor[0, 1, 2] = 42
            self.assertEqual(result[0, 1, 2], 42)
            numbers = result.tolist()
            del result
            [model.forward([[5, 2]], [[1, 8]]) for _ in range(20)]
            self.assertEqual(tensor.tolist(), numbers)

    def test_bad_manifests(self):
        with self.assertRaises(attnkit.Error) as caught:
            attnkit.torch.Model(TRANSLATOR.read_text().replace("heads = 4", "heads = 5"), TRANSLATOR.parent)
        self.assertTrue(caught.exception.diagnostics)


if __name__ == "__main__":
    main()
