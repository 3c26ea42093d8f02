"""Every model of golden/ and what the other commands do with it."""
import json
import unittest

from imported import DECODERS, GOLDEN, MODELS, TRANSLATORS, ImportTest


class Commands(ImportTest):
    def test_all_take_it(self):
        lines = self.folder / "lines.txt"
        lines.write_text("The attention of each head\nhead by head\n")
        for name in sorted(MODELS + DECODERS + TRANSLATORS):
            manifest, role = self.imported(GOLDEN / name), "decoder.self" if name in DECODERS else "encoder.self"
            as_it_is = {"mistral": "local", "phi3": "local", "mt5": "relative_bias", "t5": "relative_bias", "t5-gated": "relative_bias"}.get(name, "softmax")
            self.assertIn(as_it_is, self.run_ok("inspect", manifest).out, name)
            limit = ["--limit", 3] if name not in MODELS else []
            self.assertTrue(self.run_ok("run", manifest, "--text", "of each head", *limit).out, name)
            self.run_ok("bench", manifest, "--length", "16")
            data, out = lines, self.folder / f"search-{name}"
            if name in TRANSLATORS:
                data = self.folder / "pairs.tsv"
                data.write_text("The attention\tof each head\nof each head\tThe attention\n")
            more = ["--metric", "perplexity"] if name in TRANSLATORS else []
            self.run_ok("search", manifest, "--strategy", "ablation", "--space", f"{role}={as_it_is},relu", "--data", data, "--length", 16,
                        "--lengths", 16, "--rank", "quality", *more, "--quick", "-o", out, timeout=300)
            placements = json.loads((out / "result.json").read_text())["placements"]
            self.assertEqual({one["blocks"][role][0] for one in placements}, {as_it_is, "relu"}, name)


if __name__ == "__main__":
    unittest.main()
