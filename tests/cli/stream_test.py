"""attnkit stream: events, policies, outputs, quality, latency as the golden scorer has it, wrong use, interruption."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
import unittest

import tiny_model
from command import COMMAND, SAMPLE, CommandTest

TEXTS = ["one two three", "four", "two two-s seven six", "Ü", "seven six five four three two one"]
PHRASE, GERMAN = "two hundred and forty-one euros", "zweihunderteinundvierzig Euro"


def lagging(delays, source, target):
    """AL as SimulEval computes it; tests/core/stream holds core's own to SimulEval's numbers."""
    if delays[0] > source:
        return delays[0]
    total, tau = 0, 0
    for i, d in enumerate(delays):
        total += d - i * source / target
        tau = i + 1
        if d >= source:
            break
    return total / tau


def differentiable(delays, source):
    total, last, gamma = 0, 0, len(delays) / source
    for i, d in enumerate(delays):
        last = max(d, last + 1 / gamma) if i else d
        total += last - i / gamma
    return total / len(delays)


class Offline(CommandTest):
    def test_is_what_run_gives(self):
        model = tiny_model.write_model(self.folder / "model")
        texts = [o for t in TEXTS for o in ("--text", t)]
        for unit in ("word", "token"):
            result = self.run_ok("stream", model, "--policy", "offline", "--unit", unit, *texts)
            self.assertEqual(result.out, self.run_ok("run", model, *texts).out)

    def test_events(self):
        result = self.run_ok("stream", SAMPLE, "--policy", "offline", "--text", PHRASE, "--events", "-")
        events = [json.loads(line) for line in result.lines()]
        self.assertEqual([e["action"] for e in events], ["READ"] * 5 + ["WRITE"] * 7 + ["END"])
        self.assertEqual([e["text"] for e in events[:5]], PHRASE.split())
        self.assertEqual([e["source_words"] for e in events[:-1]], [1, 2, 3, 4] + [5] * 8)
        self.assertEqual([e["written"] for e in events[:-1]], [0] * 5 + list(range(1, 8)))
        seconds = [e["seconds"] for e in events]
        self.assertEqual(seconds, sorted(seconds))
        self.assertEqual((events[-1]["output"], events[-1]["finished"]), (GERMAN, True))
        (self.folder / "events.jsonl").write_text("old")
        again = self.run_ok("stream", SAMPLE, "--policy", "offline", "--text", PHRASE, "--events", self.folder / "events.jsonl")
        self.assertEqual(again.out, GERMAN + "\n")
        strip = [{k: v for k, v in json.loads(line).items() if k != "seconds"}
                 for line in (self.folder / "events.jsonl").read_text().splitlines()]
        self.assertEqual(strip, [{k: v for k, v in e.items() if k != "seconds"} for e in events])

    def test_quality_and_latency(self):
        result = self.run_ok("stream", SAMPLE, "--policy", "offline", "--text", PHRASE, "--target", " " + GERMAN,
                             "--text", "half past three", "--target", "halb drei", "--json")
        document = result.json()
        self.assertEqual((document["schema"], document["policy"], document["unit"]), ("attnkit.stream/1", "offline", "word"))
        self.assertEqual([r["exact"] for r in document["results"]], [True, False])
        self.assertEqual(document["results"][0]["delays"], [5, 5])
        summary = document["summary"]
        self.assertEqual((summary["exact_match"], summary["reads"], summary["latency"]["al"]), (0.5, 8, 4))
        self.assertGreater(summary["computation_aware"]["al"], 4)
        self.assertIn("exact match 1 of 2 (50.0 %)", result.err)

    def test_how_long_a_word_lasts(self):
        elapsed = [self.run_ok("stream", SAMPLE, "--policy", "offline", "--text", PHRASE, "--json", "--word-ms", ms)
                   .json()["results"][0]["elapsed"][0] - 5 for ms in (1, 3600000)]
        self.assertGreater(elapsed[0], 1000 * elapsed[1])

    def test_nothing_to_say(self):
        model = tiny_model.write_model(self.folder / "model")
        result = self.run_ok("stream", model, "--policy", "offline", "--text", "", "--text", " \t")
        self.assertEqual(result.out, "\n\n")
        document = self.run_ok("stream", model, "--policy", "offline", "--text", "", "--target", "drei", "--json").json()
        self.assertIsNone(document["summary"]["latency"])
        self.assertEqual(document["results"][0]["delays"], [])
        self.assertEqual(self.run_ok("stream", model, "--policy", "offline", "--file", "-").out, "")

    def test_limit_and_output_file(self):
        model = tiny_model.write_model(self.folder / "model")
        result = self.run_ok("stream", model, "--policy", "offline", "--text", TEXTS[0], "--limit", 1, "-o", self.folder / "out.txt")
        self.assertEqual(result.out, "")
        self.assertEqual((self.folder / "out.txt").read_text(),
                         self.run_ok("run", model, "--text", TEXTS[0], "--limit", 1).out)

    def test_reference_lengths(self):
        model = tiny_model.write_model(self.folder / "told", attention='default = "cosformer"', extra='[length]\npredict = "reference"\n')
        told = self.run_ok("stream", model, "--policy", "offline", "--text", "one two", "--target", "zwei eins")
        self.assertEqual(told.out, self.run_ok("run", model, "--text", "one two", "--target", "zwei eins").out)
        self.assertIn("length", self.run_code(6, "stream", model, "--policy", "offline", "--text", "one two").err)


class WaitK(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_model(self.folder / "model")
        self.texts = [o for t in TEXTS for o in ("--text", t)]

    def events(self, *options):
        return [json.loads(line) for line in self.run_ok("stream", *options, "--events", "-").lines()]

    def test_reads_before_it_writes(self):
        for name, k, step in (("wait-k:1", 1, 1), ("wait-k:3", 3, 1), ("wait-k:2:2", 2, 2)):
            for unit in ("word", "token"):
                units = 7 + (unit == "token")  # </s> comes with the last word, or by itself
                events = self.events(self.model, "--policy", name, "--unit", unit, "--text", TEXTS[-1])
                writes = [e for e in events if e["action"] == "WRITE"]
                self.assertTrue(writes)
                for i, e in enumerate(writes):
                    self.assertEqual(e["read"], min((k + i) * step, units))

    def test_waiting_for_all_is_offline(self):
        offline = self.run_ok("stream", self.model, "--policy", "offline", *self.texts).out
        for policy in ("wait-k:64", "wait-k:1:64"):
            self.assertEqual(self.run_ok("stream", self.model, "--policy", policy, *self.texts).out, offline)

    def test_latency_is_that_of_the_log(self):
        references = [o for t in TEXTS for o in ("--target", "drei zwei eins")]
        for options in (references, []):
            document = self.run_ok("stream", self.model, "--policy", "wait-k:1", *self.texts, *options, "--json").json()
            al = []
            for r in document["results"]:
                if not r["delays"]:
                    continue
                words = len(r["output"].split())
                self.assertEqual((len(r["delays"]), len(r["elapsed"])), (words, words))
                target = r.get("reference_length", words)
                for delays, scores in ((r["delays"], r["latency"]), (r["elapsed"], r["computation_aware"])):
                    self.assertAlmostEqual(scores["al"], lagging(delays, r["source_length"], target))
                    self.assertAlmostEqual(scores["laal"], lagging(delays, r["source_length"], max(words, target)))
                    self.assertAlmostEqual(scores["dal"], differentiable(delays, r["source_length"]))
                al.append(r["latency"]["al"])
            self.assertAlmostEqual(document["summary"]["latency"]["al"], sum(al) / len(al))

    def test_policy_of_the_manifest(self):
        for table, name in (('policy = "offline"', "offline"), ("k = 2", "wait-k:2"), ("k = 2\npre_decision = 3", "wait-k:2:3")):
            model = tiny_model.write_model(self.folder / "streams", extra=f"[stream]\n{table}\n")
            document = self.run_ok("stream", model, "--text", "one two three four", "--json").json()
            self.assertEqual(document["policy"], name)
            other = self.run_ok("stream", model, "--text", "one", "--policy", "wait-k:5", "--json").json()
            self.assertEqual(other["policy"], "wait-k:5")
            self.assertIn("--replay", self.run_code(2, "stream", model, "--text", "one", "--replay").err)

    def test_mechanisms_that_cannot_wait(self):
        attention = 'default = "softmax"\n"decoder.cross" = "cosformer"'
        model = tiny_model.write_model(self.folder / "cos", attention=attention, extra='[length]\npredict = "fixed"\nlength = 8\n')
        refused = self.run_code(3, "stream", model, "--policy", "wait-k:3", "--text", "one two")
        self.assertIn("under [stream]", refused.err)
        self.run_ok("stream", model, "--policy", "offline", "--text", "one two")
        result = self.run_ok("stream", model, "--policy", "wait-k:1", "--replay", *self.texts, "--json")
        self.assertGreater(result.json()["summary"]["keys_replayed"], 0)

    def test_costs_of_a_growing_source(self):
        summary = self.run_ok("stream", self.model, "--policy", "wait-k:1", "--text", TEXTS[0], "--json").json()["summary"]
        self.assertGreater(summary["tokens_encoded_again"], 0)


class Guide(CommandTest):
    """docs/stream.md shows one command and what it says."""

    def test_shows_what_the_command_says(self):
        source = SAMPLE.parents[3]
        command, shown = re.findall(r"(?ms)^```(?:sh|)\n(.*?)^```$", (source / "docs/stream.md").read_text())[:2]
        program, *arguments = shlex.split(command)
        self.assertEqual(program, "attnkit")
        result = self.run_ok(*arguments, cwd=source)
        # Times differ from run to run.
        timeless = [line for line in (result.out + result.err).splitlines() if not re.search(r" out in |^and computed", line)]
        self.assertEqual(timeless, [line for line in shown.splitlines() if not re.search(r" out in |^and computed", line)])


class WrongUse(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_model(self.folder / "model")

    def test_options(self):
        for options, part in [(["--text", "one"], "wait-k:3"), (["--policy", "wait-k:0", "--text", "one"], "must be 1"),
                              (["--policy", "wait-3", "--text", "one"], "is no policy"), (["--policy", "offline"], "--text"),
                              (["--policy", "offline", "--text", "one", "--unit", "wrd"], "word"),
                              (["--policy", "offline", "--text", "one", "--word-ms", "0"], "word-ms"),
                              (["--policy", "offline", "--text", "one", "--events", "-", "--json"], "--events"),
                              (["--policy", "offline", "--text", "one", "-o", "-", "--json"], "--output"),
                              (["--policy", "offline", "--text", "one", "-o", "-", "--events", "-"], "same"),
                              (["--policy", "offline", "--text", "one", "--text", "two", "--target", "drei"], "references")]:
            result = self.run_code(2, "stream", self.model, *options)
            self.assertIn(part, result.err)
            self.assertEqual(result.out, "" if "--json" not in options else result.out)

    def test_events_and_outputs_in_one_file(self):
        (self.folder / "link").symlink_to("e")
        for there in (False, True):
            if there:
                (self.folder / "e").write_text("before")
            for events in ("e", "./e", "link", self.folder / "e"):
                result = self.run_code(2, "stream", self.model, "--policy", "offline", "--text", "one", "--events", events, "-o", "e",
                                       cwd=self.folder)
                self.assertIn("--events and --output cannot be the same", result.err)
        self.assertEqual((self.folder / "e").read_text(), "before")

    def test_models_without_two_sides(self):
        for kind, head in (("decoder", "lm"), ("encoder", "classifier")):
            model = tiny_model.write_model(self.folder / kind, kind=kind, head=head)
            self.assertIn("encoder-decoder", self.run_code(2, "stream", model, "--policy", "offline", "--text", "one").err)

    def test_bad_texts(self):
        for text, part in [("one nine", 'cannot spell the word "nine"'), ("one " * 64, "65 tokens")]:
            self.assertIn(part, self.run_code(6, "stream", self.model, "--policy", "offline", "--text", text).err)
        self.run_code(6, "stream", self.model, "--policy", "offline", "--file", self.folder / "missing")
        self.run_code(6, "stream", self.folder / "missing.toml", "--policy", "offline", "--text", "one")
        self.run_code(6, "stream", self.model, "--policy", "offline", "--file", "-", "--target-file", "/dev/null", stdin=b"one\n")

    def test_never_an_input(self):
        for path in (self.model, self.model.parent / "vocab.txt"):
            before = path.read_bytes()
            for option in ("--output", "--events"):
                result = self.run_code(2, "stream", self.model, "--policy", "offline", "--text", "one", option, path)
                self.assertIn(f"{option} ", result.err)
            self.assertEqual(path.read_bytes(), before)
        self.run_code(6, "stream", self.model, "--policy", "offline", "--text", "one", "--events", self.folder)

    def test_bad_manifest(self):
        bad = self.model.with_name("bad.toml")
        bad.write_text(self.model.read_text() + "\n[strean]\n")
        result = self.run_code(3, "stream", bad, "--policy", "offline", "--text", "one")
        self.assertIn("AK101", result.err)

    def test_nan_weights(self):
        def spoil(weights):
            weights.add("decoder.norm.weight", [tiny_model.WIDTH], float("nan"))
        model = tiny_model.write_model(self.folder / "nan", damage=spoil)
        self.assertIn("not numbers", self.run_code(7, "stream", model, "--policy", "offline", "--text", "one").err)

    def test_standard_output_full_or_closed(self):
        arguments = [COMMAND, "stream", self.model, "--policy", "offline", "--text", "one"]
        for more in ([], ["--events", "-"], ["--json"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([*arguments, *more], stdout=full, stderr=subprocess.PIPE, check=False)
            self.assertEqual(done.returncode, 6, done.stderr)
            self.assertIn(b"standard output", done.stderr)
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run([*arguments, *more], stdout=writer, stderr=subprocess.PIPE, check=False)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (6, b""))

    def test_interrupted_while_decoding(self):
        lines, out, events = self.folder / "in.txt", self.folder / "out.txt", self.folder / "events.jsonl"
        lines.write_text("one two three four five six seven\n" * 200000)
        child = subprocess.Popen([COMMAND, "stream", self.model, "--policy", "offline", "--file", lines, "-o", out,
                                  "--events", events], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130, err)
        self.assertIn(b"interrupted", err)
        self.assertFalse(out.exists() or events.exists())


if __name__ == "__main__":
    unittest.main()
