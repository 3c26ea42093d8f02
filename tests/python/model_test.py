"""Runtime and Model: what the command says of the same, forward against sessions, refusals."""

import array
import json
import pathlib
import unicodedata
import unittest
from unittest import mock

import attnkit
from arrays import Lent, shaped
from attnkit import _tensor
from support import RUNTIME, SAMPLE, TEXTS, PackageTest, tiny_model


class Runtime(PackageTest):
    def test_lists_and_describes(self):
        names = [plugin["name"] for plugin in RUNTIME.list()["plugins"]]
        self.assertIn("softmax", names)
        self.assertEqual(names, [plugin["name"] for plugin in RUNTIME.describe()["plugins"]])
        self.assertEqual(RUNTIME.describe()["threads"], 2)

    def test_versions(self):
        self.assertRegex(attnkit.version(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(attnkit.abi_minor(), RUNTIME.describe()["abi"]["minor"])

    def test_plugin_path(self):
        with attnkit.Runtime(plugin_path=str(self.folder)) as runtime:
            self.assertIn(str(self.folder), json.dumps(runtime.describe()))
        self.refused("NUL", attnkit.Runtime, plugin_path="a\0b")
        self.refused("threads -1", attnkit.Runtime, -1)

    def test_threads(self):
        for threads in (-1, 1025, 2**32 + 1):
            self.refused(f"threads {threads}: it must be 0 to 1024", attnkit.Runtime, threads)
        self.refused(f"device_type {2**32}: it must be", attnkit.Runtime, device_type=2**32)

    def test_wrong_types(self):
        for said, options in (("threads must be an int, not str", {"threads": "a"}), ("plugin_path must be a str, not NoneType", {"plugin_path": None}),
                              ("library must be a path, not int", {"library": 5})):
            with self.subTest(said):
                self.assertRaisesRegex(TypeError, said, attnkit.Runtime, **options)

    def test_closed(self):
        with attnkit.Runtime() as runtime:
            pass
        runtime.close()
        self.refused("this Runtime is closed", runtime.list)
        self.refused("this Runtime is closed", attnkit.Model, runtime, SAMPLE)


class Model(PackageTest):
    def test_translates_as_the_command_does(self):
        for name, options in (("pair", {}), ("continues", {"kind": "decoder"})):
            model = self.tiny(name, **options)
            for beams in (1, 3):
                for text in TEXTS:
                    said = self.run_ok("run", self.folder / name / "model.toml", "--text", text, "--beams", beams).out
                    self.assertEqual(model.translate(text, beams) + "\n", said)
                alone = [model.translate(text, beams) for text in TEXTS]
                for batch in (1, 2, 16):
                    self.assertEqual(model.translate_all(TEXTS, beams, batch=batch), alone)
                    self.refused("text 1: ", model.translate_all, [TEXTS[0], "a zebra", TEXTS[1]], beams, batch=batch)
                    self.refused("text 2: ", model.translate_all, [*TEXTS[:2], "two " * 100], beams, batch=batch)
            self.assertEqual(model.translate(TEXTS[0], limit=1) + "\n",
                             self.run_ok("run", self.folder / name / "model.toml", "--text", TEXTS[0], "--limit", 1).out)

            if options:  # a prompt needs no logits
                with mock.patch.object(attnkit.Session, "write", autospec=True, side_effect=attnkit.Session.write) as write:
                    model.translate(TEXTS[0])
                self.assertEqual(write.call_args.kwargs, {"logits": False})

        self.assertEqual(model.translate_all([]), [])
        self.refused("batch 0", model.translate_all, TEXTS, batch=0)
        self.assertRaises(TypeError, model.translate_all, TEXTS[0])

    def test_info(self):
        info = self.tiny().info
        self.assertEqual((info.kind, info.outputs, info.max_length, info.begin_id, info.end_id, info.beams, info.sample_rate),
                         (attnkit.ENCODER_DECODER, len(tiny_model.TOKENS), 64, 1, 2, 1, 0))
        self.assertEqual(info.source_vocab, info.target_vocab)
        self.assertEqual(info.parameters, self.tiny().describe()["parameters"])
        self.assertGreater(info.state_bytes, 0)

    def test_describe(self):
        described = self.tiny().describe([8, 16])
        self.assertEqual([cost["length"] for cost in described["blocks"][0]["costs"]], [8, 16])
        self.refused("length 0", self.tiny().describe, [0])
        self.refused(f"lengths[1] {2**64 + 1}: it must be", self.tiny().describe, [8, 2**64 + 1])

    def test_integers_that_c_would_wrap(self):
        model = self.tiny()
        for function, argument in ((model.tokenize, "one"), (model.detokenize, [1])):
            self.refused(f"side {2**32}: it must be 0 to 4294967295", function, 2**32, argument)
        self.refused(f"layer {2**32 + 1}: it must be", model.attention, "encoder.self", 2**32 + 1, [5, 2])
        rows = memoryview(array.array("i", [5, 2])).cast("B").cast("i", (1, 2))
        self.refused(f"lengths[0] {2**32 + 2}: it must be", model.encode, rows, [2**32 + 2])

    def test_wrong_types(self):
        model = self.tiny()
        path = self.folder / "model/model.toml"
        self.assertEqual(attnkit.Model(RUNTIME, str(path).encode()).translate(TEXTS[0]), model.translate(TEXTS[0]))
        for said, function, arguments in (
                ("path must be a path, not NoneType", attnkit.Model, (RUNTIME, None)),
                ("runtime must be an attnkit.Runtime, not NoneType", attnkit.Model, (None, path)),
                ("runtime must be an attnkit.Runtime, not PosixPath", attnkit.Model.check, (path, "")),
                ("toml must be a str, not bytes", attnkit.Model.from_text, (RUNTIME, b"")),
                ("folder must be a path, not int", attnkit.Model.from_text, (RUNTIME, "", 1)),
                ("golden must be a path, not NoneType", model.verify, (None,)),
                ("text must be a str, not NoneType", model.tokenize, (attnkit.SOURCE, None)),
                ("text must be a str, not NoneType", model.translate, (None,)),
                ("side must be an int, not str", model.tokenize, ("source", "one")),
                ("encoded must be an attnkit.Encoded, not NoneType", model.decode, (None, [[1]])),
                ("beams must be an int, not str", model.translate, ("one", "2"))):
            with self.subTest(said):
                self.assertRaisesRegex(TypeError, said, function, *arguments)

    def test_warns_of_what_no_block_uses(self):
        model = self.tiny(attention='default = "softmax"\nparams.nope = { factor = 4 }',
                          extra='[search]\nbaseline = "neither"\nspace = { "encoder.self" = ["softmax", "nope"] }\n')
        self.assertEqual([(d.severity, d.code) for d in model.warnings], [("warning", 208), ("warning", 209), ("warning", 209)])
        self.assertEqual(model.describe()["search"]["space"]["encoder.self"][1]["mechanism"], "nope")
        self.assertEqual(model.translate(TEXTS[0]), self.tiny().translate(TEXTS[0]))

    def test_words_and_ids(self):
        model = self.tiny()
        ids = model.tokenize(attnkit.SOURCE, "two two-s Ü")
        self.assertEqual(model.detokenize(attnkit.SOURCE, ids), "two two-s Ü")
        self.assertEqual((model.tokenize(attnkit.TARGET, ""), model.detokenize(attnkit.TARGET, [])), ([], ""))
        self.refused('cannot spell the word "nine"', model.tokenize, attnkit.SOURCE, "one nine")
        self.refused("not UTF-8", model.tokenize, attnkit.SOURCE, "\udcff")
        self.refused("text holds '\\ud800', half of a surrogate pair", model.tokenize, attnkit.SOURCE, "one \ud800")
        self.refused("NUL", model.tokenize, attnkit.SOURCE, "one\0two")
        self.refused("side 2", model.tokenize, 2, "one")
        self.refused("token 1 is 99", model.detokenize, attnkit.TARGET, [3, 99])
        self.refused("32 bits", model.detokenize, attnkit.TARGET, [1 << 31])

    def test_normalisation_may_make_a_text_longer(self):
        """One character that NFKC makes 18 of, in bytes of UTF-8: more tokens than twice its own bytes."""
        tokens = ["<pad>", "</s>", "<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(set(unicodedata.normalize("NFKC", "\ufdfa")))]
        (self.folder / "tokenizer.json").write_text(json.dumps({
            "added_tokens": [{"id": i, "content": token, "special": True, "normalized": False} for i, token in enumerate(tokens[:4])],
            "post_processor": {"type": "TemplateProcessing", "special_tokens": {"</s>": {"ids": [1]}},
                               "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]},
            "normalizer": {"type": "NFKC"}, "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>",
                                                      "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}), encoding="utf-8")
        side = '{ layers = 1, vocab = "tokenizer.json", tokenizer = "huggingface"'
        model = attnkit.Model.from_text(RUNTIME, f'''schema = "attnkit.model/1"
[model]
name = "long"
kind = "encoder-decoder"
d_model = 16
heads = 2
ffn = 16
max_length = 64
encoder = {side} }}
decoder = {side}, begin = "<s>", end = "</s>" }}
[weights]
seed = 1
[attention]
default = "softmax"
''', self.folder)
        self.assertEqual(len(model.tokenize(attnkit.SOURCE, "\ufdfa")), 18)

    def test_forward_is_what_sessions_give(self):
        model = self.tiny()
        sources, targets = [self.ids(model, TEXTS[0]), self.ids(model, TEXTS[1])], [[1, 10, 11], [1, 12]]
        logits = model.forward(sources, targets)
        self.assertEqual((logits.shape, logits.format), ((2, 3, model.info.outputs), "f"))
        for row, (source, target) in enumerate(zip(sources, targets)):
            session = attnkit.Session(model)
            session.read(source)
            for got, expected in zip(logits.tolist()[row], session.write([target]).tolist()[0]):
                for a, b in zip(got, expected):
                    self.assertAlmostEqual(a, b, delta=1e-5)
        self.assertEqual(set(logits.tolist()[1][2]), {0.0})
        self.refused("id 99", model.forward, [[99]], [[1]])

    def test_forward_of_one_side(self):
        decoder = self.tiny("decoder", kind="decoder")
        self.assertEqual(decoder.forward(target=[[1, 10]]).shape, (1, 2, decoder.info.outputs))
        classifier = self.tiny("classifier", kind="encoder", head="classifier")
        self.assertEqual(classifier.forward([[10, 2], [2]]).shape, (2, tiny_model.CLASSES))
        wrong, pair, out = [99, -5, 7], self.tiny(), shaped([0] * 6, 1, 2, 3)
        for said, model, source, target in (
                ("source must be NULL: this model has no encoder", decoder, wrong, [1, 10]),
                ("target must not be NULL: this model has a decoder", decoder, (), ()),
                ("target must be NULL: this model has no decoder", classifier, [10, 2], wrong),
                ("source must not be NULL: this model has an encoder", classifier, (), ()),
                ("source must not be NULL: this model has an encoder", pair, (), [1, 10]),
                ("target must not be NULL: this model has a decoder", pair, [10, 2], ())):
            with self.subTest(said):
                self.refused(said, model.forward, *(side and [side] for side in (source, target)))
                self.refused(said, model.attention, "encoder.self", 1, source or None, target or None)
                if not target:
                    self.refused(said, model.forward, *(side and [side] for side in (source, target)), out=out)
                    self.refused(said, model.attention, "decoder.cross", 1, source or None, target or None, out)

    def test_arrays_are_read_and_written_in_place(self):
        model = self.tiny()
        sources, targets = [self.ids(model, TEXTS[0]), self.ids(model, TEXTS[1])], [[1, 10, 11], [1, 12]]
        expected = model.forward(sources, targets).tolist()
        n = len(sources[0])
        padded = [*sources[0], *sources[1], *[0] * (n - len(sources[1]))]
        for source in (shaped(padded, 2, n, kind="i"), Lent(padded, (2, n), kind="i")):
            out = shaped([7] * (2 * 3 * model.info.outputs), 2, 3, model.info.outputs)
            self.assertIs(model.forward(source, targets, source_lengths=list(map(len, sources)), out=out), out)
            self.assertEqual(out.tolist(), expected)
        lent = Lent([0] * (6 * model.info.outputs), (2, 3, model.info.outputs))
        self.assertIs(model.forward(sources, targets, out=lent), lent)
        self.assertEqual(list(lent.values), sum(sum(expected, []), []))
        self.refused("contiguous array of float32 (2, 3,", model.forward, sources, targets, out=shaped([0] * 6, 2, 3))
        self.refused("read-only", model.forward, sources, targets, out=out.toreadonly())
        self.refused("1 lengths for 2 rows", model.forward, shaped(padded, 2, n, kind="i"), targets, source_lengths=[1])
        self.refused("has its own", model.forward, sources, targets, source_lengths=[1, 1])
        self.refused("device 2:0", model.forward, Lent(padded, (2, n), kind="i", device=2), targets)

    def test_nothing_is_copied(self):
        # A view has the address of the array itself, whether that may be written to or not.
        numbers = array.array("i", [3, 4])
        address = numbers.buffer_info()[0]
        for values in (numbers, memoryview(numbers), memoryview(numbers).toreadonly()):
            self.assertEqual(_tensor.ids(values).struct.data, address)
        lent = Lent([3, 4], (2,), kind="i")
        self.assertEqual(_tensor.ids(lent).struct.data, lent.values.buffer_info()[0])
        self.assertEqual(_tensor.Rows(shaped([3, 4], 2, 1, kind="i")).tensor.shape, (2, 1))

    def test_encode_and_decode(self):
        model = self.tiny()
        sources, targets = [self.ids(model, TEXTS[0]), self.ids(model, TEXTS[1])], [[1, 10, 11], [1, 12]]
        with model.encode(sources) as encoded:
            self.assertEqual(encoded.rows, 2)
            self.assertEqual(model.decode(encoded, targets).tolist(), model.forward(sources, targets).tolist())
            self.assertEqual(model.decode(encoded, [[1], [1]]).shape, (2, 1, model.info.outputs))
            self.refused("2", model.decode, encoded, [[1]])
        self.refused("this Encoded is closed", model.decode, encoded, targets)
        self.refused("decoder", self.tiny("classifier", kind="encoder", head="classifier").encode, sources)

    def test_attention(self):
        model = self.tiny()
        source = self.ids(model, TEXTS[0])
        weights = model.attention("decoder.cross", 1, source, [1, 10])
        self.assertEqual(weights.shape, (tiny_model.HEADS, 2, len(source)))
        for head in weights.tolist():
            for row in head:
                self.assertAlmostEqual(sum(row), 1, delta=1e-5)
        self.assertEqual(model.attention("encoder.self", 1, source, [1]).shape, (tiny_model.HEADS, len(source), len(source)))
        self.assertEqual(model.attention("decoder.self", 1, source, [1, 10]).tolist()[0][0][1], 0)
        self.refused("layer", model.attention, "decoder.self", 9, source, [1])
        self.refused("role 'self'", model.attention, "self", 1, source, [1])

    def test_attention_of_whole_recordings(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        text, samples = (root / "samples/manifests/whisper.toml").read_text(encoding="utf-8"), array.array("f", bytes(4 * 1600))
        for frames, rows in ((200, 100), (199, 100)):
            manifest = text.replace("frames = 200", f"frames = {frames}")
            model = attnkit.Model.from_text(RUNTIME, manifest, root / "samples/manifests")
            for source in (samples, model.features(samples)):
                self.assertEqual(model.attention("encoder.self", 1, source, [1]).shape, (4, rows, rows))
                self.assertEqual(model.attention("decoder.cross", 1, source, [1, 5]).shape, (4, 2, rows))

    def test_check_makes_no_model(self):
        path = tiny_model.write_model(self.folder / "checked")
        text = path.read_text(encoding="utf-8")
        self.assertEqual(attnkit.Model.check(RUNTIME, text, path.parent), ())
        self.assertEqual([d.code for d in attnkit.Model.check(RUNTIME, text + "[one]\n", path.parent)], [101])

    def test_manifest_text(self):
        path = tiny_model.write_model(self.folder / "text")
        text = path.read_text(encoding="utf-8")
        model = attnkit.Model.from_text(RUNTIME, text, path.parent)
        self.assertEqual(model.translate(TEXTS[0]), attnkit.Model(RUNTIME, path).translate(TEXTS[0]))
        error = self.refused("unknown key", attnkit.Model.from_text, RUNTIME, text + "[one]\n[two]\n", path.parent)
        self.assertEqual([(d.severity, d.code) for d in error.diagnostics], [("error", 101), ("error", 101)])
        self.assertEqual(error.diagnostics[0].line, len(text.splitlines()) + 1)
        self.refused("missing.toml", attnkit.Model, RUNTIME, self.folder / "missing.toml")

    def test_outlives_its_runtime(self):
        path = tiny_model.write_model(self.folder / "alone")
        with attnkit.Runtime() as runtime, attnkit.Model(runtime, path) as model:
            runtime.close()
            self.assertEqual(model.translate(TEXTS[0]), self.tiny().translate(TEXTS[0]))
        self.refused("this Model is closed", model.translate, TEXTS[0])
        self.refused("this Model is closed", attnkit.Session, model)


if __name__ == "__main__":
    unittest.main()
