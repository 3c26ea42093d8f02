"""attnkit search, driven as users drive it: what it finds and writes."""

import re
import shlex
import shutil
import subprocess
import unittest

from command import COMMAND, SAMPLE
from search_support import SearchTest, quick


class Strategies(SearchTest):
    def test_grid(self):
        said = self.search("--strategy", "grid")
        self.check_result(self.result())
        self.assertEqual(len(self.result()["placements"]), 8)
        self.runs()
        self.assertIn("<svg", (self.out / "report.html").read_text() if shutil.which("gnuplot") else "<svg")
        self.assertIn("At 32 tokens, ", said.out)
        self.assertEqual(said.err, f"report: {self.out}/report.html\nmanifest: {self.out}/winner.toml\n")

    def test_ablation_and_pareto_use_the_same_journal(self):
        self.search("--strategy", "ablation")
        self.check_result(self.result())
        before = self.journal()
        self.search("--strategy", "pareto", "--per-layer", "--trials", "12", "--resume")
        self.check_result(self.result())
        self.assertEqual(self.journal()[:len(before)], before)
        keys = [line["key"] for line in self.journal()[1:] if not line["key"].startswith("describe")]
        self.assertEqual(len(keys), len(set(keys)))
        self.runs()

    def test_an_ablation_shows_the_blocks_that_it_tried(self):
        said = self.search("--strategy", "ablation", "--space", "encoder.self=softmax,relu", "--space", "decoder.self=softmax",
                           "--space", "decoder.cross=softmax").out
        self.assertEqual(re.findall(r"(?m)^(?:block +(\w+)|((?:en|de)coder\.\w+)(?: .*)?)$", said), [("relu", ""), ("", "encoder.self")])

    def test_sample_model_per_layer(self):
        lists = (SAMPLE.parent / "dev.tsv").read_text().splitlines()[:24]
        (self.folder / "dev.tsv").write_text("\n".join(lists) + "\n")
        (self.folder / "test.tsv").write_text("\n".join(lists[:4]) + "\n")
        self.search("--strategy", "pareto", "--per-layer", "--trials", "6", "--data", self.folder / "dev.tsv", "--test",
                    self.folder / "test.tsv", model=SAMPLE)
        document = self.result()
        self.check_result(document)
        self.assertEqual(document["settings"]["lists"], {"data": 24, "test": 4})
        self.assertEqual(len(document["homogeneous"]), 4)
        for p in document["placements"]:
            self.assertEqual(p["test"] is not None, p["top"] or p["baseline"])
        self.assertEqual(document["placements"][0]["test"]["value"], document["placements"][0]["greedy"]["test"]["exact"])
        self.runs("half past three")

    def test_without_a_unit_of_quality(self):
        self.search("--space", "encoder.self=softmax,relu", "--space", "decoder.self=softmax", "--space", "decoder.cross=softmax")
        self.check_result(self.result())
        self.assertEqual((self.result()["std_bench"], len(self.result()["top_group"])), (None, 2))
        self.assertIn("std_bench is unknown or 0, so only quality could tell them apart", self.result()["answer"]["text"])

    def test_json_is_one_document(self):
        document = self.search("--json").json()
        self.assertEqual(document, self.result())

    def test_jobs_do_not_change_qualities(self):
        qualities = []
        for jobs in (1, 4):
            self.search("--jobs", jobs, "--strategy", "grid", out=self.folder / str(jobs))
            qualities.append({p["id"]: {key: p["quality"][key] for key in ("lists", "value", "low", "high", "accuracy")}
                              for p in self.result(self.folder / str(jobs))["placements"]})
            for quality in qualities[-1].values():
                self.assertEqual(quality["lists"], 30 if quality["lists"] > 20 else 20)
        both = [id for id in qualities[0] if qualities[0][id]["lists"] == qualities[1][id]["lists"]]
        self.assertGreater(len(both), 4)  # timings decide which of the others are measured on all lists
        for id in both:
            self.assertEqual(qualities[0][id], qualities[1][id])

    def test_bleu(self):
        # Three rungs, so that placements are compared on examples that the homogeneous ones skip.
        self.search("--metric", "bleu", "--screen", "5", "--strategy", "grid")
        self.check_result(self.result())


class Limits(SearchTest):
    def test_nothing_within_the_limits(self):
        self.search()
        self.assertTrue((self.out / "winner.toml").exists())
        for limit in (["--max-state", "1B"], ["--max-latency", "0.001us"], ["--min-quality-ratio", "9"]):
            said = self.search("--resume", *limit, code=8)
            document = self.result()
            self.assertEqual({p["status"] for p in document["placements"]}, {"limited"})
            self.assertTrue(all(limit[0][2:].replace("-", "_") in p["reason"] for p in document["placements"]))
            self.assertIsNone(document["answer"]["placement"])
            self.assertIn("No placement is within the limits.", said.out)
            self.assertFalse((self.out / "winner.toml").exists(), "the winner of another search was left there")
            self.assertTrue((self.out / "report.html").exists())


class Streams(SearchTest):
    def test_closed_output(self):
        for tail in ("| head -c 1 >/dev/null", ">&-", "2>&-"):
            out = self.folder / str(len(tail))
            words = shlex.join([COMMAND, "search", str(self.model), "-o", str(out), *quick([])])
            subprocess.run(["bash", "-c", f"{words} {tail}"], capture_output=True, check=False, timeout=60)
            self.check_result(self.result(out))
            self.assertTrue((out / "winner.toml").exists())

    def test_without_gnuplot(self):
        self.search(env={"PATH": "/nowhere"})
        self.assertIn("gnuplot", (self.out / "report.html").read_text())

    def test_errors_as_json(self):
        document = self.search("--json", "--baseline", "nope", code=2).json()
        self.assertEqual((document["schema"], document["exit"]), ("attnkit.error/1", 2))

    @unittest.skipUnless(shutil.which("script"), "script is not installed")
    def test_terminal(self):
        words = shlex.join([COMMAND, "search", str(self.model), "-o", str(self.out), *quick(["--strategy", "grid"])])
        for width in (60, 200):
            shutil.rmtree(self.out, ignore_errors=True)
            done = subprocess.run(["script", "-qec", f"stty cols {width}; {words} >/dev/null", "/dev/null"], timeout=60,
                                  capture_output=True, check=False, stdin=subprocess.DEVNULL)
            said = done.stdout.decode().replace("\r\n", "\n")
            drawn = re.findall(r"\r(\[(\d+)/(\d+)\] [^\r\n]*)\x1b\[K", said)
            self.assertGreater(len(drawn), 3, said)
            for line, number, total in drawn:
                self.assertLess(len(line), width)
                self.assertLessEqual(int(number), int(total))
            self.assertIn("\r\x1b[Kreport: ", said)


if __name__ == "__main__":
    unittest.main()
