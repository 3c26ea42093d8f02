"""attnkit search on a Ray cluster of this machine: two nodes, of which one goes in the middle."""

import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))

from command import COMMAND  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from search_support import SearchTest, quick  # noqa: E402


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

    def start_on_ray(self, *options):
        words = [sys.executable, "-m", "attnkit.ray", "search", self.model, "--address", self.cluster.address, "--command", COMMAND,
                 "-o", self.out, "--progress", "none", "--strategy", "grid", "--trial-timeout", "60"]
        return subprocess.Popen([*words, *quick(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, process, code=0):
        out, err = process.communicate(timeout=200)
        self.assertEqual(process.returncode, code, f"{out}\n{err}")
        return err

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

    def test_what_cannot_be(self):
        done = subprocess.run([sys.executable, "-m", "attnkit.ray", "search", self.model, "--address", self.cluster.address, "--command", COMMAND,
                               "--cpus", "64"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1]), (1, "no node of the cluster gives 64 CPUs; --cpus asks for fewer"))


if __name__ == "__main__":
    unittest.main()
