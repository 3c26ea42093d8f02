"""attnkit search, driven as users drive it: what it writes, what it refuses, and what it survives."""

import html
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
import unittest

import tiny_model
from command import COMMAND, SAMPLE, CommandTest, attnkit

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
            best = min((p for p in placements if p["finalist"] and p["rank"]), key=lambda p: p["rank"])
            self.assertEqual(best["id"], winner)
            self.assertTrue(document["answer"]["text"].startswith(f"at {document['settings']['length']} tokens: "))

    def runs(self, text="one two"):
        """The winner runs unchanged, from its folder and from elsewhere."""
        here = self.run_ok("run", "winner.toml", "--text", text, cwd=self.out)
        there = self.run_ok("run", self.out / "winner.toml", "--text", text, cwd="/")
        self.assertEqual(here.out, there.out)


class Strategies(SearchTest):
    def test_grid(self):
        said = self.search("--strategy", "grid")
        self.check_result(self.result())
        self.assertEqual(len(self.result()["placements"]), 8)
        self.runs()
        self.assertIn("<svg", (self.out / "report.html").read_text() if shutil.which("gnuplot") else "<svg")
        self.assertIn("at 32 tokens: ", said.out)
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
        self.assertTrue(all("test" in p["greedy"] for p in document["placements"] if p["finalist"] or p["baseline"]))
        self.runs("half past three")

    def test_json_is_one_document(self):
        document = self.search("--json").json()
        self.assertEqual(document, self.result())

    def test_jobs_do_not_change_qualities(self):
        qualities = []
        for jobs in (1, 4):
            self.search("--jobs", jobs, "--strategy", "grid", out=self.folder / str(jobs))
            qualities.append({p["id"]: p["quality"] for p in self.result(self.folder / str(jobs))["placements"]})
            for quality in qualities[-1].values():
                self.assertEqual(quality["lists"], 30 if quality["lists"] > 20 else 20)
        both = [id for id in qualities[0] if qualities[0][id]["lists"] == qualities[1][id]["lists"]]
        self.assertGreater(len(both), 4)  # timings decide which of the others are measured on all lists
        for id in both:
            self.assertEqual(qualities[0][id], qualities[1][id])


class Kinds(SearchTest):
    def test_decoder(self):
        model = self.tiny("decoder", search_table({"decoder.self": ["softmax", "relu", "leap"]}), kind="decoder",
                          data="".join(t + "\n" for t in texts(30)))
        self.search(model=model)
        self.check_result(self.result())
        self.assertEqual(self.result()["settings"]["metric"], "perplexity")

    def test_classifier(self):
        data = "".join(f"{t}\t{n % tiny_model.CLASSES}\n" for n, t in enumerate(texts(30)))
        model = self.tiny("encoder", search_table({"encoder.self": ["softmax", "relu", "leap"]}), kind="encoder",
                          head="classifier", data=data)
        self.search("--metric", "accuracy", model=model)
        self.check_result(self.result())
        self.assertIn("prefill throughput", self.result()["answer"]["text"] + "prefill throughput"
                      if "nothing that was tried" in self.result()["answer"]["text"] else self.result()["answer"]["text"])

    def test_bleu(self):
        # Three rungs, so that placements are compared on lists that the homogeneous ones skip.
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
            self.assertIn("no placement is within the limits", said.out)
            self.assertFalse((self.out / "winner.toml").exists(), "the winner of another search was left there")
            self.assertTrue((self.out / "report.html").exists())


class Usage(SearchTest):
    def test_spaces(self):
        everything = self.search("--space", "encoder.self=all", "--space", "decoder.self=softmax", "--space",
                                 "decoder.cross=softmax", "--strategy", "grid")
        self.assertLessEqual({"softmax", "relu", "cosformer", "leap"},
                             {p["blocks"]["encoder.self"][0] for p in self.result()["placements"]})
        self.assertIn("decoder.cross", everything.out)

    def test_a_role_that_is_left_out_stays_as_it_is(self):
        model = self.tiny("plain", "")
        self.search("--data", self.model.parent / "data.tsv", "--space", "encoder.self=softmax,relu", "--baseline",
                    "softmax", model=model)
        self.assertEqual([p["blocks"]["decoder.self"] for p in self.result()["placements"]], [["softmax"]] * 2)

    def test_mistakes(self):
        plain = self.tiny("plain", "")
        data = ["--data", self.model.parent / "data.tsv"]
        for options, message in [
                (["--space", "encoder.self=softmax,nope"], 'no mechanism "nope" is loaded; there are cosformer, '),
                (["--space", "elbow=softmax,relu"], "it has encoder.self, decoder.self, decoder.cross"),
                (["--space", "encoder.self=softmax,softmax"], '"softmax" is named twice'),
                (["--space", "encoder.self=softmax,"], 'no mechanism "" is loaded'),
                (["--space", "encoder.self="], "must be ROLE=NAME,NAME,... or ROLE=all"),
                (["--space", "encoder.self"], "must be ROLE=NAME,NAME,... or ROLE=all"),
                (["--space", "encoder.self=relu", "--space", "encoder.self=softmax"], "encoder.self is given twice"),
                ([word for role in ROLES for word in ("--space", f"{role}=softmax")], "nothing to choose from"),
                (["--baseline", "nope"], '--baseline: no mechanism "nope"'), (["--frobnicate"], "--frobnicate"),
                (["--max-state", "1"], "KiB"), (["--lengths", "16,"], "--lengths"), (["--strategy", "best"], "grid")]:
            said = self.search(*options, code=2)
            self.assertIn(message, said.err)
            self.assertEqual(said.err.count("attnkit: "), 1)
        self.assertIn("--data FILE", self.search(model=plain, code=2).err)
        self.assertIn("nothing to choose from", self.search(*data, model=plain, code=2).err)
        self.assertFalse(self.out.exists(), "a mistake leaves no folder")

    def test_data(self):
        for data, message in [("", "is empty"), ("one two\tzwei\nthree\n", "data.tsv:2: has no tab"),
                              ("one\teins\n\nfour\tvier\n", "data.tsv:2"), ("one\teins\n\teins\n", "data.tsv:2"),
                              ("one nine\teins\n", 'data.tsv:1: the input: '), ("one\teins\tzwei\n", "data.tsv:1")]:
            (self.model.parent / "data.tsv").write_text(data)
            self.assertIn(message, self.search(code=6).err)
        self.assertIn("nowhere.tsv", self.search("--data", "nowhere.tsv", code=6).err)
        self.assertIn(str(self.folder), self.search("--data", self.folder, code=6).err)
        # Nothing was measured, so nothing stands in the way; lines may end as on Windows.
        (self.model.parent / "data.tsv").write_bytes(pairs(30).replace("\n", "\r\n").encode())
        self.search()

    def test_refusals(self):
        # Alone: what a refusal suggests instead is asked of every plugin, and some of these do not survive that.
        (self.folder / "plugins").mkdir()
        shutil.copy(pathlib.Path(PLUGINS) / "chatter.so", self.folder / "plugins")
        plugins = ["--plugin-dir", self.folder / "plugins"]
        model = self.tiny("m", search_table({role: ["softmax", "relu", "chatter"] for role in ROLES}))
        self.search(*plugins, model=model)
        refused = {r["block"]: (r["choice"], r["reason"]) for r in self.result()["refused"]}
        self.assertEqual(refused["decoder.self"][0], "chatter")
        self.assertIn("the mean of the past is not implemented", refused["decoder.self"][1])
        self.assertFalse([p for p in self.result()["placements"] if "chatter" in p["blocks"]["decoder.self"]])
        only = self.search(*plugins, "--space", "decoder.self=chatter", code=2, model=model, out=self.folder / "o2")
        self.assertIn("decoder.self refuses every choice", only.err)
        self.assertIn("the mean of the past", only.err)

    def test_weights_that_were_not_trained_for_a_mechanism(self):
        said = self.search("--plugin-dir", PLUGINS, "--space", "encoder.self=softmax,relu,chatter", "--space",
                           "decoder.self=softmax", "--space", "decoder.cross=softmax", "--data", self.folder / "dev.tsv",
                           "--test", self.folder / "dev.tsv", model=self.sample())
        refused = self.result()["refused"]
        self.assertEqual([(r["block"], r["choice"]) for r in refused], [("encoder.self", "chatter")])
        self.assertIn("chatter", refused[0]["reason"])
        self.assertEqual(len(self.result()["placements"]), 2)
        self.assertIn("chatter", said.out)

    def sample(self):
        (self.folder / "dev.tsv").write_text("\n".join((SAMPLE.parent / "dev.tsv").read_text().splitlines()[:20]) + "\n")
        return SAMPLE

    def test_folders(self):
        (self.folder / "file").write_text("")
        self.assertIn("file", self.search(code=6, out=self.folder / "file").err)
        self.assertIn("file", self.search(code=6, out=self.folder / "file" / "below").err)
        odd = self.folder / "it's a \"folder\" \\ $HOME"
        self.search(out=odd)
        self.run_ok("run", odd / "winner.toml", "--text", "one", cwd="/")
        self.assertIn("--resume continues it", self.search(code=6, out=odd).err)


class Hostile(SearchTest):
    """Plugins that misbehave cost their own trials."""

    def survive(self, name, *options, **more):
        model = self.tiny(name, search_table({"encoder.self": ["softmax", "relu", name]}))
        said = self.search("--plugin-dir", PLUGINS, *options, model=model, out=self.folder / f"out-{name}", **more)
        document = self.result(self.folder / f"out-{name}")
        self.check_result(document)
        self.assertEqual({p["blocks"]["encoder.self"][0] for p in document["placements"] if p["status"] == "ranked"},
                         {"softmax", "relu"} | ({name} if name == "chatter" else set()))
        reasons = [r["reason"] for r in document["refused"]] + \
            [p["reason"] for p in document["placements"] if p["reason"]]
        page = (self.folder / f"out-{name}" / "report.html").read_text()
        page = html.unescape(page)
        for reason in reasons:
            self.assertIn(reason.split(" (")[0], page)
            self.assertIn(reason.split(" (")[0], " ".join(said.out.split()))
        return " ".join(reasons)

    def test_crashes(self):
        for name in ("crash_create", "crash_plan", "crash_run"):
            self.assertIn("killed by signal 11 (Segmentation fault)", self.survive(name))
        self.assertIn("ended with code 0", self.survive("exit_run"))

    def test_hangs(self):
        self.assertIn("timed out: no reply within 1.5 s", self.survive("hang_run", "--trial-timeout", "1.5"))

    def test_numbers(self):
        self.assertIn("not finite", self.survive("nan_run"))

    def test_chatter(self):
        self.assertEqual(self.survive("chatter"), "")
        self.assertIn("what a plugin says", (self.folder / "out-chatter" / "workers.log").read_text())

    def test_memory(self):
        limit = 3 << 30
        reason = self.survive("hungry", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertIn("killed by signal", reason)

    def test_baselines(self):
        model = self.tiny("b", search_table({"encoder.self": ["softmax", "crash_run"]}, baseline=None))
        for name, part in (("crash_run", "killed by signal 11"), ("crash_create", "killed by signal 11")):
            said = self.search("--plugin-dir", PLUGINS, "--space", "encoder.self=relu,softmax", "--baseline", name, model=model,
                               code=3, out=self.folder / name)
            self.assertIn("the baseline", said.err)

    def test_too_little_time(self):
        said = self.search("--plugin-dir", PLUGINS, "--baseline", "hang_run", "--trial-timeout", "0.2", code=3,
                           model=self.tiny("h", search_table({"encoder.self": ["softmax", "relu"]}, baseline=None)))
        self.assertRegex(said.err, "the baseline .* cannot be .*")


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
        for _ in range(6):
            process = self.start(*options, *resume, "--progress", "none")
            try:
                process.wait(rng.uniform(0.05, 0.7))
            except subprocess.TimeoutExpired:
                pass
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
