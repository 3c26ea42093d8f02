"""attnkit.optuna as the sampler of attnkit search, with the real Optuna."""

import json
import pathlib
import shlex
import subprocess
import sys
import time
import unittest

try:
    import optuna  # noqa: F401
except ImportError:
    sys.exit(print(f"skipped: no optuna in {sys.executable}; ./test.sh installs it where there is a network") or 77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))

from command import SAMPLE  # noqa: E402
from search_support import SearchTest  # noqa: E402

UNITS = [{"name": name, "choices": ["softmax", "relu", "leap"]} for name in ("encoder.self", "decoder.self", "decoder.cross")]
OPTUNA = [sys.executable, "-B", "-m", "attnkit.optuna"]


def outcome(placement):
    """The more relu, the better; leap in the cross attention fails."""
    count = list(placement.values()).count("relu")
    usable = placement["decoder.cross"] != "leap"
    return {"placement": placement, "usable": usable, "rank": count / 3 if usable else None, "quality": -count, "throughput": 1 + count, "memory": 1 - count / 4}


class Optuna(SearchTest):
    def speak(self, *options, seed=1, rounds=12, outcome=outcome, most=16):
        """What it proposes in so many rounds to a search that measures that outcome."""
        process = subprocess.Popen([*OPTUNA, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.wait)
        with process.stdin, process.stdout:
            def ask(number, **request):
                process.stdin.write(json.dumps({"id": number, **request}) + "\n")
                process.stdin.flush()
                reply = json.loads(process.stdout.readline())
                self.assertEqual(reply["id"], number)
                return reply["result"] if reply["ok"] else self.fail(reply["error"]["message"])

            self.assertEqual(ask(1, kind="open", version="0", seed=seed, units=UNITS), {})
            placement, batches = {unit["name"]: "softmax" for unit in UNITS}, []
            finished = [outcome(placement)]
            for number in range(2, rounds + 2):
                batches.append(ask(number, kind="next", most=most, finished=finished)["placements"])
                finished = [outcome(p) for p in batches[-1]]
        return batches

    def test_the_same_seed_proposes_the_same(self):
        for options in ([], ["NSGAIISampler", "--front"], ["RandomSampler"], ["--batch", "7"]):
            batches = self.speak(*options)
            self.assertEqual({len(b) for b in batches}, {7 if options[:1] == ["--batch"] else 4})
            self.assertEqual(self.speak(*options), batches)
            self.assertNotEqual(self.speak(*options, seed=2), batches)
        self.assertEqual({len(b) for b in self.speak(most=2, rounds=3)}, {2})

    def test_it_learns(self):
        last = [p for batch in self.speak(rounds=20)[-5:] for p in batch]
        self.assertGreater(sum(p["decoder.cross"] == "relu" for p in last), len(last) / 2)
        self.assertIn({unit["name"]: "relu" for unit in UNITS}, last)
        # Without a value that ranks, quality counts, which is the other way round here.
        unranked = self.speak(rounds=20, outcome=lambda p: {**outcome(p), "rank": None})
        last = [p for batch in unranked[-5:] for p in batch]
        self.assertGreater(sum("relu" not in p.values() for p in last), len(last) / 2)

    def test_what_it_refuses(self):
        for options, said in ((["NoSampler"], "optuna.samplers has no NoSampler; it has "), (["GridSampler"], "GridSampler: ")):
            with self.assertRaisesRegex(AssertionError, said):
                self.speak(*options)

    def test_the_sample_model(self):
        lists = (SAMPLE.parent / "dev.tsv").read_text().splitlines()[:24]
        (self.folder / "dev.tsv").write_text("\n".join(lists) + "\n")
        (self.folder / "test.tsv").write_text("\n".join(lists[:4]) + "\n")
        options = ["--sampler", shlex.join(OPTUNA), "--trials", "10", "--data", self.folder / "dev.tsv", "--test", self.folder / "test.tsv"]
        self.search(*options, model=SAMPLE)
        document = self.result()
        self.check_result(document)
        self.assertEqual(document["proposed"], 10)
        self.assertTrue(document["answer"]["placement"])
        self.runs("half past three")
        # Every proposal is in the journal, so nothing is asked or measured again.
        before = self.journal()
        self.search(*options, "--resume", model=SAMPLE)
        self.assertEqual(self.journal(), before)

    def test_a_kill_changes_nothing(self):
        # Ranked by quality, so that timings have no say in what is proposed.
        options = ["--sampler", shlex.join([*OPTUNA, "--batch", "2"]), "--rank", "quality", "--trials", "14",
                   *(word for unit in UNITS for word in ("--space", f"{unit['name']}={','.join(unit['choices'])}"))]
        self.search(*options)
        whole = {p["id"] for p in self.result()["placements"]}
        self.assertEqual(len(whole), 14)
        self.out = self.folder / "killed"
        process = self.start(*options, "--progress", "none")
        journal = self.out / "journal.jsonl"
        while process.poll() is None and (not journal.exists() or journal.read_text().count('"proposed|') < 8):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        before = self.whole_lines()
        self.assertLess(sum(line.get("key", "").startswith("proposed|") for line in before), 14)
        self.search(*options, "--resume")
        self.assertEqual(self.journal()[:len(before)], before)
        self.assertEqual({p["id"] for p in self.result()["placements"]}, whole)

    def test_without_optuna(self):
        (self.folder / "optuna.py").write_text("raise ImportError('none')")
        command = shlex.join(["env", f"PYTHONPATH={self.folder}:{self.package()}", *OPTUNA])
        said = self.search("--sampler", command, code=6).err
        self.assertIn(": attnkit.optuna needs Optuna: pip install optuna, for the Python that runs it\n", said)

    def package(self):
        import attnkit
        return pathlib.Path(attnkit.__file__).parents[1]


if __name__ == "__main__":
    unittest.main()
