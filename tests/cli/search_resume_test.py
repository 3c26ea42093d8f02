"""attnkit search: what interrupts, kills and full disks leave, and how it goes on."""

import contextlib
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import time
import unittest

from command import COMMAND
from search_support import PLUGINS, ROLES, SPACE, SearchTest, descendants, in_shards, is_alive, pairs, search_table, texts


class Resume(SearchTest):
    def placements(self, out=None):
        return {p["id"] for p in self.result(out)["placements"]}

    def slow(self):
        """Enough trials that a signal comes in between."""
        spaces = [word for role in ROLES for word in ("--space", f"{role}=softmax,relu,cosformer,leap")]
        return ["--strategy", "grid", *spaces]

    def test_what_cannot_be_continued(self):
        self.assertIn("leave --resume out", self.search("--resume", code=6).err)
        self.search()
        self.assertIn("--resume continues it", self.search(code=6).err)
        self.assertIn("baseline is", self.search("--resume", "--baseline", "relu", code=6).err)
        (self.model.parent / "other.tsv").write_text(pairs(30, seed=5))
        self.assertIn("data is", self.search("--resume", "--data", self.model.parent / "other.tsv", code=6).err)
        other = self.tiny("other", search_table(SPACE), seed=2)
        self.assertIn("weights.file is", self.search("--resume", model=other, code=6).err)

    def test_weights_of_several_files(self):
        in_shards(self.model)
        self.search()
        self.search("--resume")
        other = self.tiny("other", "", seed=2)
        (self.model.parent / "tiny.safetensors").write_bytes((other.parent / "tiny.safetensors").read_bytes())
        self.assertIn("weights.file tiny.safetensors is", self.search("--resume", code=6).err)

    def test_vectors_are_compared_with_those_of_one_model(self):
        def headless(weights):
            del weights.tensors["head.weight"], weights.tensors["head.bias"]

        model = self.tiny("vectors", search_table({"encoder.self": ["softmax", "relu"]}), data="\n".join(texts(30)) + "\n",
                          kind="encoder", head="classifier", damage=headless)
        model.write_text(re.sub(r"head = .*", 'head = { type = "embedding" }', model.read_text()))
        self.search(model=model)
        model.write_text(model.read_text().replace("[search]", "# more\n[search]"))
        self.search("--resume", model=model)
        model.write_text(model.read_text().replace('default = "softmax"', 'default = "relu"'))
        self.assertIn("attention is", self.search("--resume", model=model, code=6).err)

    def test_interrupt(self):
        options = self.slow()
        process = self.start(*options, "--progress", "none")
        self.wait_for_trials(8, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, err)
        self.assertFalse((self.out / "result.json").exists())
        command = re.search(r"go on with: (attnkit .*)", err).group(1)
        environment = {**os.environ, "PATH": f"{pathlib.Path(COMMAND).parent}:{os.environ['PATH']}"}
        done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.search(*options, out=self.folder / "whole")
        self.assertEqual(self.placements(), self.placements(self.folder / "whole"))

    def test_interrupted_twice(self):
        model = self.tiny("h", search_table({"encoder.self": ["softmax", "hang_run"]}))
        self.model = model
        process = self.start("--plugin-dir", PLUGINS, "--progress", "none")
        self.wait_for_trials(4, process)
        time.sleep(0.3)
        workers = descendants(process.pid)
        self.assertTrue(workers)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        self.assertNotEqual(process.returncode, 0)
        self.check_gone(workers)

    def check_gone(self, workers):
        for _ in range(200):
            if not any(map(is_alive, workers)):
                return
            time.sleep(0.01)
        self.fail(f"workers survive: {[w for w in workers if is_alive(w)]}")

    def test_kills(self):
        rng, resume, options = random.Random(7), [], self.slow()
        for last in [False] * 5 + [True]:
            process = self.start(*options, *resume, "--progress", "none")
            if last:  # on a busy machine the others may not have come so far
                self.wait_for_trials(3, process)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0.05, 0.7))
            workers = descendants(process.pid)
            process.kill()
            _, err = process.communicate()
            self.assertIn(process.returncode, (-9, 0), err)
            self.check_gone(workers)
            journal = self.out / "journal.jsonl"
            resume = ["--resume"] if journal.exists() and journal.read_bytes().count(b"\n") > 1 else []
        before = (self.out / "journal.jsonl").read_bytes()
        self.search(*options, *resume)
        whole = before[:before.rindex(b"\n") + 1]
        self.assertTrue((self.out / "journal.jsonl").read_bytes().startswith(whole))
        self.check_result(self.result())
        self.assertEqual(len(self.placements()), 36)  # cosformer refuses two roles here

    def test_all_processes_are_stopped(self):
        # As a batch system stops a job: workers that it stops have not failed.
        process = self.start(*self.slow(), "--progress", "none")
        self.wait_for_trials(20, process)
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):  # it may have ended since
                os.kill(pid, signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual({line.get("status") for line in self.journal()[1:]} - {"refused"}, {"ok"})

    def test_damage(self):
        self.search()
        journal = self.out / "journal.jsonl"
        whole = journal.read_bytes()
        journal.write_bytes(whole[:-20])
        self.search("--resume")
        self.check_result(self.result())
        lines = whole.split(b"\n")
        journal.write_bytes(b"\n".join(lines[:3] + [lines[3][:-9] + b"?"] + lines[4:]))
        said = self.search("--resume", code=6)
        self.assertIn("line 4 of the journal is damaged", said.err)
        journal.write_bytes(b"\n".join(lines[:3] + lines[4:]))
        self.search("--resume")

    def test_two_at_once(self):
        process = self.start(*self.slow(), "--progress", "none")
        self.wait_for_trials(2, process)
        for option in ([], ["--resume"]):
            self.assertIn("another search is writing this journal", self.search(*self.slow(), *option, code=6).err)
        process.kill()
        process.communicate()

    def test_full_disk(self):
        limit = 40000
        options = self.slow()
        said = self.search(*options, code=6, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertIn("--resume", said.err)
        before = (self.out / "journal.jsonl").read_bytes()
        self.assertTrue(before.endswith(b"\n"))
        self.assertGreater(before.count(b"\n"), 3)
        self.search(*options, "--resume")
        self.assertTrue((self.out / "journal.jsonl").read_bytes().startswith(before))
        self.check_result(self.result())

    def test_longer_time_outs(self):
        model = self.tiny("h", search_table({"encoder.self": ["softmax", "relu", "hang_run"]}))
        self.search("--plugin-dir", PLUGINS, "--trial-timeout", "0.5", model=model)
        before = len(self.journal())
        self.search("--plugin-dir", PLUGINS, "--trial-timeout", "0.5", "--resume", model=model)
        self.assertEqual(len(self.journal()), before)
        self.search("--plugin-dir", PLUGINS, "--trial-timeout", "1", "--resume", model=model)
        self.assertIn("no reply within 1 s", " ".join(p["reason"] or "" for p in self.result()["placements"]))


if __name__ == "__main__":
    unittest.main()
