"""bench --block: every mechanism, role and context; constant state for linear mechanisms."""

import unittest

from command import CommandTest


class Bench(CommandTest):
    def times(self, *options):
        document = self.run_ok("bench", "--heads", 2, "--width", 16, "--context", "16,256", "--json", *options).json()
        self.assertEqual(document["schema"], "attnkit.bench/1")
        for r in document["results"]:
            self.assertTrue(0 < r["first_quartile_seconds"] <= r["median_seconds"] <= r["third_quartile_seconds"])
            self.assertGreaterEqual(r["repetitions"], 7)
        return document["results"]

    def test_every_mechanism_in_every_role(self):
        for name in ("softmax", "relu", "cosformer", "leap"):
            for role in ("decoder.self", "decoder.cross", "encoder.self"):
                short, long = self.times("--block", name, "--role", role)
                if name == "softmax":
                    self.assertEqual(long["state_bytes"], 16 * short["state_bytes"])
                else:
                    self.assertEqual((long["state_bytes"], long["flops"]), (short["state_bytes"], short["flops"]))

    def test_options_and_threads(self):
        self.times("--block", "leap", "--options", "factor = 2, guard = 'add'")
        self.times("--block", "relu", "--threads", 2)

    def test_table(self):
        lines = self.run_ok("bench", "--block", "relu", "--context", "8", "--heads", "1", "--width", "8").lines()
        self.assertEqual(len(lines), 3)

    def test_refusals(self):
        self.assertIn('did you mean "relu"?', self.run_code(4, "bench", "--block", "reul").err)
        self.assertIn("factor", self.run_code(4, "bench", "--block", "leap", "--options", "factor = 7").err)
        self.assertIn("factor", self.run_code(4, "bench", "--block", "leap", "--options", "facter = 2").err)
        for bad in ("factor = [", "}, a = {", "factor"):
            self.assertIn("--options", self.run_code(2, "bench", "--block", "leap", "--options", bad).err)
        self.assertIn("this machine has",
                      self.run_code(2, "bench", "--block", "softmax", "--heads", 64, "--width", 4096, "--context", 1 << 24).err)


if __name__ == "__main__":
    unittest.main()
