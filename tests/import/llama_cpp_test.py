"""SmolLM2-135M's perplexity of paragraphs.txt, beside llama-cpp-python's on the same file: within 1 %, since that rounds what goes into a layer.

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DLLAVA_BUILD=OFF" pip install llama-cpp-python==0.3.36
    llama_cpp_test.py    # skipped where there is none

It is compiled when it is installed.  smollm2.json has the same number of xllamacpp, which is there as a wheel (make_golden.py --smollm2).
"""
import math
import pathlib
import sys
import unittest

from command import CommandTest
from smollm2_test import model

HERE = pathlib.Path(__file__).parent


def surprise(llama, line):
    """-ln p of a line and its end after the word "The", and how many tokens that is."""
    before, wanted = ([*llama.tokenize(text.encode(), add_bos=False, special=False)] for text in ("The", line))
    wanted.append(llama.token_eos())
    llama.reset()
    llama.eval(before + wanted)
    rows = llama.scores[len(before) - 1:][:len(wanted)].astype(float)
    rows -= rows.max(1, keepdims=True)
    return sum(math.log(sum_) - row[token] for row, token, sum_ in zip(rows, wanted, numpy.exp(rows).sum(1))), len(wanted)


class LlamaCpp(CommandTest):
    def test_perplexity_of_paragraphs_is_nearly_that_of_llama_cpp(self):
        paragraphs, manifest = HERE / "paragraphs.txt", self.folder / "smollm2.toml"
        lines = paragraphs.read_text().splitlines()
        the = self.folder / "the.txt"
        the.write_text("The\n" * len(lines))
        self.run_ok("import", MODEL, "-o", manifest)
        ours = self.run_ok("run", manifest, "--file", the, "--target-file", paragraphs, "--limit", 1, "--json", timeout=500).json()["summary"]
        llama = llama_cpp.Llama(str(MODEL), n_ctx=512, logits_all=True, verbose=False)
        nll, tokens = map(sum, zip(*(surprise(llama, line) for line in lines)))
        theirs = math.exp(nll / tokens)
        print(f"perplexity {ours['perplexity']:.3f}, llama-cpp-python {llama_cpp.__version__} {theirs:.3f}")
        self.assertEqual(ours["reference_tokens"], tokens)
        self.assertAlmostEqual(ours["perplexity"] / theirs, 1, delta=0.01)


if __name__ == "__main__":
    try:
        import llama_cpp
        import numpy
    except ImportError:
        print("skipped: there is no llama-cpp-python")
        sys.exit(77)
    MODEL = model()
    unittest.main(argv=[sys.argv[0]])
