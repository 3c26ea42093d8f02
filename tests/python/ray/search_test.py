"""attnkit search on a Ray cluster of this machine: two nodes, of which one goes in the middle."""

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import termios
import time
import tomllib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))

from command import COMMAND  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from search_support import SPACE, SearchTest, pairs, quick  # noqa: E402


BASELINE = " ".join(f"{role}=softmax" for role in SPACE)


def new_cluster():
    """Ray gives a node 30 s to start, which a busy machine may take."""
    for last in (False, False, True):
        try:
            return Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        except Exception:
            if last:
                raise


class RaySearch(SearchTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = new_cluster()
        cls.addClassCleanup(cls.cluster.shutdown)
        cls.other = cls.cluster.add_node(num_cpus=1)

    def setUp(self):
        super().setUp()
        if self.other is None:
            type(self).other = self.cluster.add_node(num_cpus=1)

    def start_on_ray(self, *options, **more):
        words = [sys.executable, "-m", "attnkit.ray", "search", self.model, "--address", self.cluster.address, "--command", COMMAND,
                 "-o", self.out, "--progress", "none", "--strategy", "grid", "--trial-timeout", "60"]
        return subprocess.Popen([*words, *quick(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def end(self, process, code=0):
        out, err = process.communicate(timeout=200)
        self.assertEqual(process.returncode, code, f"{out}\n{err}")
        return err

    def wait_for(self, happened, process):
        for _ in range(12000):
            if happened():
                return
            self.assertIsNone(process.poll(), "it has ended before")
            time.sleep(0.01)
        self.fail("nothing within two minutes")

    def check_same(self):
        self.check_result(self.result())
        alone = self.folder / f"{self.out.name}-alone"
        self.search("--strategy", "grid", out=alone)
        here, there = ({p["id"]: p["quality"] for p in self.result(out)["placements"]} for out in (alone, self.out))
        self.assertEqual(here.keys(), there.keys())
        for name, quality in here.items():
            if quality["lists"] == there[name]["lists"]:
                self.assertEqual(quality["value"], there[name]["value"])

    def test_two_nodes_find_what_this_machine_finds(self):
        self.end(self.start_on_ray())
        self.check_same()
        hosts = self.result()["machine"]["hosts"]
        self.assertEqual(len(hosts), 2)
        for host in hosts:
            self.assertRegex(host["launch"], r"^ray-node [0-9.]+/[0-9a-f]{8}$")
            self.assertGreater(host["trials"], 0)
            self.assertIsNone(host["left_out"])

    def test_a_node_that_goes_costs_nothing_and_an_interrupted_search_goes_on(self):
        process = self.start_on_ray()
        self.wait_for_trials(4, process)
        self.cluster.remove_node(self.other, allow_graceful=False)
        type(self).other = None
        self.end(process)
        self.check_same()
        self.assertEqual({line["status"] for line in self.journal()[1:]}, {"ok"})
        self.out = self.folder / "interrupted"
        process = self.start_on_ray()
        self.wait_for_trials(4, process)
        process.send_signal(signal.SIGTERM)
        self.assertIn("go on with: attnkit search ", self.end(process, 130))
        before = (self.out / "journal.jsonl").read_bytes()
        self.end(self.start_on_ray("--resume"))
        self.assertTrue((self.out / "journal.jsonl").read_bytes().startswith(before))
        self.check_same()

    def test_a_killed_search_goes_on(self):
        process = self.start_on_ray()
        self.wait_for_trials(4, process)
        process.kill()
        process.communicate(timeout=200)
        before = (self.out / "journal.jsonl").read_bytes()
        self.end(self.start_on_ray("--resume"))
        self.assertTrue((self.out / "journal.jsonl").read_bytes().startswith(before[:before.rindex(b"\n") + 1]))
        self.check_same()

    def test_the_end_of_its_terminal_is_as_ctrl_c(self):
        terminal, other_end = os.openpty()
        process = self.start_on_ray(start_new_session=True, preexec_fn=lambda: fcntl.ioctl(other_end, termios.TIOCSCTTY, 0))
        os.close(other_end)
        self.wait_for_trials(4, process)
        os.close(terminal)
        self.assertIn("go on with: attnkit search ", self.end(process, 130))

    def test_placements_are_trained_before_they_are_judged(self):
        train = self.folder / "train.tsv"
        train.write_text(pairs(60, seed=7))
        how = ["--train", f"--data {train} --steps 3 --tokens 60 --threads 1 --warmup 1 --no-bf16"]
        more = ["--metric", "perplexity", "--test", self.model.parent / "data.tsv"]
        process = self.start_on_ray(*how, *more)
        self.wait_for(lambda: list((self.out / "trained").glob("*.safetensors")), process)
        process.send_signal(signal.SIGTERM)
        self.end(process, 130)
        before = {file: file.stat().st_mtime_ns for file in (self.out / "trained").glob("*.safetensors")}
        self.end(self.start_on_ray(*how, *more, "--resume"))
        result = self.result()
        self.check_result(result)
        self.assertEqual((result["training"]["from"], result["training"]["options"]), ("the model's weights", how[1]))
        self.assertIn("was trained by itself", result["answer"]["text"])
        judged = {p["id"] for p in result["placements"] if p["status"] == "ranked"}
        self.assertEqual(json.loads((self.out / "trained" / "placements.json").read_text()).keys(), judged)
        self.assertEqual(before, {file: file.stat().st_mtime_ns for file in before}, "nothing is trained twice")
        weights = {file.read_bytes() for file in (self.out / "trained").glob("*.safetensors")}
        self.assertEqual(len(weights), len(judged))
        # The winner's file is that of its trial: it has the same quality when it is judged as a model of its own.
        winner = self.out / "winner.toml"
        self.assertEqual(tomllib.loads(winner.read_text())["weights"].keys(), {"file", "sha256"})
        again = self.folder / "again"
        space = [word for role, names in SPACE.items() for word in ("--space", f"{role}={','.join(names)}")]
        self.search("--metric", "perplexity", "--data", self.model.parent / "data.tsv", *space, model=winner, out=again)
        before, after = ({p["id"]: p["quality"]["value"] for p in r["placements"]} for r in (result, self.result(again)))
        name = result["answer"]["placement"]
        self.assertEqual(before[name], after[name])
        self.assertNotEqual(before, after, "the others have weights of their own")
        # A journal of trained placements serves no other search.
        self.assertIn("training is ", self.end(self.start_on_ray(*more, "--resume"), 6))

    def test_a_training_that_fails_says_why(self):
        train = self.folder / "train.tsv"
        train.write_text("one\n")
        said = self.end(self.start_on_ray("--train", f"--data {train} --steps 1"), 3)
        self.assertIn(f"the baseline {BASELINE} cannot be measured: training failed: {train}:1: 1 fields, not 2 with a TAB", said)

    def test_what_cannot_be(self):
        done = subprocess.run([sys.executable, "-m", "attnkit.ray", "search", self.model, "--address", self.cluster.address, "--command", COMMAND,
                               "--cpus", "64"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1]), (1, "no node of the cluster gives 64 CPUs; --cpus asks for fewer"))
        for options, said in (
                (["--train", "--data absent.tsv --steps 1"], "--train: absent.tsv cannot be read: No such file or directory"),
                (["--train", "--data absent.tsv --out here"], "--train: --out cannot be given here: each placement has a folder of its own"),
                (["--from-scratch"], "--from-scratch says what --train begins with: give that too"),
                (["--train", "--data absent.tsv", "--bundle", "x"], "--bundle would hold the model's weights, not the trained ones")):
            done = subprocess.run([sys.executable, "-m", "attnkit.ray", "search", self.model, "--command", COMMAND, *options], capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertTrue(done.stderr.splitlines()[-1].startswith(said), done.stderr)


if __name__ == "__main__":
    unittest.main()
