"""attnkit run and stream on speech: files, lists, refusals, latency in milliseconds."""

import json
import struct
import unittest

import tiny_model
from command import SAMPLE, CommandTest
from recordings import FIRST_ROW, MODEL, RATE, ROW, AudioTest, noise, raw, sine


WINDOWS = f"""schema = "attnkit.model/1"
[model]
name = "windows"
kind = "encoder-decoder"
d_model = 32
heads = 2
ffn = 64
max_length = 256
decoder = {{ layers = 1, vocab = "{SAMPLE.parent}/vocab.txt" }}
[model.encoder]
layers = 1
features = {{ type = "log_mel", frames = 100 }}
frontend = {{ type = "centred" }}
[weights]
seed = 2
[attention]
default = "softmax"
[decode]
forced = ["\u2581zwei", "\u2581Euro"]
"""


class Run(AudioTest):
    def test_files_and_lists(self):
        one, two = self.wav("one.wav", noise(9000)), self.wav("two.wav", sine(20000))
        result = self.run_ok("run", MODEL, "--audio", one, "--audio", two)
        self.assertEqual(len(result.lines()), 2)
        self.assertTrue(all(result.lines()))
        alone = [self.run_ok("run", MODEL, "--audio", path).out for path in (one, two)]
        self.assertEqual(result.out, "".join(alone))
        (self.folder / "list.tsv").write_text("one.wav\ntwo.wav\n")
        self.assertEqual(self.run_ok("run", MODEL, "--audio-list", self.folder / "list.tsv").out, result.out)
        listed = self.run_ok("run", MODEL, "--audio-list", "-", stdin=b"one.wav\r\ntwo.wav", cwd=self.folder)
        self.assertEqual(listed.out, result.out)
        self.assertEqual(self.run_ok("run", MODEL, "--audio", "-", stdin=raw(noise(9000))).out, alone[0])

    def test_what_it_says(self):
        path = self.wav("one.wav", noise(16000))
        result = self.run_ok("run", MODEL, "--audio", path, "--json")
        self.assertRegex(result.err, r"1\.00 s of speech, .* of computing: real-time factor \d")
        summary = result.json()["summary"]
        self.assertEqual(summary["speech_seconds"], 1)
        self.assertAlmostEqual(summary["real_time_factor"], summary["seconds"])
        self.assertEqual(result.json()["results"][0]["input"], str(path))
        self.assertNotIn("silent", result.err)

    def test_beams_and_references(self):
        (self.folder / "list.tsv").write_text("one.wav\tzwei Euro\ntwo.wav\thalb vier\n")
        self.wav("one.wav", noise(9000))
        self.wav("two.wav", sine(12000))
        batches = [self.run_ok("run", MODEL, "--audio-list", self.folder / "list.tsv", "--batch", n, "--json").json()["results"]
                   for n in (1, 2)]
        for alone, together in zip(*batches):
            self.assertAlmostEqual(alone["nll"], together["nll"], places=4)
        self.assertEqual([r["reference"] for r in batches[0]], ["zwei Euro", "halb vier"])
        both = self.run_ok("run", MODEL, "--audio", self.folder / "one.wav", "--target", "zwei Euro", "--json")
        self.assertAlmostEqual(both.json()["results"][0]["nll"], batches[0][0]["nll"], places=4)
        self.run_ok("run", MODEL, "--audio", self.folder / "one.wav", "--beams", 3)

    def test_silence_is_legal(self):
        result = self.run_ok("run", MODEL, "--audio", self.wav("silent.wav", [0] * 5000))
        self.assertIn("silent.wav: is silent", result.err)

    def test_windows_of_a_long_recording_are_words_apart(self):
        model = self.folder / "windows.toml"
        model.write_text(WINDOWS)
        path = self.wav("long.wav", noise(40000))
        options = ["run", model, "--audio", path, "--limit", 6, "--json"]
        result = self.run_ok(*options).json()["results"][0]
        said = [w["output"] for w in result["windows"]]
        self.assertEqual(len(said), 3)
        for window in said:
            self.assertTrue(window.startswith("zwei Euro"), window)
        self.assertEqual(result["output"], " ".join(said))
        result = self.run_ok(*options, "--stop", " Euro").json()["results"][0]
        self.assertEqual((result["output"], [w["output"] for w in result["windows"]]), ("zwei zwei zwei", ["zwei"] * 3))
        result = self.run_ok(*options, "--stop", "Euro").json()["results"][0]
        self.assertEqual((result["output"], [w["output"] for w in result["windows"]]), ("zwei " * 3, ["zwei "] * 3))

    def test_flac_of_unknown_length(self):
        model = SAMPLE.parent.parent / "numbers-speech/model.toml"
        whole = bytearray((model.parent / "recordings/003.flac").read_bytes())
        path = self.folder / "open.flac"
        path.write_bytes(whole)
        said = self.run_ok("run", model, "--audio", path).out
        whole[21] &= 0xF0  # the number of samples: 36 bits, 0 where the encoder could not go back to write it
        whole[22:26] = bytes(4)
        path.write_bytes(whole)
        self.assertEqual(self.run_ok("run", model, "--audio", path).out, said)

    def test_no_recordings(self):
        (self.folder / "list.tsv").write_text("")
        result = self.run_ok("run", MODEL, "--audio-list", self.folder / "list.tsv", "--json")
        self.assertNotIn("real_time_factor", result.json()["summary"])
        self.assertNotIn("real-time", result.err)

    def test_headers_written_to_a_pipe(self):
        plain = self.run_ok("run", MODEL, "--audio", self.wav("a.wav", noise(9000))).out
        made = bytearray((self.folder / "a.wav").read_bytes())
        for size in (0xFFFFFFFF, 0x7FFFF000):
            made[4:8] = made[40:44] = struct.pack("<I", size)
            (self.folder / "piped.wav").write_bytes(made)
            self.assertEqual(self.run_ok("run", MODEL, "--audio", self.folder / "piped.wav").out, plain)


class Refusals(AudioTest):
    def refused(self, part, *arguments, code=6, command="run", **options):
        result = self.run_code(code, command, MODEL, *arguments, *(["--policy", "offline"] if command == "stream" else []),
                               **options)
        self.assertIn(part, result.err)
        self.assertEqual(len([line for line in result.err.splitlines() if not line.startswith("  help: ")]), 1, result.err)
        self.assertEqual(result.out, "")

    def test_files_that_are_no_good(self):
        good = self.wav("good.wav", noise(9000)).read_bytes()
        other_way = struct.pack(">4sI4s4sIHHIIHH4sI", b"RIFX", 18036, b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", 18000)
        files = {"cut.wav": good[:10000], "rifx.wav": other_way + bytes(9956), "byte.wav": good[:-1], "header.wav": good[:30],
                 "text.wav": b"no recording\n" * 99,
                 "nothing.wav": b""}
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        self.wav("no samples.wav", [])
        self.wav("cd.wav", noise(44100), rate=44100)
        self.wav("stereo.wav", noise(20000), channels=2)
        self.wav("short.wav", noise(FIRST_ROW - 1))
        self.wav("long.wav", noise(FIRST_ROW + 256 * ROW))
        (self.folder / "float.wav").write_bytes(self.float_wav([0.1] * 2000 + [float("nan")]))
        (self.folder / "loud.wav").write_bytes(self.float_wav([3000.0] * 2000))
        for name, part in {
                "cut.wav": "is cut off: 8044 bytes", "rifx.wav": "is cut off: 8044 bytes", "byte.wav": "is cut off: 1 bytes",
                "header.wav": "no WAV, FLAC or OGG",
                "text.wav": "no WAV, FLAC or OGG", "nothing.wav": "is empty", "no samples.wav": "holds no samples",
                "cd.wav": "has 44100 samples a second, the model takes 16000: convert it with sox", "stereo.wav": "has 2 channels",
                "short.wav": "879 samples (0.055 s) are less than the 880", "long.wav": "257 rows of the encoder, the model's max_length is 256",
                "float.wav": "sample 2000 is nan", "loud.wav": "sample 0 is 3000", "missing.wav": "no such file", ".": "is a folder"}.items():
            for command in ("run", "stream"):
                with self.subTest(name, command=command):
                    self.refused(part, "--audio", self.folder / name, command=command)
        self.run_ok("run", MODEL, "--audio", self.wav("just.wav", noise(FIRST_ROW)))
        self.run_ok("run", MODEL, "--audio", self.wav("just.wav", noise(FIRST_ROW + 256 * ROW - 1)), "--limit", 5)

    @staticmethod
    def float_wav(samples):
        data = struct.pack(f"<{len(samples)}f", *samples)
        header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 3, 1, RATE, 4 * RATE, 4, 32,
                             b"data", len(data))
        return header + data

    def test_the_command_for_sox_can_be_copied(self):
        self.wav("it's mine.wav", noise(9000), rate=8000)
        result = self.run_code(6, "run", MODEL, "--audio", "it's mine.wav", cwd=self.folder)
        self.assertIn("""sox 'it'\\''s mine.wav' -r 16000 -c 1 out.wav""", result.err)

    def test_a_bad_file_is_found_before_anything_is_decoded(self):
        self.wav("good.wav", noise(9000))
        (self.folder / "list.tsv").write_text("good.wav\nmissing.wav\ngood.wav\n")
        for command in ("run", "stream"):
            self.refused("list.tsv:2: missing.wav: there is no such file", "--audio-list", self.folder / "list.tsv", command=command)

    def test_lists(self):
        self.wav("good.wav", noise(9000))
        for text, part in (("good.wav\n\n", "list.tsv:2: a path is needed"), ("\tzwei\n", "list.tsv:1: a path is needed"),
                           ("good.wav\tzwei\ngood.wav\n", "list.tsv:2: has no reference"), ("good.wav\ngood.wav\tzwei\n", "list.tsv:2: has a reference"),
                           ("good.wav\tzebra crossing\n", "list.tsv:1: good.wav, reference")):
            (self.folder / "list.tsv").write_text(text)
            self.refused(part, "--audio-list", self.folder / "list.tsv")
        (self.folder / "list.tsv").write_text("good.wav\n")
        self.refused("leave --target", "--audio-list", self.folder / "list.tsv", "--target", "zwei", code=2)
        self.refused("cannot be opened", "--audio-list", self.folder / "missing.tsv")

    def test_texts_for_speech_and_speech_for_texts(self):
        good = self.wav("good.wav", noise(9000))
        self.refused("takes speech, not text: give --audio", "--text", "one", code=2)
        self.refused("give either --audio FILE", code=2)
        self.refused("give either --audio FILE", "--audio", good, "--audio-list", good, code=2)
        self.refused("1 references for 2 inputs", "--audio", good, "--audio", good, "--target", "zwei", code=2)
        self.refused("--audio - ", "--audio", "-", "--audio", "-", code=2)
        self.refused("--audio and --target-file cannot both", "--audio", "-", "--target-file", "-", code=2)
        self.refused("takes speech: --chunk-ms", "--audio", good, "--unit", "word", code=2, command="stream")
        self.refused("takes speech: --chunk-ms", "--audio", good, "--word-ms", "300", code=2, command="stream")
        for command in ("run", "stream"):
            policy = ["--policy", "offline"] if command == "stream" else []
            result = self.run_code(2, command, SAMPLE, "--audio", good, *policy)
            self.assertIn("takes text, not speech: give --text", result.err)
        result = self.run_code(2, "stream", SAMPLE, "--text", "one", "--chunk-ms", 300, "--policy", "offline")
        self.assertIn("takes text: --unit", result.err)

    def test_never_an_input(self):
        good = self.wav("good.wav", noise(9000))
        before = good.read_bytes()
        (self.folder / "list.tsv").write_text("good.wav\n")
        for arguments in (["--audio", good, "-o", good], ["--audio-list", self.folder / "list.tsv", "-o", self.folder / "list.tsv"],
                          ["--audio-list", self.folder / "list.tsv", "-o", good]):
            self.refused("input of this command", *arguments, code=2)
        self.assertEqual(good.read_bytes(), before)

    def test_commands_that_take_texts(self):
        self.assertIn("speech", self.run_code(2, "inspect", MODEL, "--attention", "encoder.self.1", "--text", "one").err)


class Stream(AudioTest):
    def test_offline_is_what_run_gives(self):
        paths = [self.wav("one.wav", noise(9000)), self.wav("two.wav", sine(20000)), self.wav("least.wav", noise(FIRST_ROW))]
        files = [o for path in paths for o in ("--audio", path)]
        whole = self.run_ok("run", MODEL, *files).out
        for more in ([], ["--chunk-ms", 20], ["--chunk-ms", 333]):
            self.assertEqual(self.stream("--policy", "offline", *files, *more).out, whole)

    def test_events(self):
        path = self.wav("one.wav", noise(FIRST_ROW + 9 * ROW + 100))
        events = self.events("--policy", "wait-k:2", "--audio", path, "--limit", 12)
        self.assertEqual(events[-1]["action"], "END")
        reads, writes = ([e for e in events if e["action"] == a] for a in ("READ", "WRITE"))
        self.assertEqual([e["source_ms"] for e in reads], [55 + 40 * i for i in range(9)] + [55 + 360 + 6.25])
        for i, e in enumerate(writes):
            self.assertEqual(e["read"], min(i + 2, 10))
            self.assertEqual(e["source_ms"], reads[e["read"] - 1]["source_ms"])
        self.assertEqual(set(writes[0]), {"input", "action", "id", "text", "read", "written", "source_ms", "seconds"})
        self.assertEqual(set(reads[0]), {"input", "action", "read", "written", "source_ms", "seconds"})
        seconds = [e["seconds"] for e in events]
        self.assertEqual(seconds, sorted(seconds))

    def test_chunks(self):
        path = self.wav("one.wav", noise(8000))
        events = self.events("--policy", "wait-k:1", "--audio", path, "--chunk-ms", 20, "--limit", 40)
        writes = [e for e in events if e["action"] == "WRITE"]
        # 20 and 40 ms are no row yet: there is nothing to write from.
        self.assertEqual([e["source_ms"] for e in writes[:3]], [60, 60, 60])
        self.assertEqual(max(e["source_ms"] for e in events[:-1]), 500)

    def test_splits_do_not_matter_to_what_waits_for_all(self):
        path = self.wav("one.wav", sine(16000))
        whole = self.stream("--policy", "offline", "--audio", path).out
        for policy in ("wait-k:64", "wait-k:1:64"):
            self.assertEqual(self.stream("--policy", policy, "--audio", path).out, whole)

    def test_metrics_are_milliseconds(self):
        path = self.wav("one.wav", noise(16000))
        document = self.stream("--policy", "wait-k:3", "--audio", path, "--target", "zwei Euro", "--json").json()
        self.assertEqual((document["unit"], document["policy"]), ("row", "wait-k:3"))
        self.assertNotIn("word_ms", document)
        (result,) = document["results"]
        self.assertEqual(result["source_length"], 1000)
        self.assertEqual(len(result["delays"]), len(result["output"].split()))
        self.assertTrue(all(135 <= d <= 1000 for d in result["delays"]))
        self.assertEqual(result["delays"], sorted(result["delays"]))
        for delay, elapsed in zip(result["delays"], result["elapsed"]):
            self.assertTrue(delay < elapsed <= delay + 1000 * result["seconds"] + 1e-6)
        self.assertAlmostEqual(result["real_time_factor"], result["seconds"])
        summary = document["summary"]
        self.assertEqual(summary["speech_seconds"], 1)
        self.assertAlmostEqual(summary["real_time_factor"], summary["computing_seconds"])
        text = self.stream("--policy", "wait-k:3", "--audio", path).err
        self.assertIn("latency in ms", text)
        self.assertIn("1 input in 24 rows", text)
        self.assertRegex(text, "1.00 s of speech, .* real-time factor")
        chunks = self.stream("--audio", path, "--chunk-ms", 250, "--json").json()
        self.assertEqual((chunks["unit"], chunks["chunk_ms"], chunks["summary"]["reads"]), ("chunk", 250, 4))

    def test_lists(self):
        (self.folder / "list.tsv").write_text("one.wav\tzwei Euro\ntwo.wav\thalb vier\n")
        self.wav("one.wav", noise(9000))
        self.wav("two.wav", sine(20000))
        document = self.stream("--audio-list", self.folder / "list.tsv", "--json").json()
        self.assertEqual([r["input"] for r in document["results"]], ["one.wav", "two.wav"])
        self.assertEqual([r["reference_length"] for r in document["results"]], [2, 2])


class TextModels(CommandTest):
    def test_know_nothing_of_speech(self):
        model = tiny_model.write_model(self.folder / "model")
        document = self.run_ok("stream", model, "--policy", "offline", "--text", "one", "--json").json()
        self.assertNotIn("speech_seconds", document["summary"])
        self.assertNotIn("speech", self.run_ok("run", model, "--text", "one").err)


if __name__ == "__main__":
    unittest.main()
