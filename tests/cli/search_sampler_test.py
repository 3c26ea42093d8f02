"""attnkit search --sampler: another program proposes the placements, well or badly."""

import json
import pathlib
import shlex
import signal
import sys
import time
import unittest

from command import SAMPLE
from search_support import ROLES, SearchTest

SAMPLER = pathlib.Path(__file__).with_name("fake_sampler.py")


class Sampler(SearchTest):
    def setUp(self):
        super().setUp()
        self.log = self.folder / "asked"

    def options(self, mode="random", *more):
        return ["--sampler", shlex.join([sys.executable, "-B", str(SAMPLER), mode, str(self.log)]), *more]

    def asked(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def placements(self, out=None):
        return {p["id"] for p in self.result(out)["placements"]}

    def test_finds_a_winner(self):
        self.search(*self.options("random", "--trials", "6", "--seed", "5"))
        result = self.result()
        self.check_result(result)
        self.assertEqual((len(result["placements"]), result["proposed"], result["space_size"]), (6, 6, 8))
        self.assertEqual((result["settings"]["strategy"], result["settings"]["sampler"]), ("sampler", self.options()[1]))
        self.assertIn("fake_sampler.py", (self.out / "report.html").read_text())
        self.runs()
        first, *rest = self.asked()
        self.assertEqual((first["kind"], first["seed"]), ("open", 5))
        self.assertEqual(first["units"], [{"name": role, "choices": ["softmax", "relu"]} for role in ROLES])
        self.assertEqual([r["most"] for r in rest][:1], [4])
        self.assertEqual([o["placement"] for o in rest[0]["finished"]], [{role: name for role in ROLES} for name in ("softmax", "relu")])
        for outcome in (o for r in rest for o in r["finished"]):
            self.assertEqual(set(outcome), {"placement", "usable", "rank", "quality", "throughput", "memory"})
            self.assertTrue(outcome["usable"])
        self.assertEqual([r["id"] for r in self.asked()], list(range(1, len(rest) + 2)))

    def test_layers_are_units_where_they_may_differ(self):
        (self.folder / "dev.tsv").write_text("\n".join((SAMPLE.parent / "dev.tsv").read_text().splitlines()[:20]) + "\n")
        self.search(*self.options("random", "--per-layer", "--trials", "6", "--data", self.folder / "dev.tsv", "--test", self.folder / "dev.tsv"), model=SAMPLE)
        self.check_result(self.result())
        self.assertEqual(len(self.result()["placements"]), 6)
        layers = {role: len(names) for role, names in self.result()["placements"][0]["blocks"].items()}
        self.assertGreater(max(layers.values()), 1)
        self.assertEqual([u["name"] for u in self.asked()[0]["units"]], [f"{role}.{n + 1}" for role in ROLES for n in range(layers[role])])

    def test_a_journal_serves_both(self):
        self.search(*self.options("random", "--trials", "6"))
        before = self.journal()
        self.search("--strategy", "grid", "--resume")
        self.assertEqual(self.journal()[:len(before)], before)
        self.assertEqual(len(self.placements()), 8)
        measured = len(self.journal())
        self.search(*self.options("random", "--trials", "8", "--resume"))
        self.assertEqual({line["key"].partition("|")[0] for line in self.journal()[measured:]}, {"proposed"})

    def test_kills(self):
        options = [*(word for role in ROLES for word in ("--space", f"{role}=softmax,relu,leap")), "--trials", "14"]
        self.search(*self.options("random", *options))
        whole, asked = self.placements(), [r["finished"] for r in self.asked()[1:]]
        for mode in ("random", "unsteady"):
            self.log.unlink()
            self.out = self.folder / mode
            process = self.start(*self.options("silent", *options), "--progress", "none")  # so that it is killed between two answers
            self.wait_for(lambda: len(self.asked()) > 2, process)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            before = self.whole_lines()
            proposed = [line for line in before if line.get("key", "").startswith("proposed|")]
            self.log.unlink()
            self.search(*self.options(mode, *options), "--resume")
            self.check_result(self.result())
            self.assertEqual(self.journal()[:len(before)], before)
            self.assertEqual(len(self.placements()), 14)
            self.assertLessEqual({line["key"].partition("|")[2] for line in proposed}, self.placements())
            told = [o["placement"] for r in self.asked()[1:] for o in r["finished"]]
            if mode == "random":  # it proposes the same again, so the search is the one that was not killed
                self.assertEqual(self.placements(), whole)
                self.assertEqual(told, [o["placement"] for finished in asked for o in finished][:len(told)])
            else:  # it hears of what was there
                ids = {" ".join(f"{role}={name}" for role, name in sorted(placement.items(), key=lambda one: ROLES.index(one[0]))) for placement in told}
                self.assertLessEqual({line["key"].partition("|")[2] for line in proposed}, ids)

    def wait_for(self, happened, process):
        for _ in range(3000):
            if happened():
                return
            self.assertIsNone(process.poll(), "it has ended before")
            time.sleep(0.01)
        self.fail("nothing within 30 s")

    def test_what_fails_is_said_and_loses_nothing(self):
        for mode, said in (("dies", "ended with code 1; what it printed is in "), ("silent", "no reply within 2 s")):
            self.log.unlink(missing_ok=True)
            self.out = self.folder / mode
            err = self.search(*self.options(mode, "--trial-timeout", "2" if mode == "silent" else "60"), code=6).err
            self.assertIn(f'--sampler "{self.options(mode)[1]}": {said}', err)
            self.assertIn("every finished trial is kept: --resume goes on", err)
            self.assertEqual(len(err.splitlines()), 2, err)
            if mode == "dies":
                self.assertIn("no more ideas", (self.out / "workers.log").read_text())
        before = self.journal()
        self.search("--strategy", "grid", "--resume")
        self.assertEqual(self.journal()[:len(before)], before)
        self.check_result(self.result())

    def test_an_interrupt_while_the_sampler_thinks(self):
        process = self.start(*self.options("silent"), "--progress", "none")
        self.wait_for(lambda: len(self.asked()) > 2, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("go on with: attnkit search ", err)

    def test_no_sampler_at_all(self):
        self.assertIn("ended with code 127", self.search("--sampler", "no-such-program-here", code=6).err)
        self.assertIn("--sampler and --strategy both say what is tried", self.search(*self.options(), "--strategy", "grid", code=2).err)
        self.assertIn("--sampler is empty", self.search("--sampler", "", code=2).err)


if __name__ == "__main__":
    unittest.main()
