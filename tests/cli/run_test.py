"""attnkit run: translations, batches, beams, scores, other kinds of models, bad texts, atomic output."""

import math
import os
import re
import resource
import signal
import stat
import struct
import subprocess
import time
import unittest

import tiny_model
from command import COMMAND, SAMPLE, CommandTest

TEXTS = ["one two three", "four", "two two-s seven six", "Ü", "ß five", "one", "seven six five four three two one"]


class Sample(CommandTest):
    def test_translates(self):
        result = self.run_ok("run", SAMPLE, "--text", "two hundred and forty-one euros", "--text", "Half past three")
        self.assertEqual(result.out, "zweihunderteinundvierzig Euro\nhalb vier\n")
        self.assertRegex(result.err, r"encoder\.self \w+; decoder\.self \w+; decoder\.cross \w+\n"
                                     r"2 inputs, \d+ tokens in .*, \d+ tokens/s, state [\d.]+ KiB per session")

    def test_scores_references(self):
        result = self.run_ok("run", SAMPLE, "--text", "two hundred and forty-one euros", "--target",
                             "zweihunderteinundvierzig  Euro", "--text", "half past three", "--target", "halb drei", "--json")
        good, bad = result.json()["results"]
        self.assertTrue(good["exact"] and not bad["exact"])
        self.assertLess(good["perplexity"], 1.1)
        self.assertGreater(bad["perplexity"], good["perplexity"])
        summary = result.json()["summary"]
        self.assertEqual(summary["exact_match"], 0.5)
        nll = good["nll"] + bad["nll"]
        self.assertAlmostEqual(summary["perplexity"], math.exp(nll / summary["reference_tokens"]))

    def test_dev_set_file(self):
        pairs = [line.split("\t") for line in (SAMPLE.parent / "dev.tsv").read_text().splitlines()[:40]]
        (self.folder / "in.txt").write_text("".join(p[0] + "\n" for p in pairs))
        (self.folder / "reference.txt").write_text("".join(p[1] + "\n" for p in pairs))
        result = self.run_ok("run", SAMPLE, "--file", self.folder / "in.txt", "--target-file", self.folder / "reference.txt",
                             "--progress", "plain")
        self.assertEqual(len(result.lines()), 40)
        right = sum(a == b[1] for a, b in zip(result.lines(), pairs))
        self.assertIn(f"exact match {right} of 40", result.err)
        self.assertIn("40/40 inputs (100 %)", result.err)
        self.assertNotIn("\r", result.err)


class Tiny(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_model(self.folder / "model")

    def texts(self, *options):
        return [o for text in TEXTS for o in ("--text", text)] + list(options)

    def test_a_batch_gives_what_each_alone_gives(self):
        for attention in ['default = "softmax"', 'default = "leap"', 'default = "cosformer"']:
            extra = '[length]\npredict = "ratio"\nalpha = 1.2\n' if "cos" in attention else ""
            model = tiny_model.write_model(self.folder / "batch", attention=attention, extra=extra)
            alone = [self.run_ok("run", model, "--text", t).out for t in TEXTS]
            for batch in (1, 2, 3, 16):
                self.assertEqual(self.run_ok("run", model, *self.texts("--batch", batch)).out, "".join(alone))

    def test_greedy_equals_the_library(self):
        # The command decodes in batches of its own; inspect --attention takes its target from attnkit_session_generate.
        for text in TEXTS:
            result = self.run_ok("run", self.model, "--text", text, "--json").json()["results"][0]
            queries = self.run_ok("inspect", self.model, "--attention", "decoder.cross.1", "--text", text, "--json").json()["queries"]
            shown = "".join(q for q in queries if q not in ("<s>", "</s>", "\u2581"))
            self.assertEqual(result["output"].replace(" ", ""), shown)
            self.assertGreater(result["tokens"], 0)

    def test_limit_and_beams(self):
        for limit in (1, 3, 40):
            for result in self.run_ok("run", self.model, *self.texts("--limit", limit, "--json")).json()["results"]:
                self.assertLessEqual(result["tokens"], limit)
        beams = self.run_ok("run", self.model, *self.texts("--beams", 3, "--json")).json()
        self.assertEqual((beams["summary"]["beams"], len(beams["results"])), (3, len(TEXTS)))

    def test_outputs_that_were_cut_off(self):
        whole = self.run_ok("run", self.model, *self.texts("--json")).json()["results"]
        for options in ([], ["--beams", 2]):
            result = self.run_ok("run", self.model, *self.texts("--limit", 1, "--json", *options))
            cut = [not r["finished"] for r in result.json()["results"]]
            self.assertIn(f"{sum(cut)} of {len(TEXTS)} outputs {'was' if sum(cut) == 1 else 'were'} cut off at the limit\n", result.err)
        for r in whole:  # </s> counts, so a limit of just that many tokens cuts nothing off
            if r["finished"]:
                enough = self.run_ok("run", self.model, "--text", r["input"], "--limit", r["tokens"], "--json")
                self.assertTrue(enough.json()["results"][0]["finished"])
                self.assertNotIn("cut off", enough.err)
        empty = self.run_ok("run", self.model, "--text", "", "--limit", 1, "--json")
        self.assertTrue(empty.json()["results"][0]["finished"])
        self.assertIn("\n1 input, 0 tokens in", empty.err)
        for text, finished in (("half past three", True), ("two hundred and forty-one euros", False)):
            result = self.run_ok("run", SAMPLE, "--text", text, "--json", *([] if finished else ["--limit", 1]))
            self.assertEqual(result.json()["results"][0]["finished"], finished)
            self.assertEqual("1 of 1 output was cut off at the limit" in result.err, not finished)

    def test_byte_order_mark(self):
        for name, text in (("in.txt", "one two\nfour\n"), ("reference.txt", "zwei\nvier\n")):
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / ("bom-" + name)).write_text(text, encoding="utf-8-sig")
        plain, marked = (self.run_ok("run", self.model, "--file", self.folder / (p + "in.txt"), "--target-file",
                                     self.folder / (p + "reference.txt"), "--json").json()["results"] for p in ("", "bom-"))
        self.assertEqual(marked, plain)
        self.assertEqual(self.run_ok("run", self.model, "--file", "-", stdin=b"\xef\xbb\xbf").out, "")

    def test_plugin_folders_that_are_not_used(self):
        (self.folder / "mine").mkdir()
        (self.folder / "mine" / "softmax.so").write_text("no library")
        (self.folder / "mine" / "notes.txt").write_text("no plugin")
        missing = self.folder / "missing"
        for command in (["run", "--text", "one"], ["inspect"], ["validate"]):
            err = self.run_ok(command[0], self.model, *command[1:], "--plugin-dir", str(self.folder / "mine") + "/",
                              "--plugin-dir", missing).err
            self.assertIn(f"attnkit: warning: plugin folder {self.folder / 'mine'}: softmax.so is no library", err)
            self.assertIn(f"attnkit: warning: plugin folder {missing}: does not exist\n", err)
            self.assertEqual(err.count("warning: plugin folder"), 2)
        self.assertNotIn("warning", self.run_ok("inspect", self.model).err)

    def test_threads_do_not_change_results(self):
        self.assertEqual(self.run_ok("run", self.model, *self.texts("--threads", 1)).out,
                         self.run_ok("run", self.model, *self.texts("--threads", 3)).out)

    def test_standard_input_and_line_ends(self):
        unix = self.run_ok("run", self.model, "--file", "-", stdin=b"one two\nfour\n\nsix")
        dos = self.run_ok("run", self.model, "--file", "-", stdin=b"one two\r\nfour\r\n\r\nsix\r\n")
        self.assertEqual(unix.out, dos.out)
        self.assertEqual(len(unix.out.split("\n")), 5)
        self.assertEqual(unix.lines()[2], "")
        self.assertEqual(self.run_ok("run", self.model, "--file", "-").out, "")

    def test_json_is_one_document(self):
        document = self.run_ok("run", self.model, *self.texts("--json")).json()
        self.assertEqual(document["schema"], "attnkit.run/1")
        self.assertEqual([r["input"] for r in document["results"]], TEXTS)
        self.assertEqual(document["blocks"], {r + ".1": "softmax" for r in tiny_model.ROLES["encoder-decoder"]})

    def test_reference_lengths(self):
        model = tiny_model.write_model(self.folder / "told", attention='default = "cosformer"', extra='[length]\npredict = "reference"\n')
        self.run_ok("run", model, "--text", "one two", "--target", "zwei eins")
        self.assertIn("length", self.run_code(6, "run", model, "--text", "one two").err)

    def test_bad_texts(self):
        for text, part in [("one nine", 'cannot spell the word "nine"'), ("one " * 64, "65 tokens")]:
            self.assertIn(part, self.run_code(6, "run", self.model, "--text", text).err)
        for stdin, part in [(b"one\n\xff\xfe\n", "standard input:2: "), (b"o\0ne\n", "NUL"), (b"one " * 250000, "250001 tokens"),
                            (b"x" * 1000000, "cannot spell")]:
            result = self.run_code(6, "run", self.model, "--file", "-", stdin=stdin)
            self.assertIn(part, result.err)
            self.assertEqual(result.out, "")
        for path in (self.folder, self.folder / "missing"):
            self.run_code(6, "run", self.model, "--file", path)
        self.run_code(6, "run", self.model, "--text", "one", "--target", "drei " * 64)
        self.run_code(6, "run", self.model, "--file", "-", "--target-file", "/dev/null", stdin=b"one\n")

    def test_unknown_words(self):
        texts = ["--text", "one two", "--text", "one nine two", "--text", "four"]
        good = self.run_ok("run", self.model, *texts[:2], *texts[4:]).lines()
        refused = self.run_code(6, "run", self.model, *texts, "--unknown", "error")
        self.assertEqual(refused.out, "")
        self.assertIn("  help: attnkit run --unknown skip leaves such texts out", refused.err)
        skipped = self.run_ok("run", self.model, *texts, "--unknown", "skip")
        self.assertEqual(skipped.lines(), [good[0], "", good[1]])
        self.assertIn('attnkit: warning: --text 2: the vocabulary cannot spell the word "nine"', skipped.err)
        self.assertIn("1 of 3 inputs was skipped", skipped.err)
        document = self.run_ok("run", self.model, *texts, "--unknown", "skip", "--json").json()
        self.assertEqual([r["output"] for r in document["results"]], good)
        self.assertEqual([(s["index"], s["input"], s["origin"]) for s in document["skipped"]], [(1, "one nine two", "--text 2")])
        self.assertIn('"nine"', document["skipped"][0]["reason"])
        self.assertEqual(document["summary"]["inputs"], 2)
        self.assertNotIn("skipped", self.run_ok("run", self.model, *texts[:2], "--unknown", "skip", "--json").json())
        # A reference that cannot be spelled takes its input with it; other mistakes stay mistakes.
        scored = self.run_ok("run", self.model, *texts[:2], *texts[4:], "--target", "drei", "--target", "neun", "--unknown", "skip")
        self.assertEqual(scored.lines(), [good[0], ""])
        self.assertIn("65 tokens", self.run_code(6, "run", self.model, "--text", "one " * 64, "--unknown", "skip").err)
        (self.folder / "bad.txt").write_bytes(b"one\n\xff\n")
        self.run_code(6, "run", self.model, "--file", self.folder / "bad.txt", "--unknown", "unk")
        all_bad = self.run_ok("run", self.model, "--text", "nine", "--unknown", "skip", "-o", self.folder / "out")
        self.assertIn("1 of 1 input was skipped", all_bad.err)
        self.assertEqual((self.folder / "out").read_text(), "\n")
        self.assertIn("--unknown", self.run_code(2, "run", self.model, *texts, "--unknown", "ignore").err)

    def test_unknown_words_as_unk(self):
        said = self.run_code(6, "run", self.model, "--text", "one nine", "--unknown", "unk").err
        self.assertIn("vocab.txt has no <unk>", said)
        vocabulary = self.model.parent / "vocab.txt"
        vocabulary.write_text(vocabulary.read_text().replace("<pad>", "<unk>"))
        # The first id is then <unk>: the same model says the same of every word that it cannot spell, and of no other.
        texts = ["one nine two", "one Zehn-neun two", "one two", "nine"]
        words, others, known, alone = self.run_ok("run", self.model, *[o for t in texts for o in ("--text", t)],
                                                  "--unknown", "unk", "--beams", 2, "--json").json()["results"]
        self.assertEqual((words["output"], words["tokens"]), (others["output"], others["tokens"]))
        self.assertNotEqual(words["output"], known["output"])
        self.assertEqual(known["output"], self.run_ok("run", self.model, "--text", "one two", "--beams", 2).lines()[0])
        self.assertGreater(alone["tokens"], 0)
        self.run_ok("run", self.model, "--text", "one", "--target", "neun drei", "--unknown", "unk")

    def test_empty_text(self):
        result = self.run_ok("run", self.model, "--text", "", "--text", "  ")
        self.assertEqual(result.out, "\n\n")

    def test_nan_weights(self):
        def spoil(weights):
            weights.add("decoder.norm.weight", [tiny_model.WIDTH], math.nan)
        model = tiny_model.write_model(self.folder / "nan", damage=spoil)
        for options in ([], ["--beams", 2], ["--target", "drei"]):
            result = self.run_code(7, "run", model, "--text", "one", *options)
            self.assertIn("not numbers", result.err)
            self.assertEqual(self.run_code(7, "run", model, "--text", "one", *options, "--json").json()["exit"], 7)


class Kinds(CommandTest):
    def test_decoder_continues(self):
        for attention in ("softmax", "relu"):
            model = tiny_model.write_model(self.folder, kind="decoder", attention=f'default = "{attention}"')
            texts = ["one two three", "", "seven"]
            alone = [self.run_ok("run", model, "--text", t, "--limit", 9).out for t in texts]
            together = self.run_ok("run", model, *[o for t in texts for o in ("--text", t)], "--limit", 9)
            self.assertEqual(together.out, "".join(alone))
            self.run_ok("run", model, "--text", "one", "--beams", 2, "--limit", 9)
            scored = self.run_ok("run", model, "--text", "one", "--target", "two three", "--json").json()
            self.assertEqual(scored["results"][0]["reference_tokens"], 3)

    def test_what_the_manifest_draws_from(self):
        """[decode] is what --top-k and --top-p are where they are not given, as their help says."""
        for key, option in (("top_k = 1", ["--top-k", 1]), ("top_p = 0.0", ["--top-p", 0])):
            model = tiny_model.write_model(self.folder, kind="decoder", extra=f"[decode]\ntemperature = 0.9\n{key}\n")
            drawn, same = (self.run_ok("run", model, "--text", "one", "--limit", 9, "--temperature", 5, *more) for more in ([], option))
            self.assertEqual(drawn.out, same.out)
        for option in ("top-k N ", "top-p X "):
            self.assertRegex(self.run_ok("run", "--help").out, rf"--{option}.*; default what the manifest says, or ")

    def test_options_of_writing(self):
        model = tiny_model.write_model(self.folder / "model", kind="encoder", head="classifier")
        for option, value in (("--beams", 2), ("--limit", 3), ("--stop", "x")):
            self.assertIn(f"{option}", self.run_code(2, "run", model, "--text", "one", option, value).err)

    def test_classifier(self):
        model = tiny_model.write_model(self.folder, kind="encoder", head="classifier")
        result = self.run_ok("run", model, "--text", "one two", "--text", "")
        for line in result.lines():
            label, score = line.split("\t")
            self.assertIn(int(label), range(tiny_model.CLASSES))
            self.assertTrue(0 < float(score) <= 1)
        scores = self.run_ok("run", model, "--text", "one two", "--json").json()["results"][0]["scores"]
        self.assertAlmostEqual(sum(scores), 1)
        self.run_code(2, "run", model, "--text", "one", "--target", "two")

    def test_encoder_with_lm_head(self):
        model = tiny_model.write_model(self.folder, kind="encoder")
        texts = ["one two three", "four"]
        alone = [self.run_ok("run", model, "--text", t).out for t in texts]
        self.assertEqual(self.run_ok("run", model, "--text", texts[0], "--text", texts[1]).out, "".join(alone))


class Output(CommandTest):
    def setUp(self):
        super().setUp()
        self.model = tiny_model.write_model(self.folder / "model")

    def test_written_whole_or_not_at_all(self):
        out = self.folder / "out.txt"
        out.write_text("before\n")
        out.chmod(0o640)
        self.run_code(6, "run", self.model, "--text", "one", "--text", "nine", "--output", out)
        self.assertEqual(out.read_text(), "before\n")
        result = self.run_ok("run", self.model, "--text", "one", "--text", "two", "--output", out)
        self.assertEqual(result.out, "")
        self.assertEqual(out.read_text(), self.run_ok("run", self.model, "--text", "one", "--text", "two").out)
        self.assertEqual(stat.S_IMODE(out.stat().st_mode), 0o640)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "out.txt"])

    def test_standard_output_by_its_name(self):
        said = self.run_ok("run", self.model, "--text", "one").out
        self.assertEqual(self.run_ok("run", self.model, "--text", "one", "--output", "/dev/stdout").out, said)

    def test_links_stay_links(self):
        (self.folder / "real.txt").write_text("before\n")
        (self.folder / "link.txt").symlink_to("real.txt")
        self.run_ok("run", self.model, "--text", "one", "--output", self.folder / "link.txt")
        self.assertTrue((self.folder / "link.txt").is_symlink())
        self.assertNotEqual((self.folder / "real.txt").read_text(), "before\n")
        (self.folder / "real.txt").unlink()
        self.run_ok("run", self.model, "--text", "one", "--output", self.folder / "link.txt")
        self.assertTrue((self.folder / "link.txt").is_symlink() and (self.folder / "real.txt").is_file())

    def test_never_an_input(self):
        lines = self.folder / "in.txt"
        lines.write_text("one\n")
        folder = self.model.parent
        os.link(folder / "vocab.txt", self.folder / "hard.txt")
        (self.folder / "soft.txt").symlink_to(self.model)
        (self.folder / "other.toml").write_text("")
        inputs = [self.model, folder / "vocab.txt", folder / "tiny.safetensors", folder / ".." / "model" / "vocab.txt",
                  self.folder / "hard.txt", self.folder / "soft.txt", self.folder / "other.toml"]
        before = [p.read_bytes() for p in inputs]
        for path in inputs:
            for command in (["run"], ["inspect", "--attention", "decoder.cross.1", "--csv"]):
                result = self.run_code(2, command[0], self.model, *command[1:], "--text", "one", "-o", path)
                self.assertIn("an input of this command", result.err)
                self.assertIn(path.name, result.err)
        self.run_code(2, "run", "model.toml", "--text", "one", "-o", "vocab.txt", cwd=folder)
        self.run_code(2, "run", self.model, "--file", lines, "-o", lines)
        self.run_code(2, "run", self.model, "--text", "one", "--target-file", lines, "-o", lines)
        self.assertEqual(([p.read_bytes() for p in inputs], lines.read_text()), (before, "one\n"))
        self.run_ok("run", self.model, "--text", "one", "-o", lines)
        self.run_ok("run", self.model, "--text", "one", "-o", self.folder / "new.toml")

    def test_places_that_cannot_be_written(self):
        for path in (self.folder, self.folder / "no" / "such", "/dev/full", "/proc/x"):
            self.run_code(6, "run", self.model, "--text", "one", "--output", path)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def test_limit_of_the_size_of_files(self):
        out = self.folder / "out"
        for command in (["run"], ["stream", "--policy", "offline"], ["tokenize"], ["inspect", "--attention", "encoder.self.1", "--csv"]):
            result = self.run_code(6, command[0], self.model, *command[1:], "--text", "one two", "-o", out,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)))
            self.assertIn("File too large", result.err)
            self.assertFalse(out.exists())

    def test_line_feeds_of_an_output(self):
        tiny_model.write_bytes_tokenizer(self.model.parent / "bytes.json")
        text = re.sub("(?m)^decoder = .*$", tiny_model.BYTES_DECODER, self.model.read_text())
        text = re.sub("(?s)file = .*?\n\\[", "seed = 1\n[", text)
        self.model.write_text(text + '[decode]\nforced = ["<0x61>", "<0x0A>", "<0x0D>", "<0x62>"]\n')
        lines, options = self.folder / "in.txt", ["run", self.model, "--limit", 4]
        lines.write_text("one\ntwo\n")
        self.assertEqual(self.run_ok(*options, "--file", lines).out, "a  b\na  b\n")
        document = self.run_ok(*options, "--file", lines, "-o", self.folder / "out", "--json").json()
        self.assertEqual([r["output"] for r in document["results"]], ["a\n\rb"] * 2)
        self.assertEqual((self.folder / "out").read_text(), "a  b\na  b\n")
        self.assertEqual(self.run_ok(*options, "--text", "one").out, "a\n\rb\n")

    def test_vectors_stay_with_their_lines(self):
        model, lines, out = SAMPLE.parents[2] / "manifests/sentence-encoder.toml", self.folder / "in.txt", self.folder / "out.npy"
        lines.write_text("one\n\u6771\ntwo\n")
        options = ["run", model, "--file", lines, "--unknown", "skip"]
        document = self.run_ok(*options, "-o", out, "--json").json()
        array = out.read_bytes()
        head = 10 + struct.unpack("<H", array[8:10])[0]
        rows, width = map(int, re.search(rb"\((\d+), (\d+)\)", array[:head]).groups())
        self.assertEqual(rows, 3)
        values = struct.unpack(f"<{3 * width}f", array[head:])
        self.assertTrue(all(math.isnan(x) for x in values[width:2 * width]))
        for row, result in zip((0, 2), document["results"], strict=True):
            for x, y in zip(values[row * width:(row + 1) * width], result["vector"], strict=True):
                self.assertAlmostEqual(x, y, places=6)

    def test_standard_output_full_or_closed(self):
        for arguments in (["doctor"], ["run", self.model, "--text", "one"], ["run", self.model, "--text", "one", "--json"],
                          ["inspect", self.model], ["--help"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([COMMAND, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, check=False)
            self.assertEqual(done.returncode, 6, done.stderr)
            self.assertIn(b"standard output", done.stderr)
            done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, check=False)
            self.assertEqual(done.returncode, 6, done.stderr)

    def test_closed_pipe(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([COMMAND, "doctor"], stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (6, b""))

    def test_locale_does_not_matter(self):
        plain = self.run_ok("inspect", self.model).out
        self.assertEqual(self.run_ok("inspect", self.model, env={"LC_ALL": "de_DE.UTF-8"}).out, plain)
        self.assertEqual(self.run_ok("inspect", self.model, env={"LC_ALL": "nonsense"}).out, plain)


class Interrupt(CommandTest):
    def start(self, *arguments, **options):
        return subprocess.Popen([COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def test_while_decoding(self):
        model = tiny_model.write_model(self.folder / "model")
        lines, out = self.folder / "in.txt", self.folder / "out.txt"
        lines.write_text("one two three four five six seven\n" * 200000)
        child = self.start("run", model, "--file", lines, "--output", out)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130, err)
        self.assertIn(b"interrupted", err)
        self.assertFalse(out.exists())
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in.txt", "model"])

    def test_while_a_pipe_waits_for_its_reader(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for reads in (False, True):
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if reads else None
            # Of a file of 100 kB the pipe takes 64.
            child = self.start("tokenize", SAMPLE, "--file", "-", "-o", pipe, stdin=subprocess.PIPE)
            child.stdin.write(b"one two three four five six seven\n" * 5000)
            child.stdin.close()
            child.stdin = None
            time.sleep(2)
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=60)
            self.assertEqual((child.returncode, err), (130, b"attnkit: interrupted\n"))
            if reads:
                os.close(reader)

    def test_while_waiting_for_input(self):
        child = self.start("run", SAMPLE, "--file", "-", "--json", stdin=subprocess.PIPE)
        time.sleep(1.0)
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130)
        self.assertIn(b'"attnkit.error/1"', out)


if __name__ == "__main__":
    unittest.main()
