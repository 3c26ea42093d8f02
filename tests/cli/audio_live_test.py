"""attnkit stream on standard input, as it arrives."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

import tiny_model
from command import COMMAND
from recordings import FIRST_ROW, MODEL, ROW, AudioTest, noise, raw, sine

WHISPER = MODEL.with_name("whisper.toml")


class Live(AudioTest):
    def test_is_what_a_file_gives(self):
        for samples in (noise(9000), sine(FIRST_ROW), noise(FIRST_ROW + 3 * ROW), noise(30000)):
            path = self.wav("one.wav", samples)
            for more in (["--policy", "offline"], ["--policy", "wait-k:2"], ["--policy", "wait-k:1:5"],
                         ["--policy", "wait-k:2", "--chunk-ms", 30]):
                spoken = self.stream("--audio", "-", *more, stdin=raw(samples))
                self.assertEqual(spoken.out, self.stream("--audio", path, *more).out)

    def test_whole_recordings_are_what_a_file_gives(self):
        for count in (1, 500, 1000, 16000):
            path = self.wav("one.wav", noise(count))
            spoken, whole = (self.run_ok("stream", WHISPER, "--policy", "offline", "--json", "--audio", source, stdin=raw(noise(count))).json()
                             for source in ("-", path))
            for key in ("output", "tokens", "finished"):
                self.assertEqual(spoken["results"][0][key], whole["results"][0][key], count)
        refused = self.run_code(6, "stream", WHISPER, "--policy", "offline", "--audio", "-", stdin=b"")
        self.assertIn("0 samples are less than the 1", refused.err)

    def test_logs(self):
        path, spoken = self.wav("one.wav", noise(16000)), self.folder / "one.raw"
        spoken.write_bytes(raw(noise(16000)))
        command = [COMMAND, "stream", MODEL, "--policy", "wait-k:3", "--json", "--audio", "-"]
        with open(spoken, "rb") as file:  # all is there at once, so that the units are those of a file
            live = json.loads(subprocess.run(command, stdin=file, capture_output=True, check=True).stdout)["results"][0]
        whole = self.stream("--policy", "wait-k:3", "--audio", path, "--json").json()["results"][0]
        for key in ("output", "delays", "source_length", "tokens"):
            self.assertEqual(live[key], whole[key])
        self.assertGreater(live["seconds"], 0)

    def start(self, *arguments):
        return subprocess.Popen([COMMAND, "stream", MODEL, "--audio", "-", *map(str, arguments)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_writes_while_it_reads(self):
        child = self.start("--policy", "wait-k:1", "--events", "-")
        child.stdin.write(raw(noise(FIRST_ROW)))
        child.stdin.flush()
        events = [json.loads(child.stdout.readline()) for _ in range(2)]
        self.assertEqual([(e["action"], e["source_ms"]) for e in events], [("READ", 55), ("WRITE", 55)])
        child.stdin.write(raw(noise(ROW)))
        child.stdin.flush()
        events = [json.loads(child.stdout.readline()) for _ in range(2)]
        self.assertEqual([(e["action"], e["source_ms"]) for e in events], [("READ", 95), ("WRITE", 95)])
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0, err)

    def test_shows_words_as_they_come(self):
        samples, options = noise(FIRST_ROW + 12 * ROW), ["--policy", "wait-k:1"]
        child = self.start(*options)
        child.stdin.write(raw(samples))
        child.stdin.flush()  # and stays open: the output cannot be over
        shown = os.read(child.stdout.fileno(), 1)
        rest, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0, err)
        self.assertEqual((shown + rest).decode(), self.stream(*options, "--audio", "-", stdin=raw(samples)).out)

    def test_interruption_ends_the_source(self):
        child = self.start("--policy", "offline")
        child.stdin.write(raw(noise(9000)))
        child.stdin.flush()
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        out, err = child.stdout.read(), child.stderr.read()
        child.stdin.close()
        self.assertEqual(child.wait(60), 0, err)
        child.stdout.close()
        child.stderr.close()
        self.assertIn(b"interrupted, the source ends here", err)
        self.assertIn(b"0.56 s of speech", err)
        self.assertEqual(out.decode(), self.run_ok("run", MODEL, "--audio", self.wav("one.wav", noise(9000))).out)

    def test_half_a_sample(self):
        result = self.stream("--policy", "offline", "--audio", "-", stdin=raw(noise(9000)) + b"\x01")
        self.assertIn("half a sample", result.err)
        self.assertEqual(result.out, self.stream("--policy", "offline", "--audio", "-", stdin=raw(noise(9000))).out)
        self.assertIn("half a sample", self.run_ok("run", MODEL, "--audio", "-", stdin=raw(noise(9000)) + b"\x01").err)

    def test_too_little(self):
        for samples in ([], noise(FIRST_ROW - 1)):
            result = self.run_code(6, "stream", MODEL, "--audio", "-", stdin=raw(samples))
            self.assertIn(f"{len(samples)} samples are less than the 880", result.err)

    def test_longer_than_the_model_takes(self):
        most = FIRST_ROW + 255 * ROW
        result = self.stream("--audio", "-", "--limit", 300, stdin=raw(noise(most + 5000)))
        self.assertRegex(result.err, r"max_length, 256 rows or 10\.2\d s, is not read")
        self.assertEqual(result.out, self.stream("--audio", "-", "--limit", 300, stdin=raw(noise(most))).out)

    def test_a_unit_that_ends_behind_the_last_row(self):
        child = self.start("--policy", "wait-k:1", "--chunk-ms", 10260, "--limit", 6)
        child.stdin.write(raw(noise(164160)))
        child.stdin.flush()
        os.read(child.stdout.fileno(), 1)  # the unit was read
        _, err = child.communicate(raw(noise(2000)), timeout=60)
        self.assertEqual(child.returncode, 0, err)
        self.assertIn(b"is not read", err)

    def test_writes_no_more_than_the_source_so_far_allows(self):
        options = ["--policy", "wait-k:1", "--chunk-ms", 1]
        child = self.start(*options, "--events", "-")
        child.stdin.write(raw(noise(FIRST_ROW)))
        child.stdin.flush()
        time.sleep(1.5)  # the source may still go on
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0, err)
        output = json.loads(out.splitlines()[-1])["output"]
        self.assertEqual(output + "\n", self.stream(*options, "--audio", self.wav("one.wav", noise(FIRST_ROW))).out)

    def test_characters_of_several_bytes(self):
        tiny_model.write_bytes_tokenizer(self.folder / "bytes.json")
        model, samples = self.folder / "bytes.toml", noise(FIRST_ROW + 9 * ROW)
        forced = ", ".join(f'"<0x{byte:02X}>"' for byte in "\U0001f600\U0001f601".encode())
        text = re.sub("(?m)^decoder = .*$", tiny_model.BYTES_DECODER, MODEL.read_text())
        model.write_text(text + f"[decode]\nforced = [{forced}]\n")
        for limit in range(1, 9):
            options = ["stream", model, "--policy", "wait-k:1", "--limit", limit]
            spoken = subprocess.run([COMMAND, *map(str, options), "--audio", "-"], input=raw(samples), capture_output=True, check=True)
            text = spoken.stdout.decode()
            if 4 < limit < 8:  # all bytes of a file's output are then no text, and what was shown stays
                self.assertRegex(text, "^\U0001f600\ufffd+\n$")
            else:
                self.assertEqual(text, self.run_ok(*options, "--audio", self.wav("one.wav", samples)).out)


if __name__ == "__main__":
    unittest.main()
