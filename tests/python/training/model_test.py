"""Model: every manifest as libattnkit makes it, tensor for tensor; what is exported loads and verifies."""

import tomllib

import torch
from support import SOURCE, TorchTest, attnkit, command, main, tiny_model

IMPORTED = {SOURCE / "samples/manifests/sentence-encoder.toml": ["token_types = 2", "a head of type embedding"],
            SOURCE / "samples/manifests/language-model.toml": ["norm_type = rms", "gated = True", "kv_heads = 2", "rotary = {"],
            SOURCE / "samples/manifests/relative_bias.toml": ["attention_scale = 1.0", "head_scale = True"],
            SOURCE / "samples/manifests/translator.toml": ["norm_eps = 1e-06", "sinusoids = tensor2tensor", "head_bias = True", "zero_begin = True"],
            SOURCE / "samples/manifests/whisper.toml": ["bias = all_but_k", "max_target = 48", "features = log_mel"]}
MANIFESTS = sorted({*(SOURCE / "samples/manifests").glob("*.toml"), *(SOURCE / "samples/models").glob("*/model.toml")} - IMPORTED.keys())
TRANSLATOR = SOURCE / "samples/models/numbers-en-de/model.toml"


def batch(model):
    """Inputs of three rows of differing lengths."""
    random, info, inputs = torch.Generator().manual_seed(1), model.info, {}
    if hasattr(model, "encoder") and info.sample_rate:
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

    def test_models_that_are_not_there_yet_are_refused(self):
        for manifest, parts in IMPORTED.items():
            with self.assertRaises(attnkit.Error) as caught:
                attnkit.torch.Model.from_manifest(manifest)
            for part in parts:
                self.assertIn(part, str(caught.exception))

    def verified(self, model, code=0):
        manifest = model.export(self.folder / "exported")
        result = command("verify", manifest)
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def test_a_layer_that_differs_is_named(self):
        model = attnkit.torch.Model.from_manifest(TRANSLATOR)
        manifest = model.export(self.folder)
        with torch.no_grad():
            model.decoder.block("self", "2").v.weight[5, 7] += 0.5
        other = model.export(self.folder / "other")
        result = command("verify", manifest, "--golden", other.parent / "golden.safetensors")
        self.assertEqual(result.code, 7)
        self.assertIn("decoder.self.2 is the first layer that differs", result.out)

    def test_names_are_those_of_the_weights(self):
        for manifest in (TRANSLATOR, SOURCE / "samples/manifests/luna-pair.toml", SOURCE / "samples/manifests/performer.toml"):
            model = attnkit.torch.Model.from_manifest(manifest)
            parameters = sum(p.numel() for name, p in model.named_parameters())
            core = attnkit.Model(attnkit.torch.runtime(), manifest)
            adapters = sum(p.numel() for name, p in model.named_parameters() if ".adapter." in name)
            self.assertEqual(parameters - adapters, core.info.parameters)

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

    def test_bad_manifests(self):
        with self.assertRaises(attnkit.Error) as caught:
            attnkit.torch.Model(TRANSLATOR.read_text().replace("heads = 4", "heads = 5"), TRANSLATOR.parent)
        self.assertTrue(caught.exception.diagnostics)


if __name__ == "__main__":
    main()
