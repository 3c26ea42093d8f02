"""The SimulEval agents against what SimulEval 1.1.4 logged of them (golden/simuleval.py), and both against attnkit stream."""

import argparse
import contextlib
import io
import json
import pathlib
import unittest
from unittest import mock

import attnkit
import stand_in_simuleval
from attnkit import incremental, simuleval
from stand_in_speech import LENGTH, RATE, SHIFT, SUBSAMPLING, SpeechModel, SpeechSession
from support import RUNTIME, SAMPLE, PackageTest, stream_test

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden").joinpath("simuleval.json").read_text(encoding="utf-8"))
STREAM_MD = pathlib.Path(__file__).resolve().parents[2] / "docs/stream.md"
PAIRS = [line.split("\t") for line in (SAMPLE.parent / "dev.tsv").read_text(encoding="utf-8").splitlines()[::40]]


def arguments(*options, model=SAMPLE):
    parser = argparse.ArgumentParser()
    simuleval.Agent.add_args(parser)
    return parser.parse_args(["--attnkit-model", str(model), *options])


def text_agent(*options, model=SAMPLE):
    return simuleval.TextAgent(arguments(*options, model=model))


class Golden(PackageTest):
    model = attnkit.Model(RUNTIME, SAMPLE)

    def test_the_agent_does_what_simuleval_logged(self):
        for policy, golden in GOLDEN.items():
            agent = text_agent("--policy", policy)
            self.assertEqual(len(golden["instances"]), len(PAIRS))
            for (text, _), logged in zip(PAIRS, golden["instances"]):
                instance = stand_in_simuleval.evaluate_text(agent, text)
                self.assertEqual((" ".join(instance.prediction), instance.delays), (logged["prediction"], logged["delays"]), text)

    def stream(self, policy):
        """The output of attnkit stream for the lists: a summary, and the events of each."""
        for side, name in enumerate(("source.txt", "target.txt")):
            (self.folder / name).write_text("".join(pair[side] + "\n" for pair in PAIRS), encoding="utf-8")
        document = self.run_ok("stream", SAMPLE, "--policy", policy, "--file", self.folder / "source.txt", "--target-file",
                               self.folder / "target.txt", "--events", self.folder / "events", "--json").json()
        events = [[] for _ in PAIRS]
        for event in map(json.loads, (self.folder / "events").read_text(encoding="utf-8").splitlines()):
            events[event["input"]].append(event)
        return document["summary"], events

    def test_simuleval_logged_what_attnkit_stream_does(self):
        rows = []
        for policy, golden in GOLDEN.items():
            summary, events = self.stream(policy)
            for (*actions, end), logged in zip(events, golden["instances"]):
                self.assertEqual((end["output"], end["finished"]), (logged["prediction"], True))
                self.assertEqual(self.handed_over([e for e in actions if e["action"] == "WRITE"]), logged["delays"])
            self.assertEqual(round(summary["bleu"], 2), golden["scores"]["BLEU"])
            scores = [x for name in ("AL", "LAAL", "DAL") for x in (golden["scores"][name], summary["latency"][name.lower()])]
            rows.append(f"| {policy} | {summary['bleu']:.2f} | " + " | ".join(f"{score:.3f}" for score in scores) + " |\n")
        self.assertIn("".join(rows), STREAM_MD.read_text(encoding="utf-8"))

    def handed_over(self, writes):
        """When each word could be said: with the token that begins the next one, or the end."""
        delays = []
        for i, write in enumerate(writes):
            words = len(self.model.detokenize(attnkit.TARGET, [w["id"] for w in writes[:i + 1]]).split())
            known = words if i == len(writes) - 1 else words - 1
            delays += [write["source_words"]] * (known - len(delays))
        return delays

    def test_scores(self):
        for golden in GOLDEN.values():
            al, laal, dal = [], [], []
            for (text, reference), logged in zip(PAIRS, golden["instances"]):
                delays, source, target = logged["delays"], len(text.split()), len(reference.split())
                al.append(stream_test.lagging(delays, source, target))
                laal.append(stream_test.lagging(delays, source, max(target, len(delays))))
                dal.append(stream_test.differentiable(delays, source))
            for name, values in (("AL", al), ("LAAL", laal), ("DAL", dal)):
                self.assertAlmostEqual(sum(values) / len(values), golden["scores"][name], delta=5.1e-4)


class Text(PackageTest):
    def test_ways_to_say_the_policy(self):
        for options, name in ((["--policy", "wait-k:2:3"], "wait-k:2:3"), (["--waitk", "2", "--pre-decision", "3"], "wait-k:2:3"),
                              (["--waitk", "4"], "wait-k:4"), (["--policy", "offline"], "offline")):
            self.assertEqual(str(text_agent(*options).decide), name)
        self.refused("--pre-decision needs --waitk", text_agent, "--policy", "wait-k:2", "--pre-decision", "3")
        self.refused("who decides", text_agent)
        self.refused("is no policy", text_agent, "--policy", "wait-3")
        self.refused("must be 1", text_agent, "--waitk", "0")
        self.refused("must be 1", text_agent, "--waitk", "1", "--pre-decision", "0")
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            text_agent("--policy", "offline", "--waitk", "2")

    def test_empty_line(self):
        instance = stand_in_simuleval.evaluate_text(text_agent("--waitk", "2"), "")
        self.assertEqual((instance.prediction, instance.finished), ([], True))

    def test_inputs_do_not_mix(self):
        agent, (text, _), (other, _) = text_agent("--waitk", "2"), PAIRS[10], PAIRS[11]
        alone = stand_in_simuleval.evaluate_text(agent, text).prediction
        agent.pushpop(other.split(), False)
        self.assertEqual(stand_in_simuleval.evaluate_text(agent, text).prediction, alone)
        first, second = agent.build_states(), agent.build_states()
        for states, source in ((first, text), (second, other)):
            states.source, states.source_finished = source.split(), True
        self.assertEqual([agent.policy(states).content.split() for states in (second, first)],
                         [stand_in_simuleval.evaluate_text(text_agent("--policy", "wait-k:2"), source).prediction
                          for source in (other, text)])

    def test_refusals(self):
        self.refused("cannot spell", stand_in_simuleval.evaluate_text, text_agent("--waitk", "2"), "two zebras")
        self.refused("missing.toml", text_agent, "--waitk", "2", model="missing.toml")
        self.refused("takes text", simuleval.SpeechAgent, arguments("--waitk", "2"))

    def test_limit(self):
        agent = text_agent("--waitk", "1", "--limit", "1")
        self.assertEqual(stand_in_simuleval.evaluate_text(agent, "two euros").delays, [1])


class Speech(PackageTest):
    SAMPLES = [i % 97 / 97 for i in range(50000)]

    def agent(self, *options, early=False):
        model = SpeechModel(early)
        patch = mock.patch.object(simuleval, "open_streaming", lambda _, path, policy, replay: (model, policy))
        with patch:
            agent = simuleval.SpeechAgent(arguments(*options))
        patch = mock.patch.object(incremental, "Session", SpeechSession)
        patch.start()
        self.addCleanup(patch.stop)
        return agent

    def test_words_come_as_the_policy_says(self):
        for k, step in ((1, 7), (3, 7), (5, 2)):
            agent = self.agent("--waitk", str(k), "--pre-decision", str(step))
            for segment in (640, 4480, 5000, 50000):
                instance = stand_in_simuleval.evaluate_speech(agent, self.SAMPLES, RATE, segment)
                self.assertGreater(len(instance.delays), 5)
                self.assertTrue(instance.finished)
                for i, delay in enumerate(instance.delays):
                    # Word i is said with the token behind it, which needs so many positions.
                    needed = (k + i + 1) * step
                    samples = LENGTH + (needed * SUBSAMPLING - 1) * SHIFT
                    self.assertEqual(delay, min(-(-samples // segment) * segment, len(self.SAMPLES)))

    def test_hears_all_of_it_once(self):
        agent = self.agent("--policy", "wait-k:2:7")
        said = [stand_in_simuleval.evaluate_speech(agent, self.SAMPLES, RATE, segment).prediction for segment in (160, 4480, 50000)]
        self.assertEqual(said[0], said[1])
        self.assertEqual(said[0], said[2])
        self.assertEqual([len(samples) for samples, _ in agent.model.session.reads][:2],
                         [LENGTH + (14 * SUBSAMPLING - 1) * SHIFT, 7 * SUBSAMPLING * SHIFT])
        self.assertEqual(sum(len(samples) for samples, _ in agent.model.session.reads), len(self.SAMPLES))

    def test_an_early_end_waits_for_the_source(self):
        instance = stand_in_simuleval.evaluate_speech(self.agent("--policy", "wait-k:1:7", early=True), self.SAMPLES, RATE, 4480)
        self.assertEqual((len(instance.prediction), instance.finished), (3, True))
        self.assertLess(instance.delays[-1], len(self.SAMPLES))

    def test_refusals(self):
        agent = self.agent("--waitk", "1")
        self.refused("44100 samples per second", stand_in_simuleval.evaluate_speech, agent, self.SAMPLES, 44100, 4480)
        with mock.patch.object(simuleval, "open_streaming", lambda _, path, policy, replay: (SpeechModel(), policy)):
            self.refused("takes speech", text_agent, "--waitk", "1")


if __name__ == "__main__":
    unittest.main()
