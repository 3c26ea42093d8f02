"""A score that is not a number, wherever it stands among the scores, ends every way of decoding with the same words."""

import math
import unittest

import tiny_model
from search_support import SearchTest, search_table

SAID = "the model's scores are not numbers (NaN) after 0 tokens: its weights or a mechanism are broken"


class Nan(SearchTest):
    def test_every_way_of_decoding(self):
        last = len(tiny_model.TOKENS) - 1
        for place in (0, last // 2, last):
            def spoil(weights, place=place):
                shape, values = weights.tensors["head.weight"]
                values[place * shape[1]] = math.nan
            model = self.tiny(f"nan{place}", search_table({"encoder.self": ["softmax", "relu"]}, metric="bleu"), damage=spoil)
            for options in (["run"], ["run", "--beams", 3], ["stream", "--policy", "offline"], ["stream", "--policy", "wait-k:1"],
                            ["inspect", "--attention", "decoder.cross.1"]):
                result = self.run_code(7, options[0], model, "--text", "one", *options[1:])
                self.assertIn(SAID, result.err)
            said = self.search(model=model, code=3, out=self.folder / f"out{place}").err
            self.assertIn(SAID, " ".join(said.split()))


if __name__ == "__main__":
    unittest.main()
