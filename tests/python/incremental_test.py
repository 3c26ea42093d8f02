"""Incremental against attnkit_session_simulate and attnkit stream: the same decisions, whatever the source's pieces."""

import array
import json
import pathlib
import types
import unittest
from unittest import mock

import attnkit
from attnkit import incremental
from attnkit.arriving import ArrivingText
from stand_in_speech import SpeechModel, SpeechSession
from support import RUNTIME, SAMPLE, TEXTS, PackageTest, tiny_model

POLICIES = ("wait-k:1", "wait-k:3", "wait-k:2:2", "offline")
PHRASE = "the third of march ; two hundred and forty-one euros ; half past three"


class Recorded:
    """A policy that remembers what it was asked and what it answered."""

    def __init__(self, policy):
        self.policy, self.log = policy, []

    def __call__(self, view):
        action = self.policy(view)
        entry = (view.read, view.written, view.ended, action)
        if action == attnkit.WRITE or entry not in self.log[-1:]:  # READ is answered again once there is more
            self.log.append(entry)
        return action


def pieces(text, words):
    """The text in pieces of so many words."""
    all_words = text.split()
    return [" ".join(all_words[i:i + words]) for i in range(0, len(all_words), words)] or [""]


def run(model, policy, parts):
    """Words by part, and the ids."""
    stream, words = attnkit.Incremental(model, policy), []
    for i, part in enumerate(parts):
        stream.add(part)
        if i == len(parts) - 1:
            stream.finish()
        words.append(stream.advance())
    assert stream.finished
    return words, stream.made


class Text(PackageTest):
    def check_against_simulate(self, model, text, name):
        words = text.split()
        ends = [len(model.tokenize(attnkit.SOURCE, " ".join(words[:i + 1]))) for i in range(len(words))]
        ends[-1] += 1
        simulated = Recorded(attnkit.policy_named(name))
        made = attnkit.Session(model, 1).simulate(self.ids(model, text), simulated, ends=ends)
        for size in (1, 2, 100):
            live = Recorded(attnkit.policy_named(name))
            said, ids = run(model, live, pieces(text, size))
            self.assertEqual((ids, live.log), (made, simulated.log), (name, text, size))
            self.assertEqual(sum(said, []), [word for word in model.detokenize(attnkit.TARGET, made).split(" ") if word])

    def test_decides_as_simulate(self):
        tiny = self.tiny(stream=True)
        sample, _ = attnkit.open_streaming(RUNTIME, SAMPLE, attnkit.WaitK(1))
        for name in POLICIES:
            for text in TEXTS:
                self.check_against_simulate(tiny, text, name)
            self.check_against_simulate(sample, PHRASE, name)

    def test_looks_back_as_simulate(self):
        for rule in ("no_repeat = 1", "no_repeat = 2", "repetition_penalty = 3.0"):
            path = tiny_model.write_model(self.folder / "looks-back", extra=f"[stream]\n[decode]\n{rule}\n")
            with attnkit.Model(RUNTIME, path) as model:
                for text in TEXTS:
                    self.check_against_simulate(model, text, "wait-k:1")

    def test_words_have_the_tokens_that_they_have_in_the_whole(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        vocabulary = f'vocab = "{root}/tests/import/golden/bart/tokenizer.json", tokenizer = "huggingface"'  # <s> first, spaces in tokens
        text = (root / "samples/manifests/bart.toml").read_text(encoding="utf-8").replace('vocab = "../models/numbers-en-de/vocab.txt"', vocabulary)
        model = attnkit.Model.from_text(RUNTIME, text.replace("tie_embeddings = true\n", "") + "[stream]\nreplay = true\n")
        for size in (1, 2, 3):
            source, ids = ArrivingText(model), []
            for part in pieces("a big house", size):
                source.add(part)
                ids += source.take(source.units)
            source.finish()
            ids += source.take(source.units)
            self.assertEqual((ids, source.take(source.units)), (self.ids(model, "a big house"), []))
        self.check_against_simulate(model, "a big house", "wait-k:1")

    def test_a_word_that_cannot_be_spelled_is_not_added(self):
        source = ArrivingText(self.tiny())
        self.refused('cannot spell the word "zebra"', source.add, "one zebra")
        source.add("two")
        self.assertEqual(source.units, 1)

    def test_tokens_that_change_with_the_next_word(self):
        source = ArrivingText(types.SimpleNamespace(tokenize=lambda side, text: [len(text)], info=self.tiny().info))
        source.add("one two")
        self.assertEqual(source.take(1), [3])
        self.refused("the tokens of the source's first 1 words are others once there are 2", source.take, 2)

    def test_says_what_the_command_says(self):
        for name in POLICIES:
            model, policy = attnkit.open_streaming(RUNTIME, SAMPLE, attnkit.policy_named(name))
            said, _ = run(model, policy, PHRASE.split())
            out = self.run_ok("stream", SAMPLE, "--policy", name, "--text", PHRASE).out
            self.assertEqual(" ".join(sum(said, [])) + "\n", out)

    def test_words_come_with_the_next(self):
        model, policy = attnkit.open_streaming(RUNTIME, SAMPLE, attnkit.policy_named("wait-k:2"))
        said, made = run(model, policy, PHRASE.split())
        self.assertGreater(sum(map(bool, said)), 4)
        *events, _ = map(json.loads, self.run_ok("stream", SAMPLE, "--policy", "wait-k:2", "--text", PHRASE, "--events", "-").lines())
        written = [e["written"] for e in events]
        for read, words in enumerate(said, 1):
            # Said so far: the words that another one follows among what was written with so much read.
            ids = made[:max((w for e, w in zip(events, written) if e["read"] <= read), default=0)]
            known = model.detokenize(attnkit.TARGET, ids).split()
            self.assertEqual(sum(said[:read], []), known if ids[-1:] == [model.info.end_id] else known[:-1])

    def test_limit(self):
        model = self.tiny(stream=True)
        for limit in (1, 3):
            stream = attnkit.Incremental(model, attnkit.WaitK(1), limit)
            stream.add(TEXTS[-1])
            stream.advance()
            self.assertEqual((len(stream.made), stream.finished), (limit, True))
        self.refused("limit -1: it must be 1 or more, or 0", attnkit.Incremental, model, attnkit.WaitK(1), -1)
        path = self.folder / "model" / "model.toml"
        text = path.read_text().replace('decoder = { layers = 1,', 'decoder = { layers = 1, max_length = 3,') + "[decode]\nmin_length = 9\n"
        self.check_against_simulate(attnkit.Model.from_text(RUNTIME, text, path.parent), TEXTS[-1], "wait-k:1")

    def test_waits_where_the_source_so_far_allows_no_more(self):
        model = attnkit.Model(RUNTIME, tiny_model.write_model(self.folder / "long", extra="[stream]\n[decode]\nmin_length = 40\n"))
        stream = attnkit.Incremental(model, lambda view: attnkit.WRITE if view.read else attnkit.READ)
        for words, tokens in (("one", 21), ("", 21), ("two three", 24)):
            stream.add(words)
            stream.advance()
            self.assertEqual((len(stream.made), stream.finished), (tokens, False))
        stream.finish()
        stream.advance()
        self.assertEqual((len(stream.made), stream.finished), (4 * 3 // 2 + 20, True))

    def test_nothing(self):
        stream = attnkit.Incremental(self.tiny(stream=True), attnkit.WaitK(1))
        self.assertEqual((stream.advance(), stream.finished), ([], False))
        stream.add("  ")
        stream.finish()
        self.assertEqual((stream.advance(), stream.finished, stream.made), ([], True, []))

    def test_end_known_late(self):
        model = self.tiny(stream=True)
        stream = attnkit.Incremental(model, attnkit.WaitK(1))
        stream.add(TEXTS[-1])
        stream.advance()
        stream.finish()
        stream.advance()
        self.assertTrue(stream.finished)
        self.assertTrue(stream._session.describe()["source_complete"] or stream.made[-1] == model.info.end_id)

    def test_wrong_policies(self):
        model = self.tiny(stream=True)
        stream = attnkit.Incremental(model, lambda view: attnkit.WRITE)
        self.refused("it must read first", stream.advance)
        stopped = attnkit.Incremental(model, lambda view: attnkit.STOP)
        self.assertEqual((stopped.advance(), stopped.finished), ([], True))


class Opening(PackageTest):
    def open(self, policy=None, replay=False, **options):
        path = tiny_model.write_model(self.folder / "opened", **options)
        return attnkit.open_streaming(RUNTIME, path, policy and attnkit.policy_named(policy), replay)

    def test_stream_table(self):
        self.assertIsNone(self.open("offline")[0].describe()["stream"])
        self.assertFalse(self.open("wait-k:2")[0].describe()["stream"]["replay"])
        self.assertTrue(self.open("wait-k:2", replay=True)[0].describe()["stream"]["replay"])
        for table, name in (('policy = "offline"', "offline"), ("k = 2", "wait-k:2"), ("k = 2\npre_decision = 3", "wait-k:2:3")):
            self.assertEqual(str(self.open(extra=f"[stream]\n{table}\n")[1]), name)

    def test_refusals(self):
        self.refused("who decides", self.open)
        self.refused("set replay = true there", self.open, "wait-k:1", replay=True, extra="[stream]\nk = 1\n")
        self.refused("encoder-decoder", self.open, "wait-k:1", kind="decoder")
        self.refused("NaN", run, self.open("offline", damage=lambda w: w.add("decoder.norm.weight", [tiny_model.WIDTH], float("nan")))[0],
                     attnkit.Offline(), ["one"], code=attnkit.INTERNAL)


class Speech(unittest.TestCase):
    """With a stand-in for a model that takes speech: what it is given, and when."""

    def setUp(self):
        patch = mock.patch.object(incremental, "Session", SpeechSession)
        patch.start()
        self.addCleanup(patch.stop)

    def heard(self, samples, chunk, name):
        model = SpeechModel()
        parts = [samples[i:i + chunk] for i in range(0, len(samples), chunk)]
        said, made = run(model, attnkit.policy_named(name), parts)
        return model.session, said, made

    def test_every_sample_once_whatever_the_chunks(self):
        for count in (16000, 400 + 99 * 160):  # 24 rows and a rest, 25 rows
            samples = array.array("f", [i % 251 / 251 for i in range(count)])
            for name in ("wait-k:1", "wait-k:2:7", "offline"):
                _, _, expected = self.heard(samples, count, name)
                self.assertGreater(len(expected), 4)
                for chunk in (1, 160, 641, 5000):
                    session, _, made = self.heard(samples, chunk, name)
                    self.assertEqual(made, expected)
                    self.assertEqual(sum((list(r) for r, _ in session.reads), []), list(samples))
                    self.assertEqual([last for _, last in session.reads], [False] * (len(session.reads) - 1) + [True])

    def test_end_known_late(self):
        stream = attnkit.Incremental(SpeechModel(), attnkit.WaitK(1))
        stream.add(array.array("f", bytes(4 * (400 + 3 * 160))))
        self.assertEqual(stream.advance(), [])
        self.assertEqual(len(stream.made), 1)
        stream.finish()
        stream.advance()
        self.assertTrue(stream.finished)
        self.assertEqual([(len(r), last) for r, last in stream._session.reads], [(880, False), (0, True)])

    def test_hands_over_what_a_position_needs(self):
        session, *_ = self.heard(array.array("f", [0.5] * 16000), 160, "wait-k:2")
        # A row of four frames: 25 ms, then 10 ms each.
        self.assertEqual([len(r) for r, _ in session.reads][:3], [400 + 7 * 160, 640, 640])

    def test_too_short_for_a_row(self):
        with self.assertRaisesRegex(AssertionError, "nothing that the encoder could take"):
            self.heard(array.array("f", [0.5] * 100), 50, "wait-k:1")


if __name__ == "__main__":
    unittest.main()
