"""What the scripts of debian-en-de compare: placements, their manifests, and the order of two lists.  placements_test.py SOURCE."""
import argparse
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

SAMPLE = pathlib.Path(sys.argv.pop(1)) / "samples/models/debian-en-de"
sys.path.insert(0, str(SAMPLE))

# What scores translations is not needed here.
with unittest.mock.patch.dict(sys.modules, {name: unittest.mock.Mock() for name in ("numpy", "sacrebleu", "sacrebleu.metrics")}):
    import alone
    import evaluate
    import placements

SPACE = {role: ["softmax", "relu", "leap"] for role in placements.ROLES}


class Placements(unittest.TestCase):
    def test_each_mechanism_by_role_then_everywhere_then_more(self):
        made = list(placements.placements(SPACE, ["leap/relu/softmax"], False))
        self.assertEqual(len(made), 1 + 3 * 2 + 2 + 1)
        self.assertEqual(made[0], {})
        self.assertEqual(made[3], {"decoder.self": "relu"})
        self.assertEqual(made[8], dict.fromkeys(placements.ROLES, "leap"))
        self.assertEqual(made[9], dict(zip(placements.ROLES, ("leap", "relu", "softmax"))))

    def test_only_those_asked_for(self):
        self.assertEqual(list(placements.placements(SPACE, ["leap/leap/leap"], True)), [{}, dict.fromkeys(placements.ROLES, "leap")])

    def test_two_manifests_of_one_model_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            model, text = pathlib.Path(folder) / "model.toml", f"[attention]\n{placements.PLAIN}"
            with placements.placed(model, text, {"decoder.self": "relu"}) as one, placements.placed(model, text, {"decoder.self": "leap"}) as other:
                self.assertEqual(one.parent, model.parent)
                self.assertTrue(one.read_text(encoding="utf-8").endswith('"decoder.self" = "relu"\n'))
                self.assertTrue(other.read_text(encoding="utf-8").endswith('"decoder.self" = "leap"\n'))
            self.assertEqual(list(model.parent.iterdir()), [])


    def test_a_placement_names_three_mechanisms(self):
        self.assertEqual(placements.three("leap/relu/softmax"), "leap/relu/softmax")
        for text in ("relu/relu", "relu/relu/relu/relu", "relu//relu"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, f"^{text}: give three mechanisms"):
                placements.three(text)


class Known(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.file, self.model, self.weights = (pathlib.Path(temporary.name) / name for name in ("journal", "model.toml", "weights.safetensors"))
        self.model.write_text('[weights]\nfile = "weights.safetensors"\n')
        self.weights.touch()

    def test_lines_that_were_cut_or_have_other_separators(self):
        evaluate.Journal(self.file).value(lambda *_: ["a\u2028b"], "", self.model, "one")
        self.file.write_bytes(self.file.read_bytes() + '["cut ü'.encode()[:-1])
        for _ in range(2):
            journal = evaluate.Journal(self.file)
            self.assertEqual(journal.value(lambda *_: ["c"], "", self.model, "two"), ["c"])
            self.assertEqual(list(journal.known.values()), [["a\u2028b"], ["c"]])

    def test_other_weights_are_another_result(self):
        made = []
        for weights in ("first", "second"):
            self.weights.write_text(weights)
            made.append(evaluate.Journal(self.file).value(lambda *_: self.weights.read_text(), "", self.model))
        self.assertEqual(made, ["first", "second"])


class Compared(unittest.TestCase):
    def test_a_placement_that_was_distilled_alone_has_no_row(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            alone.compared({}, {"softmax/softmax/leap": {}}, "BLEU, alone | distilled")
        self.assertEqual(said.getvalue(), "")


class Order(unittest.TestCase):
    def test_tau(self):
        self.assertEqual(alone.tau([1, 2, 3], [10, 20, 30]), 1)
        self.assertEqual(alone.tau([1, 2, 3], [30, 20, 10]), -1)
        self.assertAlmostEqual(alone.tau([1, 2, 3], [10, 30, 20]), 1 / 3)
        self.assertAlmostEqual(alone.tau([1, 2, 3], [10, 10, 20]), 2 / 3)


if __name__ == "__main__":
    unittest.main()
