"""python -m attnkit.train on two nodes that share no disk: each has a folder, and a network, of its own."""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import torch
from support import SOURCE, TrainTest, lines, main

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
TORCHRUN = "--nnodes", "2", "--nproc-per-node", "1"
# Several trainings in one process, each with its arguments: what ends one is printed.
SEVERAL = """
import json, pathlib, sys
from attnkit.train.__main__ import main
for arguments in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    try:
        main(arguments)
        print("trained", flush=True)
    except SystemExit as e:
        print(e.code, flush=True)
"""


class Nodes(TrainTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.address, cls.far = "127.0.0.1", []
        if None not in (shutil.which("ip"), shutil.which("nsenter")) and ctypes.CDLL(None).unshare(NEW_NETWORK) == 0:
            cls.join_networks()

    @classmethod
    def join_networks(cls):
        """This process's own network becomes that of node 0, with a cable to that of node 1."""
        node = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo ready && exec sleep 600"], stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(node.wait)
        cls.addClassCleanup(node.kill)
        cls.addClassCleanup(node.stdout.close)
        assert node.stdout.readline() == "ready\n"
        far = ["nsenter", "-t", str(node.pid), "-n"]
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        if subprocess.run(["ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(node.pid)], check=False).returncode:
            return
        for there, card, address in (([], "near", "10.78.0.1"), (far, "far", "10.78.0.2")):
            for words in (("link", "set", "lo", "up"), ("addr", "add", f"{address}/24", "dev", card), ("link", "set", card, "up")):
                subprocess.run([*there, "ip", *words], check=True)
        cls.address, cls.far = "10.78.0.1", far

    def setUp(self):
        super().setUp()
        self.data = lines(400, 1) + "one two three four " * 8 + "\teins\n"  # not every batch has a row for both
        (self.folder / "train.tsv").write_text(self.data, encoding="utf-8")
        for node in ("0", "1"):
            shutil.copytree(self.folder / "tiny", self.folder / node / "tiny")
            shutil.copy(self.folder / "train.tsv", self.folder / node)

    def start(self, *command, torchrun=False):
        """Runs the command on both nodes, {node} being each's number."""
        with socket.create_server(("", 0)) as free:
            port = str(free.getsockname()[1])
        started = []
        for node in range(2):
            where = {"MASTER_ADDR": self.address, "MASTER_PORT": port, "RANK": str(node), "WORLD_SIZE": "2"}
            words = [sys.executable, "-B", *(str(word).replace("{node}", str(node)) for word in command)]
            if torchrun:
                where = {}
                words[2:2] = ["-m", "torch.distributed.run", "--node-rank", str(node), *TORCHRUN, "--master-addr", self.address, "--master-port", port]
            started.append(subprocess.Popen([*(self.far if node else ()), *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, env={**os.environ, **where}))
            self.addCleanup(started[-1].stdout.close)
            self.addCleanup(started[-1].wait)
            self.addCleanup(started[-1].kill)
        return started

    def start_several(self, trainings, first=()):
        """Runs these one after another on both nodes, as torch takes long to load; first: more options of each on the first node."""
        for node in range(2):
            each = [[*words[2:], *(first[i] if first and node == 0 else ())] for i, words in enumerate(trainings)]
            (self.folder / f"{node}.json").write_text(json.dumps(each).replace("{node}", str(node)), encoding="utf-8")
        (self.folder / "several.py").write_text(SEVERAL, encoding="utf-8")
        return self.start("several.py", "{node}.json")

    def training(self, *options, out="run", manifest="model.toml"):
        return ["-m", "attnkit.train", f"{{node}}/tiny/{manifest}",
                *self.arguments("--evaluate-steps", 1000, "--no-bf16", "--wait-k", "1,2,3", *options, data="{node}/train.tsv", out=f"{{node}}/{out}")[1:]]

    def ended(self, started, *codes):
        """What both said."""
        said = [process.communicate(timeout=120)[0] for process in started]
        self.assertEqual([process.returncode for process in started], list(codes), "\n".join(said))
        return said

    def begun(self, started, file):
        """Waits until something is in the file."""
        path = self.folder / file
        while not (path.exists() and path.stat().st_size):
            self.assertIsNone(started[0].poll(), "it ended before it was stopped")
            time.sleep(0.01)

    def step(self, file="0/run/checkpoint.pt"):
        return torch.load(self.folder / file, weights_only=True)["step"]

    def losses(self, out):
        return [(entry["step"], entry["loss"]) for entry in self.log(out) if "loss" in entry]

    def test_one_is_killed_and_both_go_on(self):
        options = "--steps", 40, "--checkpoint-every", 1e-9
        self.train("--evaluate-steps", 1000, "--no-bf16", "--wait-k", "1,2,3", *options, "--tokens", 400, out="one")
        self.ended(self.start(*self.training(*options, out="whole")), 0, 0)
        one, whole = self.losses("one"), self.losses("0/whole")
        self.assertEqual(len(whole), 40)
        for (_, a), (_, b) in zip(one[:8], whole[:8], strict=True):  # rounding grows with the steps
            self.assertAlmostEqual(a, b, delta=2e-5 * a)

        running = self.start(*self.training(*options), torchrun=True)
        self.begun(running, "0/run/checkpoint.pt")
        children = pathlib.Path(f"/proc/{running[1].pid}/task/{running[1].pid}/children").read_text(encoding="utf-8").split()
        for pid in (running[1].pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        said, _ = self.ended(running, 1, -signal.SIGKILL)
        self.assertRegex(said, r"error: rank 0 on \S+: not every other process is there any more: .* is kept in \S*0/run/checkpoint.pt\n")
        self.assertLess(self.step(), 40)

        self.ended(self.start(*self.training(*options)), 0, 0)
        self.assertEqual(self.losses("0/run"), whole)
        self.assertEqual(self.weights("0/run"), self.weights("0/whole"))
        self.assertEqual([path.name for path in (self.folder / "1").iterdir() if path.name not in ("tiny", "train.tsv")], [])

    def test_each_has_a_network_of_its_own(self):
        if not self.far:
            self.skipTest("ip, nsenter or the right to make networks is missing: all else has run with both nodes on this machine's network")

    def test_the_page_has_these_commands(self):
        page = (SOURCE / "docs/training.md").read_text(encoding="utf-8")
        self.assertIn(f'options="{" ".join(TORCHRUN)} --master-addr 10.0.0.1 --master-port 29500 -m attnkit.train model.toml --data train.tsv', page)
        for node in range(2):
            self.assertIn(f"\ntorchrun --node-rank {node} $options ", page)

    def test_one_that_is_stopped_or_silent(self):
        """Ctrl-C on one stops both after the same step; who waits for one that is silent says so at last."""
        running = self.start_several([self.training("--steps", 100000, "--timeout", 0.15, out=out) for out in ("run", "silent")])
        self.begun(running, "0/run/log.jsonl")
        running[1].send_signal(signal.SIGINT)
        self.begun(running, "0/silent/log.jsonl")
        running[1].send_signal(signal.SIGSTOP)
        said, _ = running[0].communicate(timeout=60)
        running[1].kill()
        stopped = f"stopped after step {self.step()}; the same command goes on from {self.folder}/{{}}/run/checkpoint.pt"
        self.assertIn(stopped.format(0), said)
        self.assertIn(stopped.format(1), running[1].communicate()[0])
        self.assertIn(": not every other process was heard of for 0.15 minutes (--timeout): see what they said", said)
        self.assertEqual(running[0].returncode, 1, said)

    def test_what_one_has_otherwise_ends_both(self):
        pairs = "def pairs(seed, chunk, progress):\n    return [('one', 'eins'), ('two one', 'zwei eins'), ('three', 'drei')] * 20\n"
        for node in ("0", "1"):
            (self.folder / node / "same.py").write_text(pairs, encoding="utf-8")
            (self.folder / node / "rank.py").write_text("import os\n" + pairs.replace("two one", "two' + ' one' * int(os.environ['RANK']) + '"),
                                                       encoding="utf-8")
            (self.folder / node / "fails.py").write_text("import os\n" + pairs.replace("return", "1 / (1 - int(os.environ['RANK'])); return"),
                                                        encoding="utf-8")
            (self.folder / node / f"only{node}.tsv").write_text(self.data, encoding="utf-8")
            (self.folder / node / "other.tsv").write_text(self.data + f"one\t{'zwei' if node == '1' else 'eins'}\n", encoding="utf-8")
        self.train("--steps", 1, "--evaluate-steps", 1000, out="1/ahead")
        (self.folder / "1" / "broken").mkdir()
        (self.folder / "1" / "broken" / "checkpoint.pt").write_bytes(b"broken")
        # Of each: options, for the first node alone, what both say.
        cases = (((), (), r"rank 1 on \S+ has a manifest of sha256 \w{64}, rank 0 on \S+ \w{64}: give all processes the same"),
                 ((), ("--lr", "0.5"), r"rank 1 on \S+ has --lr 0.002, rank 0 on \S+ 0.5: give all processes the same"),
                 (("--data", "{node}/other.tsv"), (), r"rank 1 on \S+ has --data of sha256 \w{64}, rank 0 on \S+ \w{64}: give all processes the same"),
                 (("--data", "{node}/only1.tsv"), (), r"0/only1.tsv: \[Errno 2\] No such file"),
                 (("--data", "{node}/only0.tsv"), (), r"1/only0.tsv: \[Errno 2\] No such file"),
                 (("--data", "{node}/rank.py:pairs"), (), r"step 1: --data gives other examples to rank 1 on \S+ than to rank 0 on \S+: give all .* no checkpoint"),
                 (("--data", "{node}/fails.py:pairs"), (), r"1/fails.py:pairs, chunk 0: ZeroDivisionError"),
                 (("--out", "{node}/ahead"), (), r"rank 1 on \S+ has \S*1/ahead/checkpoint.pt of step 1, and rank 0 on .* none: start that node"),
                 (("--out", "{node}/broken"), (), r"1/broken/checkpoint.pt is no checkpoint"),
                 (("--data", "{node}/same.py:pairs", "--out", "{node}/new"), (), "trained"))
        trainings = [self.training("--steps", 2, *options) for options, _, _ in cases]
        for node in ("0", "1"):
            (self.folder / node / "tiny" / "other.toml").write_text(f"{self.manifest.read_text(encoding='utf-8')}# {node}\n", encoding="utf-8")
        trainings[0][2] = "{node}/tiny/other.toml"
        for text in self.ended(self.start_several(trainings, [only for _, only, _ in cases]), 0, 0):
            said = [line for line in text.splitlines() if line.startswith(("error: ", "trained"))]
            self.assertEqual(len(said), len(cases), text)
            for line, (_, _, expected) in zip(said, cases):
                self.assertRegex(line, expected)


if __name__ == "__main__":
    main(skipped=77)
