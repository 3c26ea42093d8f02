"""The common part of the tests of attnkit search: tiny models with data beside them, and searches that are quick."""

import json
import os
import pathlib
import random
import re
import subprocess
import time

import tiny_model
from command import COMMAND, CommandTest

PLUGINS = os.environ.get("ATTNKIT_TEST_PLUGINS", "")
QUICK = {"--lengths": "16,32", "--length": "32", "--screen": "20", "--finalists": "1", "--repetitions": "1"}
ROLES = tiny_model.ROLES["encoder-decoder"]
SPACE = {role: ["softmax", "relu"] for role in ROLES}


def search_table(space, **keys):
    """[search] as a manifest has it."""
    keys = {"data": "data.tsv", "baseline": "softmax", **keys}
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if value is not None]
    roles = ", ".join(f"{json.dumps(role)} = {json.dumps(names)}" for role, names in space.items())
    return "[search]\n" + "\n".join(lines) + f"\nspace = {{ {roles} }}\n"


def in_shards(model):
    """The model's weights by an index, as those of several files are."""
    raw = (model.parent / "tiny.safetensors").read_bytes()
    names = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    (model.parent / "index.json").write_text(json.dumps({"weight_map": {name: "tiny.safetensors" for name in names}}))
    model.write_text(re.sub(r"file = .*\nsha256 = .*\n", 'file = "index.json"\n', model.read_text()))


def texts(count, seed=1):
    words = random.Random(seed)
    return [" ".join(words.choices(tiny_model.WORDS[:7], k=words.randint(1, 9))) for _ in range(count)]


def pairs(count, seed=1):
    return "".join(f"{a}\t{b}\n" for a, b in zip(texts(count, seed), texts(count, seed + 1)))


def quick(options):
    """The options after those of a quick search that are not among them."""
    return [word for pair in QUICK.items() if pair[0] not in options for word in pair] + [str(o) for o in options]


def descendants(pid):
    """Of this process and of those that it started; a worker leads a group of its own, so /proc is asked."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found, new = set(), {pid}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in new} - found
    return found - {pid}


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class SearchTest(CommandTest):
    """A tiny model with data.tsv beside it, and a folder for what the search writes."""

    def setUp(self):
        super().setUp()
        self.out = self.folder / "out"
        self.model = self.tiny("model", search_table(SPACE))

    def tiny(self, name, extra, data=None, **options):
        model = tiny_model.write_model(self.folder / name, extra=extra, **options)
        (model.parent / "data.tsv").write_text(pairs(30) if data is None else data)
        return model

    def search(self, *options, code=0, model=None, out=None, **more):
        return self.run_code(code, "search", model or self.model, "-o", out or self.out, "--progress", "none",
                             *quick(options), **more)

    def result(self, out=None):
        return json.loads(((out or self.out) / "result.json").read_text())

    def journal(self, out=None):
        return [json.loads(line) for line in ((out or self.out) / "journal.jsonl").read_text().splitlines()]

    def whole_lines(self):
        """Of a journal whose last line may be cut."""
        return [json.loads(line) for line in (self.out / "journal.jsonl").read_bytes().split(b"\n")[:-1]]

    def start(self, *options, out=None, **more):
        return subprocess.Popen([COMMAND, "search", self.model, "-o", out or self.out, *quick(options)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)

    def wait_for_trials(self, count, process, out=None):
        journal = (out or self.out) / "journal.jsonl"
        for _ in range(3000):
            if journal.exists() and journal.read_bytes().count(b"\n") > count:
                return
            if process.poll() is not None:
                self.fail(f"ended with {process.returncode} before {count} trials: {process.communicate()}")
            time.sleep(0.01)
        self.fail(f"no {count} trials within 30 s")

    def check_result(self, document):
        self.assertEqual((document["schema"], document["status"]), ("attnkit.search/1", "done"))
        placements = document["placements"]
        ids = [p["id"] for p in placements]
        self.assertEqual(len(ids), len(set(ids)))
        ranks = [p["rank"] for p in placements if p["rank"] is not None]
        self.assertEqual(ranks, list(range(1, len(ranks) + 1)))
        self.assertEqual(sum(p["baseline"] for p in placements), 1)
        self.assertIn(document["settings"]["baseline"], ids)
        for p in placements:
            self.assertEqual(p["rank"] is not None, p["status"] == "ranked", p)
            self.assertEqual(p["reason"] is not None, p["status"] != "ranked", p)
            if p["status"] == "ranked":
                quality = p["quality"]
                self.assertTrue(quality["low"] <= quality["value"] <= quality["high"], quality)
                self.assertIn(document["settings"]["length"], [at["length"] for at in p["cost"]["at"]])
        winner = document["answer"]["placement"]
        if winner:
            self.assertEqual(next(p["id"] for p in placements if p["rank"] == 1), winner)
            self.assertTrue(document["answer"]["text"].startswith(f"At {document['settings']['length']} tokens, "))
            self.assertEqual(document["top_group"], [p["id"] for p in sorted(placements, key=lambda p: p["rank"] or 1000) if p["top"]])
            self.assertEqual((document["top_group"][0], document["answer"]["tied"]), (winner, len(document["top_group"])))

    def runs(self, text="one two"):
        """The winner runs unchanged, from its folder and from elsewhere."""
        here = self.run_ok("run", "winner.toml", "--text", text, cwd=self.out)
        there = self.run_ok("run", self.out / "winner.toml", "--text", text, cwd="/")
        self.assertEqual(here.out, there.out)
