"""bench: every mechanism, role and context, constant state for linear mechanisms; whole models beside each other."""

import math
import os
import pathlib
import unittest

from command import CommandTest

SAMPLE = os.environ["ATTNKIT_SAMPLE"] + "/model.toml"
RELU = pathlib.Path(__file__).resolve().parents[2] / "samples/manifests/relu.toml"


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
        alone = self.run_ok("bench", "--block", "relu", "--context", 8, "--threads", 0, "--against", "none", "--json").json()
        self.assertEqual(alone["threads"], self.run_ok("doctor", "--threads", 0, "--json").json()["threads"])

    def test_table(self):
        lines = self.run_ok("bench", "--block", "relu", "--context", "8", "--heads", "1", "--width", "8").lines()
        self.assertEqual(len(lines), 5)
        self.assertIn("softmax", lines[1])
        self.assertEqual(4, len(self.run_ok("bench", "--block", "relu", "--context", "8", "--heads", "1", "--width", "8",
                                            "--against", "none").lines()))

    def test_sequences(self):
        options = ("bench", "--heads", 2, "--width", 16, "--length", "64,16")
        for name, role in (("relu", "decoder.self"), ("bigbird", "encoder.self"), ("linformer", "decoder.cross")):
            document = self.run_ok(*options, "--block", name, "--role", role, "--json").json()
            self.assertEqual((document["part"], document["against"]), ("sequence", "softmax"))
            self.assertEqual([64, 16], [r["length"] for r in document["results"]])
            for r in document["results"]:
                self.assertAlmostEqual(r["flops_per_second"] * r["median_seconds"] / r["flops"], 1, places=6)
                self.assertAlmostEqual(r["flops_per_second"] / r["limit_flops_per_second"] / r["share"], 1, places=6)
                self.assertLess(r["share"], 1.2)  # more than all of the machine is a wrong count or a wrong limit
            self.assertIn("length", document["crossover"])
        lines = self.run_ok(*options, "--block", "relu", "--threads", 2).lines()
        self.assertIn("whole sequences", lines[0])
        self.assertEqual(len(lines), 6)
        self.assertIn("give one of them", self.run_code(2, "bench", "--block", "relu", "--length", 8, "--context", 8).err)
        self.assertIn("an encoder only", self.run_code(4, "bench", "--block", "bigbird", "--length", 8).err)

    def test_crossover(self):
        options = ("bench", "--heads", 2, "--width", 16, "--json")
        for context in ("4096,16384", "1,2", "2048,1"):
            document = self.run_ok(*options, "--block", "s4d", "--context", context).json()
            self.assertEqual(document["against"], "softmax")
            self.assertEqual([str(r["context"]) for r in document["results"]], context.split(","))
            points = sorted((r["context"], math.log(r["against_median_seconds"] / r["median_seconds"])) for r in document["results"])
            (short, before), (long, after) = points
            if after <= 0:
                place, at, text = "beyond", long, f"beyond {long:,}"
            elif before > 0:
                place, at, text = "below", short, f"below {short:,}"
            else:
                at = short * (long / short) ** (before / (before - after))
                place, text = "between", f"about {round(at):,}"
            crossover = document["crossover"]
            self.assertEqual((crossover["place"], crossover["text"]), (place, text))
            self.assertAlmostEqual(crossover["context"] / at, 1, places=6)
        self.assertNotIn("crossover", self.run_ok(*options, "--block", "softmax", "--context", 8).json())
        self.assertEqual("leap", self.run_ok(*options, "--block", "softmax", "--against", "leap", "--context", 8).json()["against"])
        self.run_code(4, "bench", "--block", "relu", "--against", "reul")

    def test_refusals(self):
        self.assertIn('did you mean "relu"?', self.run_code(4, "bench", "--block", "reul").err)
        self.assertIn("factor", self.run_code(4, "bench", "--block", "leap", "--options", "factor = 7").err)
        self.assertIn("factor", self.run_code(4, "bench", "--block", "leap", "--options", "facter = 2").err)
        for bad in ("factor = [", "}, a = {", "factor"):
            self.assertIn("--options", self.run_code(2, "bench", "--block", "leap", "--options", bad).err)
        self.assertIn("this machine has",
                      self.run_code(2, "bench", "--block", "softmax", "--heads", 64, "--width", 4096, "--context", 1 << 24).err)

    def test_models(self):
        document = self.run_ok("bench", RELU, "--length", "16,48", "--batch", 2, "--against", SAMPLE, "--json").json()
        self.assertEqual((document["part"], document["batch"], document["against"]), ("model", 2, SAMPLE))
        for length, r in zip((16, 48), document["results"]):
            self.assertEqual(r["length"], length)
            self.assertTrue(0 < r["first_quartile_seconds"] <= r["median_seconds"] <= r["third_quartile_seconds"])
            self.assertAlmostEqual(r["tokens_per_second"], 2 * length / r["median_seconds"], delta=1)
            self.assertGreater(r["speed"], 0)
            self.assertGreaterEqual(r["repetitions"], 5)
            self.assertGreaterEqual(r["peak_memory_bytes"], 0)
            self.assertAlmostEqual(r["flops_per_second"] * r["median_seconds"] / r["flops"], 1, places=6)
            self.assertAlmostEqual(r["flops_per_second"] / r["limit_flops_per_second"] / r["share"], 1, places=6)
            self.assertLess(r["share"], 1.2)  # more than all of the machine is a wrong count or a wrong limit
        alone = self.run_ok("bench", RELU, "--length", 16, "--json").json()["results"][0]
        self.assertNotIn("speed", alone)
        self.assertEqual(len(self.run_ok("bench", RELU, "--length", 16).lines()), 3)

    def test_sessions(self):
        command = ("bench", RELU, "--sessions", 20, "--length", 4)
        document = self.run_ok(*command, "--threads", 3, "--json").json()
        self.assertEqual([document[k] for k in ("part", "sessions", "length", "threads")], ["sessions", 20, 4, 3])
        memory = document["memory_per_session"]
        self.assertEqual(memory["planned_state_bytes"], memory["state_bytes"])
        self.assertAlmostEqual(memory["resident_bytes"] / memory["planned_state_bytes"], memory["resident_to_planned"], delta=1e-3)
        ways = [(r["calls"], r["threads"]) for r in document["results"]]
        self.assertEqual(ways, [("one per session", 1), ("one per step", 1), ("one per session", 3), ("one per step", 3)])
        for r in document["results"]:
            self.assertTrue(0 < r["first_quartile_seconds"] <= r["median_seconds"] <= r["third_quartile_seconds"])
            self.assertAlmostEqual(r["tokens_per_second"], 80 / r["median_seconds"], delta=1)
            self.assertTrue(0 <= r["waiting"] < 1 and r["waits_per_1000_tokens"] >= 0 and r["processor_seconds_per_token"] > 0)
        self.assertEqual(len(self.run_ok(*command, "--threads", 1).lines()), 6)
        self.assertIn("--batch", self.run_code(2, *command, "--batch", 2).err)
        self.assertIn("one length", self.run_code(2, "bench", RELU, "--sessions", 2, "--length", "4,5").err)
        self.assertIn("up to 512", self.run_code(2, "bench", RELU, "--sessions", 2, "--length", 513).err)
        self.assertIn("--sessions is for a model", self.run_code(2, "bench", "--block", "relu", "--sessions", 2).err)

    def test_sessions_of_speech(self):
        speech = RELU.with_name("speech.toml")
        document = self.run_ok("bench", speech, "--sessions", 2, "--length", 4, "--threads", 1, "--json").json()
        self.assertGreater(document["results"][0]["tokens_per_second"], 0)
        self.assertGreater(document["memory_per_session"]["state_bytes"], 0)

    def test_models_and_blocks_do_not_mix(self):
        self.assertIn("--batch is for a model", self.run_code(2, "bench", "--block", "relu", "--batch", 2).err)
        self.assertIn("--heads is for one block", self.run_code(2, "bench", RELU, "--heads", 2).err)
        self.assertIn("takes up to 512 tokens", self.run_code(2, "bench", RELU, "--length", 513).err)
        self.run_code(6, "bench", RELU, "--against", "none.toml")


if __name__ == "__main__":
    unittest.main()
