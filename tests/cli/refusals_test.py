"""Placements that mechanisms must refuse are refused when the manifest is read, at their place and in the mechanism's own words."""

import pathlib
import tempfile
import unittest

from command import CommandTest

VOCABULARY = "<pad>\n<s>\n</s>\n" + "".join(f"\u2581{c}\n" for c in "abcdefgh")

MANIFEST = """schema = "attnkit.model/1"
[model]
name = "refused"
kind = "{kind}"
d_model = 64
heads = 4
ffn = 64
max_length = {length}
{stacks}
[weights]
seed = 1
[attention]
default = "softmax"
"{block}" = {use}
"""

STACKS = {"encoder": 'encoder = { layers = 1, vocab = "vocab.txt" }', "decoder": 'decoder = { layers = 1, vocab = "vocab.txt" }'}

# block, mechanism with options, max_length, part of the sentence
REFUSED = [
    ("decoder.self", '"cosformer"', 512, "length"),
    ("decoder.cross", '"cosformer"', 512, "length"),
    ("decoder.self", '"linformer"', 512, "causal"),
    ("encoder.self", '{ use = "linformer", n_max = 512 }', 1024, "n_max"),
    ("decoder.cross", '{ use = "linformer", n_max = 512 }', 1024, "n_max"),
    ("decoder.self", '{ use = "bigbird", length = 1024 }', 1024, "self attention of an encoder only"),
    ("decoder.cross", '{ use = "bigbird", length = 1024 }', 1024, "cross"),
    ("encoder.self", '{ use = "bigbird", length = 1000 }', 512, "64"),
    ("encoder.self", '{ use = "bigbird", block = 64, length = 256 }', 256, "has 4 blocks of 64 tokens and needs 5"),
    ("encoder.self", '{ use = "bigbird", length = 1024 }', 2048, "1024"),
    ("decoder.self", '"reformer"', 512, "sorts the whole sequence"),
    ("decoder.cross", '"reformer"', 512, "cross"),
    ("encoder.self", '{ use = "reformer", chunk = 64, length = 1000 }', 512, "chunk"),
    ("decoder.self", '"skyformer"', 512, "causal"),
    ("decoder.cross", '"skyformer"', 512, "cross"),
    ("decoder.self", '"nystromformer"', 512, "causal"),
    ("decoder.cross", '"nystromformer"', 512, "cross"),
    ("encoder.self", '{ use = "nystromformer", landmarks = 64, length = 1000 }', 512, "landmarks"),
    ("decoder.self", '"efficient"', 512, "causal"),
    ("decoder.cross", '"latte"', 512, "cross"),
    ("encoder.self", '{ use = "latte", latents = 66 }', 512, "66"),
    ("decoder.cross", '"rope_linear"', 512, "cross"),
    ("decoder.cross", '"local"', 512, "cross"),
    ("decoder.cross", '"s4d"', 512, "cross"),
    ("encoder.self", '{ use = "s4d", order = 63 }', 512, "even"),
    ("encoder.self", '{ use = "leap", factor = 3 }', 512, "factor"),
    ("decoder.self", '{ use = "performer", stabiliser = "global", feature_eps = 1e-4 }', 512, "keys that a query does not see yet"),
    ("encoder.self", '{ use = "luna", pheads = 7 }', 512, "pheads"),
]


class Refusals(CommandTest):
    def diagnostics(self, block, use, length):
        role = block.split(".")[0]
        kind = "encoder" if role == "encoder" else "decoder" if block == "decoder.self" else "encoder-decoder"
        stacks = [STACKS["encoder"], STACKS["decoder"]] if kind == "encoder-decoder" else [STACKS[kind]]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "vocab.txt").write_text(VOCABULARY)
            (folder / "m.toml").write_text(
                MANIFEST.format(kind=kind, length=length, stacks="\n".join(stacks), block=block, use=use))
            return self.run_code(3, "validate", folder / "m.toml", "--json").json()["diagnostics"]

    def test_all_of_them(self):
        for block, use, length, words in REFUSED:
            with self.subTest(f"{block} = {use}, max_length {length}"):
                found = [d for d in self.diagnostics(block, use, length) if d["code"] == "AK203"]
                self.assertTrue(found)
                for d in found:
                    self.assertEqual(d["line"], 14 if "encoder" == block.split(".")[0] or block == "decoder.self" else 15)
                    self.assertIn(f'{block} cannot be "', d["message"])
                    self.assertIn(words, d["message"])
                    self.assertLess(len(d["message"]), 420)


if __name__ == "__main__":
    unittest.main()
