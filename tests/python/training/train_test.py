"""python -m attnkit.train: what it learns, where it goes on, and what it refuses."""

import contextlib
import fcntl
import io
import itertools
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import termios
import time
import types
import unittest.mock

import torch
from support import SOURCE, SPACE, TrainTest, attnkit, command, lines, main

import tiny_model
from attnkit.torch import Model, Supernet
from attnkit.torch._safetensors import tensors_of
from attnkit._abi import ATTNKIT_DECODER
from attnkit.torch.loss import IGNORED
from attnkit.train.__main__ import main as train, parser
from attnkit.train.examples import Batch, Examples
from attnkit.train.muon import orthogonalised
from attnkit.train.trainer import Trainer


class Train(TrainTest):
    def test_learns_and_the_library_translates(self):
        self.train("--steps", 500, "--evaluate-steps", 1000, "--lr", 0.01)
        judged = self.log()[-1]["dev"]
        self.assertGreater(judged["exact"], 80)  # 90 to 100 with eight seeds
        with attnkit.Model(attnkit.torch.runtime(), self.folder / "run" / "model" / "model.toml") as model:
            self.assertEqual(model.translate("two three one"), "zwei drei eins")

    def test_compiled_once_for_all_shapes(self):
        for out, options in (("run", ()), ("compiled", ("--compile",))):
            self.train("--steps", 4, "--schedule", "constant", "--lr", 1e-3, *options, out=out)
        losses = [[line["loss"] for line in self.log(out) if "loss" in line][:4] for out in ("run", "compiled")]
        # Adam's first update is as large for a gradient of rounding alone as for any other, so only the first loss is that close.
        for eager, compiled, apart in zip(*losses, (1e-5, 1e-3, 1e-3, 1e-3), strict=True):
            self.assertLess(abs(compiled / eager - 1), apart, losses)

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model, graphs = Trainer._compiled(types.SimpleNamespace(model=Model.from_manifest(self.manifest))), []
        for rows, source, target in ((2, 3, 4), (3, 5, 6), (4, 7, 5), (5, 4, 8), (6, 9, 7), (7, 6, 9)):
            ids = [torch.full((rows, n), 4, dtype=torch.int32) for n in (source, target)]
            lengths = [torch.full((rows,), n, dtype=torch.int32) for n in (source, target)]
            model(ids[0], lengths[0], ids[1], lengths[1]).sum().backward()
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        self.assertGreater(graphs[0], 0)
        self.assertEqual(graphs[1], graphs[-1], graphs)

    def trainer(self, *options):
        """One that has not begun."""
        return Trainer(parser().parse_args(self.arguments(*options, out="other")))

    def run_of_page(self, number, **replaced):
        """Runs a block of docs/training.md, with these words in place of those."""
        block = (SOURCE / "docs/training.md").read_text(encoding="utf-8").split("```sh\n")[number].split("```")[0]
        (self.folder / "build" / "bin").mkdir(parents=True)
        (self.folder / "build" / "bin" / "attnkit").symlink_to(os.environ["ATTNKIT"])
        for written, here in {"python3": sys.executable, **replaced}.items():
            self.assertIn(written, block)
            block = block.replace(written, here)
        self.run_ok(["env", "-C", str(self.folder), "bash", "-euo", "pipefail", "-c", block])

    def test_the_commands_of_the_page(self):
        for name in ("model.toml", "vocab.txt", "tiny.safetensors"):
            os.replace(self.folder / "tiny" / name, self.folder / name)
        self.run_of_page(1, **{"export PYTHONPATH=build/lib/attnkit/python": "", "--minutes 30": "--steps 20",
                               "two hundred and forty-one euros": "one two"})

    def test_the_commands_for_a_checkpoint(self):
        for name in ("texts.txt", "dev.txt"):
            (self.folder / name).write_text("one two three one two three\nthree one two\n" * 8, encoding="utf-8")
        self.run_of_page(4, **{"SmolLM2-135M": str(SOURCE / "tests/import/golden/llama"), "--out run": "--out run --steps 3"})
        trained = self.folder / "run" / "model" / "model.toml"
        self.assertIn('default = "relu"', trained.read_text(encoding="utf-8"))
        self.assertEqual(command("verify", trained).code, 0)

    def test_goes_on_after_kill_as_if_it_had_never_stopped(self):
        options = "--steps", 40, "--evaluate-steps", 1000, "--checkpoint-every", 1e-9, "--dropout", 0.1
        self.train(*options, out="whole")
        running = subprocess.Popen(self.command(*options), stderr=subprocess.DEVNULL)
        checkpoint = self.folder / "run" / "checkpoint.pt"
        while not checkpoint.exists() and running.poll() is None:
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
        step = torch.load(checkpoint, weights_only=True)["step"]
        self.assertLess(step, 40)
        self.train(*options)
        self.assertEqual(self.weights("whole"), self.weights())

    def test_gives_free_memory_back_at_checkpoints(self):
        with unittest.mock.patch("attnkit.train.trainer._give_back") as gives_back:
            self.train("--steps", 3, "--evaluate-steps", 1000, "--checkpoint-every", 1e-9)
        self.assertEqual(gives_back.call_count, 3)

    def test_a_killed_run_leaves_no_step_twice_in_the_log(self):
        self.train("--steps", 3, "--evaluate-steps", 1000)
        log = self.folder / "run" / "log.jsonl"
        log.write_text(log.read_text(encoding="utf-8") + '7\n["step"]\n{"step": 4, "loss": 1.0}\n{"step": 5, "lo', encoding="utf-8")
        self.train("--steps", 6, "--evaluate-steps", 1000)
        self.assertEqual([entry["step"] for entry in self.log() if "loss" in entry], [1, 2, 3, 4, 5, 6])

    def test_ctrl_c_finishes_the_step_and_saves(self):
        running = subprocess.Popen(self.command("--steps", 100000), stderr=subprocess.PIPE, text=True)
        log = self.folder / "run" / "log.jsonl"
        while not (log.exists() and log.stat().st_size) and running.poll() is None:
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130, said)
        self.assertIn("the same command goes on", said)
        self.assertGreater(torch.load(self.folder / "run" / "checkpoint.pt", weights_only=True)["step"], 0)

    def test_a_terminal_that_goes_is_as_ctrl_c_but_under_nohup(self):
        terminal, other_end = os.openpty()
        running = subprocess.Popen(self.command("--steps", 100000), stderr=other_end, start_new_session=True,
                                   preexec_fn=lambda: fcntl.ioctl(other_end, termios.TIOCSCTTY, 0))
        os.close(other_end)
        log = self.folder / "run" / "log.jsonl"
        while not (log.exists() and log.stat().st_size) and running.poll() is None:
            time.sleep(0.01)
        os.close(terminal)
        self.assertGreater(running.wait(timeout=60), 0)
        self.assertGreater(torch.load(self.folder / "run" / "checkpoint.pt", weights_only=True)["step"], 0)

        step = Trainer.train_step

        def hung_up(trainer, batches):
            os.kill(os.getpid(), signal.SIGHUP)
            return step(trainer, batches)

        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))
        with unittest.mock.patch.object(Trainer, "train_step", hung_up):
            self.train("--steps", 2, out="nohup")
        self.assertEqual(self.log("nohup")[-1]["step"], 2)

    def test_a_terminal_shows_the_time_left(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        for said in (Terminal(), io.StringIO()):
            clock = types.SimpleNamespace(monotonic=itertools.count(0, 60).__next__)  # a minute each step
            with (unittest.mock.patch("attnkit.train.trainer.time", clock), contextlib.redirect_stdout(io.StringIO()),
                  contextlib.redirect_stderr(said)):
                train([*self.arguments("--steps", 4, dev=None, out=type(said).__name__), "--log-every", "3"])
            shown = said.getvalue()
            if said.isatty():
                before, _, after = re.split(r"(\{.*\}\n)", shown)
                self.assertEqual(before, "\r\x1b[Kstep 1, 25.0 %, 3 min left\r\x1b[Kstep 2, 50.0 %, 2 min left\r\x1b[K")
                self.assertEqual(after, "\r\x1b[Kstep 3, 75.0 %, 1 min left\r\x1b[Kstep 4, 100.0 %, 0 min left")
            else:
                self.assertRegex(shown, r"^\{'step': 3, .*\}\n$")

    def test_two_processes_are_one_with_twice_the_tokens(self):
        # Rows draw their own k, and not every batch has a row for both.
        (self.folder / "train.tsv").write_text(lines(400, 1) + "one two three four " * 8 + "\teins\n", encoding="utf-8")
        options = "--steps", 8, "--evaluate-steps", 1000, "--no-bf16", "--wait-k", "1,2,3"
        self.train(*options, "--tokens", 400, out="one")
        self.run_ok(self.command(*options, "--tokens", 200, out="two",
                                 launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")))
        one, two = ([entry["loss"] for entry in self.log(out) if "loss" in entry] for out in ("one", "two"))
        self.assertEqual(len(one), 8)
        for a, b in zip(one, two, strict=True):
            self.assertAlmostEqual(a, b, delta=2e-5 * a)

    def test_two_processes_train_a_block_whose_output_nobody_reads(self):
        """A classifier of a carried sequence: the last block's own output has no gradient."""
        self.manifest = tiny_model.write_model(self.folder / "of", kind="encoder", head="classifier", attention='default = "luna"')
        text = re.sub('file = .*\nsha256 = .*\n', "seed = 1\n", self.manifest.read_text(encoding="utf-8"))
        self.manifest.write_text(text.replace("classes = 5", 'classes = 5, of = "p"'), encoding="utf-8")
        (self.folder / "train.tsv").write_text("one two\t1\nthree\t2\none\t4\n" * 20, encoding="utf-8")
        self.run_ok(self.command("--steps", 3, dev=None, launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")))

    def test_accumulated_batches_are_one_batch(self):
        (self.folder / "same.tsv").write_text("one two\teins zwei\n" * 64, encoding="utf-8")
        options = "--steps", 3, "--evaluate-steps", 1000, "--no-bf16"
        self.train(*options, "--tokens", 192, out="one", data="same.tsv")
        self.train(*options, "--tokens", 96, "--accumulate", 2, out="two", data="same.tsv")
        one, two = ([entry["loss"] for entry in self.log(out) if "loss" in entry] for out in ("one", "two"))
        for a, b in zip(one, two, strict=True):
            self.assertAlmostEqual(a, b, delta=2e-5 * a)

    def test_goes_on_from_a_checkpoint_of_another_library(self):
        """A language model's attention becomes linear, and learns to be: what its own tensors were is where training begins."""
        manifest, texts = self.folder / "llama.toml", self.folder / "texts.txt"
        for name in ("llama", "qwen2"):
            self.assertEqual(command("import", SOURCE / "tests/import/golden" / name, "-o", manifest).code, 0)
            manifest.write_text(manifest.read_text(encoding="utf-8").replace('default = "softmax"', 'default = "relu"'), encoding="utf-8")
            texts.write_text("one two three one two three\nthree one two\n" * 8, encoding="utf-8")
            untrained = attnkit.torch.Model.from_manifest(manifest)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                train([str(manifest), "--data", str(texts), "--dev", str(texts), "--out", str(self.folder / name), "--steps", "30", "--lr",
                       "0.01", "--warmup", "5", "--threads", "1", "--log-every", "1"])
            losses = [entry["loss"] for entry in self.log(name) if "loss" in entry]
            self.assertLess(losses[-1], losses[0] / 2)
            trained = self.folder / name / "model" / "model.toml"
            self.assertEqual(command("verify", trained).code, 0)
            self.assertEqual(attnkit.torch.Model.from_manifest(trained).state_dict().keys(), untrained.state_dict().keys())

    def test_a_text_that_no_token_begins(self):
        """Its first token is entered and never expected."""
        rows, none = [([], [5, 6, 7]), ([], [8])], IGNORED
        for begin, entered, expected in ((1, [[1, 5, 6, 7], [1, 8, 0, 0]], [[5, 6, 7, 2], [8, 2, none, none]]),
                                         (-1, [[5, 6, 7], [8, 0, 0]], [[6, 7, 2], [2, none, none]])):
            batch = Batch(rows, types.SimpleNamespace(kind=ATTNKIT_DECODER, begin_id=begin, end_id=2), False)
            self.assertEqual((batch.entered.tolist(), batch.expected.tolist()), (entered, expected))
            self.assertEqual(batch.tokens, sum(token != none for row in expected for token in row))

    def test_forced_tokens_are_entered_and_never_expected(self):
        text, none = self.manifest.read_text(encoding="utf-8"), IGNORED
        self.manifest.write_text(text + '[decode]\nforced = ["\u2581vier"]\n', encoding="utf-8")
        self.train("--steps", 200, "--evaluate-steps", 1000, "--lr", 0.01)
        with attnkit.Model(attnkit.torch.runtime(), self.folder / "run" / "model" / "model.toml") as model:
            vier, drei = model.tokenize(attnkit.TARGET, "vier drei")
            data = Examples(model, self.folder / "dev.tsv")
            batch = data.all(100)[0]
            self.assertEqual(set(batch.entered[:, 1].tolist()), {vier})
            self.assertEqual(set(batch.expected[:, 0].tolist()), {none})
            rows = [line.split("\t") for line in (self.folder / "dev.tsv").read_text(encoding="utf-8").splitlines()]
            right = sum(model.translate(source) == f"vier {target}" for source, target in rows)
        self.assertAlmostEqual(100 * right / len(rows), self.log()[-1]["dev"]["exact"], delta=15)  # a wrong token may be made good by none after it
        made = Batch([([3], [drei])], types.SimpleNamespace(kind=0, begin_id=1, end_id=2), False, [vier])
        self.assertEqual((made.entered.tolist(), made.expected.tolist()), ([[1, vier, drei]], [[none, drei, 2]]))
        trainer = self.trainer("--wait-k", "1")
        self.assertEqual(trainer.visible(batch, None)[:, :3].tolist(), [[min(k, n) if k < n - 1 else n for k in (1, 1, 2)] for n in batch.source_lengths.tolist()])

    def test_sources_that_end_with_no_token(self):
        text = self.manifest.read_text(encoding="utf-8")
        long = {"data": "long.tsv"}
        (self.folder / "long.tsv").write_text(f"{'one ' * 64}\teins\n", encoding="utf-8")  # max_length tokens without </s>
        (self.folder / "none.tsv").write_text("\teins\n", encoding="utf-8")
        self.assertIn("has 65 tokens", self.refusal("--steps", 1, **long))
        self.train("--steps", 1, data="none.tsv", out="empty")
        self.manifest.write_text(text.replace("encoder = {", "encoder = { end = false,"), encoding="utf-8")
        self.train("--steps", 1, **long)
        trained = Model.from_manifest(self.folder / "run" / "model" / "model.toml")
        self.assertEqual(command("verify", trained.export(self.folder / "golden", rows=100)).code, 0)  # of rows that end in </s> by chance
        self.assertIn("none.tsv:1: the source has no tokens", self.refusal("--steps", 1, data="none.tsv", out="other"))
        self.assertIn("--wait-k is of sources that end with a token", self.refusal("--steps", 1, "--wait-k", 1, out="other"))

    def test_learns_from_a_teacher(self):
        self.train("--steps", 300, "--evaluate-steps", 1000, "--lr", 0.01, out="teacher")
        teacher = ["--teacher", self.folder / "teacher" / "model" / "model.toml"]
        self.train("--steps", 300, "--evaluate-steps", 1000, "--lr", 0.01, *teacher, out="taught")
        self.assertGreater(self.log("taught")[-1]["dev"]["exact"], 80)
        first = {}
        for out, options in {"data": [], "same": [], "other": teacher}.items():  # one step by the data's tokens, and by what it says of them
            self.train("--steps", 1, *options, out=out)
            first[out] = self.log(out)[0]["loss"]
        self.assertEqual(first["data"], first["same"])
        self.assertNotEqual(first["data"], first["other"])
        short = self.manifest.with_name("short.toml")
        short.write_text(re.sub(r"max_length = \d+", "max_length = 8", self.manifest.read_text(encoding="utf-8")), encoding="utf-8")
        self.assertIn("its max_length is 8", self.refusal("--steps", 1, "--teacher", short, out="short"))
        self.assertIn("a teacher writes the same text", self.refusal("--steps", 1, "--teacher", SOURCE / "samples/manifests/relu.toml"))
        other = tiny_model.write_model(self.folder / "other")
        vocabulary = other.with_name("vocab.txt").read_text(encoding="utf-8")
        (self.folder / "data.py").write_text("def pairs(*_):\n    return [('one', 'two eins')] * 5\n", encoding="utf-8")
        for words, said in (({"one": "two", "two": "one"}, ' spells "one" with [4] where the model has [3]: give it'),
                            ({"eins": "zwei", "zwei": "eins"}, ' spells "two eins" with [12] where the model has [13]: give it'),
                            ({"eins": "uno"}, ': the vocabulary cannot spell the word "eins"')):
            of_as_many_tokens = re.sub("|".join(words), lambda m: words[m[0]], vocabulary)
            other.with_name("vocab.txt").write_text(of_as_many_tokens, encoding="utf-8")
            self.assertIn(f"--teacher {other}{said}", self.refusal("--steps", 1, "--teacher", other, out="unlike", data="data.py:pairs"))
        self.assertIn(f"--teacher {other}: the vocabulary cannot spell", self.refusal("--steps", 1, "--teacher", other, out="unlike"))

    def test_trains_a_supernet_and_every_placement_runs(self):
        self.train("--supernet", "--steps", 60, "--evaluate-steps", 1000, "--sandwich", 1, "--optimizer", "muon")
        judged = self.log()[-1]["dev"]
        self.assertEqual(set(judged), {"baseline", "relu", "linear", "leap"})
        text = (self.folder / "run" / "model" / "model.toml").read_text(encoding="utf-8")
        placed = text.replace('default = "relu"', 'default = "relu"\n"encoder.self" = "linear"\n"decoder.self" = "leap"')
        self.assertNotEqual(text, placed)
        stored = tensors_of(self.weights())
        with attnkit.Model.from_text(attnkit.torch.runtime(), placed, self.folder / "run" / "model") as model:
            for name, tensor in tensors_of(model.weights()).items():
                self.assertTrue(torch.equal(tensor, stored[name]), name)

    def test_a_placed_supernet_exports_what_its_manifest_says(self):
        net = Supernet.from_manifest(self.manifest)
        net.place({"encoder.self": "linear"})
        self.assertEqual(command("verify", net.export(self.folder / "placed")).code, 0)
        self.assertEqual(net.encoder.block("self", "1").mechanism, "linear")

    def test_a_supernet_goes_on_with_projections_that_the_baseline_lacks(self):
        text = self.manifest.read_text(encoding="utf-8").replace('"decoder.self" = ["relu", "leap"]', '"decoder.self" = ["ssru", "relu"]')
        text = text.replace('default = "relu"', 'default = "relu"\n"decoder.self" = "ssru"')
        text = re.sub(r'file = "tiny.safetensors"\nsha256 = .*', "seed = 1", text)
        self.manifest.write_text(text, encoding="utf-8")
        self.train("--supernet", "--steps", 1, "--evaluate-steps", 1000)
        again = Supernet.from_manifest(self.folder / "run" / "model" / "model.toml").state_dict()
        stored = tensors_of(self.weights())
        self.assertIn("decoder.self.1.q.weight", stored)
        for name, tensor in stored.items():
            self.assertTrue(torch.equal(tensor, again[name]), name)

    def test_a_mark_before_the_first_line_is_no_text(self):
        self.train("--steps", 1, "--evaluate-steps", 1000, out="plain")
        for file in (self.manifest, self.folder / "train.tsv"):
            file.write_text("\ufeff" + file.read_text(encoding="utf-8"), encoding="utf-8")
        self.train("--steps", 1, "--evaluate-steps", 1000, out="marked")
        self.assertEqual(self.weights("plain"), self.weights("marked"))

    def test_data_of_a_file_with_dataclasses(self):
        (self.folder / "data.py").write_text(
            "from __future__ import annotations\nimport dataclasses\n\n@dataclasses.dataclass\nclass Pair:\n    source: str\n    target: str\n\n"
            "def pairs(seed, chunk, progress):\n    return [dataclasses.astuple(Pair('one', 'eins'))] * 5\n", encoding="utf-8")
        self.train("--steps", 1, "--evaluate-steps", 1000, data="data.py:pairs")

    def test_patience_may_end_or_begin_later(self):
        options = "--evaluate-steps", 1, "--lr", 3, "--warmup", 1, "--average", 0, "--schedule", "constant"
        self.train(*options, "--steps", 4, "--patience", 2)
        self.train(*options, "--steps", 6)
        self.train(*options, "--steps", 6, out="without")
        self.assertEqual(self.weights(), self.weights("without"))
        self.train(*options, "--steps", 20, "--patience", 1, out="without")
        self.assertGreater(self.log("without")[-1]["step"], 6)

    def test_multiplies_bfloat16_where_the_processor_does(self):
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        if "avx512_bf16" not in flags and "amx_bf16" not in flags:
            self.skipTest("this processor has no bfloat16 products")
        self.train("--steps", 2, "--evaluate-steps", 1000, out="half")
        self.train("--steps", 2, "--evaluate-steps", 1000, "--no-bf16", out="single")
        self.train("--steps", 2, "--evaluate-steps", 1000, "--bf16-until", 0, out="until")
        half, single, until = ([entry["loss"] for entry in self.log(out) if "loss" in entry] for out in ("half", "single", "until"))
        self.assertNotEqual(half, single)
        self.assertEqual(until, single)

    def test_muon_multiplies_bfloat16_where_the_processor_does(self):
        for has, products in ((False, torch.float32), (True, torch.bfloat16)):
            with unittest.mock.patch("attnkit.train.trainer._has_bf16", return_value=has):
                muon = Trainer(parser().parse_args(self.arguments("--optimizer", "muon"))).optimizers[0]
            self.assertEqual(muon.products, products)
            stack = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(1))
            singular = torch.linalg.svdvals(orthogonalised(stack, muon.products))
            self.assertGreater(singular.min(), 0.5)
            self.assertLess(singular.max(), 1.3)

    def test_a_supernet_holds_the_candidates_of_overridden_layers_too(self):
        path = tiny_model.write_model(self.folder / "override", extra=SPACE,
                                      attention='default = "relu"\noverride = [{ block = "decoder.self", layers = 1, use = "linear" }]')
        net = Supernet.from_manifest(path)
        self.assertEqual(net.candidates["decoder.self.1"], ["linear", "relu", "leap"])
        text = re.sub("file = .*\nsha256 = .*", "seed = 1", path.read_text(encoding="utf-8")).replace("layers = 1, vocab", "layers = 2, vocab")
        text = text.replace(', "decoder.cross" = ["relu", "linear"]', "")
        net = Supernet(re.sub("override = .*", '''override = [{ block = "encoder.self", layers = 1, use = "efficient" },
            { block = "decoder.cross", layers = 1, use = "efficient" }, { block = "decoder.cross", layers = 2, use = "softmax" }]''', text), path.parent)
        self.assertEqual(net.candidates["encoder.self.1"], ["efficient", "relu", "linear"])
        drawn = [net.draw(random.Random(i), baseline=0, per_layer=0) for i in range(200)]
        for placement in drawn:
            net.place(placement)
        self.assertEqual({(p["encoder.self.1"], p["encoder.self.2"]) for p in drawn}, {("relu", "relu"), ("linear", "linear")})
        self.assertEqual({(p["decoder.cross.1"], p["decoder.cross.2"]) for p in drawn}, {("efficient", "softmax")})

    def test_draws_placements_by_weight(self):
        net = Supernet.from_manifest(self.manifest)
        self.assertEqual(net.candidates["decoder.self.1"], ["relu", "leap"])
        drawn = [net.draw(random.Random(i), {"leap": 3}, baseline=0)["decoder.self.1"] for i in range(400)]
        self.assertAlmostEqual(drawn.count("leap") / 400, 0.75, delta=0.08)
        self.refused("encoder.self.1 has relu, linear, not leap", net.place, {"encoder.self": "leap"})

    def test_wait_k_hides_what_was_not_read(self):
        self.train("--wait-k", "1,2", "--steps", 4, "--evaluate-steps", 1000)
        model = Model.from_manifest(self.manifest)
        source, target = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[1, 7]])
        changed = source.clone()
        changed[0, 3] = 8
        memory, lengths, aux = model.encode(source)
        other = model.encode(changed)[0]
        seen = torch.tensor([[1, 2]])
        # Only rows that are visible may matter: the others are exchanged.
        mixed = torch.cat([memory[:, :2], other[:, 2:]], 1)
        self.assertTrue(torch.equal(model.decode(target, None, (memory, lengths, aux), visible=seen),
                                    model.decode(target, None, (mixed, lengths, aux), visible=seen)))

    def test_prefixes_hide_what_an_encoder_sees_ahead(self):
        self.train("--wait-k", "1,2", "--prefixes", "--steps", 4, "--evaluate-steps", 2)
        trainer = self.trainer("--wait-k", "1,2", "--prefixes")
        self.assertIn("exact_at_cut", self.log()[-1]["dev"])
        batch, counted = trainer.data.chunk(1, 0, 0.0, 400)[0], []
        real = torch.arange(batch.expected.shape[1]) < batch.lengths[:, None]
        for seed in range(200):
            cut = trainer.cut(batch, random.Random(seed))
            counted.append(cut.expected != IGNORED)
            self.assertTrue(torch.equal(cut.expected[counted[-1]], batch.expected[counted[-1]]))
            ends = cut.read == batch.source_lengths
            self.assertTrue((counted[-1].sum(1)[~ends] == 1).all())
            behind = cut.read - counted[-1].int().argmax(1)  # rows read before the first token, of k = 1 or 2
            self.assertTrue(((behind == 1) | (behind == 2) | ends).all(), behind)
            self.assertTrue((cut.read != batch.source_lengths - 1).all())  # </s> comes with the last token
            self.assertTrue((counted[-1] | ~real | ~ends[:, None]).gather(1, batch.lengths[:, None] - 1).all())
            self.assertEqual(cut.tokens, int(counted[-1].sum()))
        share, expected = torch.stack(counted).float().mean(0), torch.zeros(batch.rows)
        for k in (1, 2):
            for row, (n, t) in enumerate(zip(batch.source_lengths.tolist(), batch.lengths.tolist())):
                expected[row] += 0.5 / len({k + i if k + i < n - 1 else n for i in range(t)})
        self.assertLess(float(((share - expected[:, None]).abs() * real).max()), 0.15)  # of 200 draws, a deviation of 0.036 at the most

        cut = trainer.cut(batch, random.Random(1))
        unread = torch.arange(batch.source.shape[1]) >= cut.read[:, None]
        self.assertTrue(unread.any())
        losses = [trainer.loss(cut, random.Random(1))]
        cut.source = torch.where(unread, 8, cut.source)
        losses.append(trainer.loss(cut, random.Random(1)))
        self.assertTrue(torch.equal(*losses))
        self.assertEqual(trainer.cut(batch).read.tolist(), trainer.cut(batch).read.tolist())  # dev is judged by the same rows each time

    def test_takes_an_endless_data_set(self):
        (self.folder / "endless.py").write_text(
            "def pairs(seed, chunk, progress):\n    return [('one', 'eins'), ('two one', 'zwei eins')] * 20\n", encoding="utf-8")
        self.train("--steps", 5, "--evaluate-steps", 1000, data="endless.py:pairs")
        self.assertEqual(self.log()[-2]["step"], 5)

    def test_goes_on_in_the_midst_of_a_chunk_that_depends_on_progress(self):
        (self.folder / "harder.py").write_text(
            "def pairs(seed, chunk, progress):\n    return [('one two', 'eins zwei' if progress < 0.2 else 'zwei eins')] * 800\n", encoding="utf-8")
        options, step = ("--steps", 6, "--evaluate-steps", 1000), Trainer.train_step
        self.train(*options, data="harder.py:pairs", out="whole")

        def interrupted(trainer, batches):
            if trainer.step == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return step(trainer, batches)

        with unittest.mock.patch.object(Trainer, "train_step", interrupted):
            self.assertEqual(self.refusal(*options, data="harder.py:pairs"), "130")
        self.train(*options, data="harder.py:pairs")
        self.assertEqual([line["loss"] for line in self.log() if "loss" in line], [line["loss"] for line in self.log("whole") if "loss" in line])
        self.assertEqual(self.weights("whole"), self.weights())

    def test_stops_early(self):
        self.train("--steps", 1000, "--lr", 1e-12, "--evaluate-steps", 2, "--patience", 2, "--average", 0)
        self.assertLess(self.log()[-1]["step"], 20)

    def test_once_stopped_early_it_stays_so(self):
        options = "--steps", 400, "--evaluate-steps", 4, "--patience", 1, "--lr", 0.3
        self.train(*options)
        log, weights = self.log(), self.weights()
        self.train(*options)
        self.assertEqual((self.log(), self.weights()), (log, weights))
        judged = [entry["step"] for entry in log if "dev" in entry]
        self.assertEqual(len(judged), len(set(judged)))

    def test_other_batches_begin_their_pass_anew(self):
        self.train("--steps", 3, "--evaluate-steps", 1000, "--tokens", 50)
        place = torch.load(self.folder / "run" / "checkpoint.pt", weights_only=True)["place_in_chunk"]
        self.assertEqual(place, 3)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            trainer = Trainer(parser().parse_args(self.arguments("--tokens", 60)))
        self.assertEqual((trainer.step, trainer.place_in_chunk), (3, 0))
        self.assertIn("pass 1 of the data begins anew", said.getvalue())

    def test_another_dev_is_judged_anew(self):
        self.train("--steps", 3, "--evaluate-steps", 1, "--patience", 5)
        (self.folder / "other.tsv").write_text(lines(40, 3), encoding="utf-8")

        def found(*options, dev):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                trainer = Trainer(parser().parse_args(self.arguments("--patience", 5, *options, dev=dev)))
            return (trainer.best, trainer.worse, trainer.best_average, trainer.evaluated), said.getvalue()

        (best, _, average, evaluated), said = found(dev="dev.tsv")
        self.assertEqual((average is None, evaluated, said), (False, 3, ""))
        self.assertLess(best, float("inf"))
        for options, dev in (((), "other.tsv"), (("--dev-examples", 10), "dev.tsv")):
            state, said = found(*options, dev=dev)
            self.assertEqual(state, (float("inf"), 0, None, -1))
            self.assertIn("--dev is not that of ", said)
        self.train("--steps", 3, "--evaluate-steps", 1, "--patience", 5, dev="other.tsv")
        self.assertEqual([entry["step"] for entry in self.log() if "dev" in entry], [1, 2, 3, 3])

    def test_a_full_disk(self):
        self.train("--steps", 1, "--evaluate-steps", 1000)
        checkpoint, before = self.folder / "run" / "checkpoint.pt", resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        for part in (2, 1.01):  # in the midst of a tensor, and where the file ends
            for out, kept in (("run", f"the checkpoint of an earlier step is kept in {checkpoint}"), ("new", "there is no checkpoint yet")):
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(checkpoint.stat().st_size / part), before[1]))
                said = self.refusal("--steps", 2, "--evaluate-steps", 1000, out=out)
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
                self.assertEqual(said, f"error: {self.folder / out / 'checkpoint.pt'} cannot be written: File too large: see to that and start again; {kept}")
                self.assertEqual([path.name for path in (self.folder / out).glob("*.part")], [])
        self.assertEqual(torch.load(checkpoint, weights_only=True)["step"], 1)
        (self.folder / "blocked").mkdir()
        (self.folder / "blocked" / "model").write_text("no folder", encoding="utf-8")
        self.assertIn("blocked/model cannot be written: File exists: see to that", self.refusal("--steps", 1, out="blocked"))

    def test_no_model_of_what_is_no_number(self):
        """The last step is judged by no loss."""
        said = self.refusal("--steps", 1, "--lr", 1e40)
        self.assertRegex(said, "error: step 1: a weight of (encoder|decoder|head)[^ ]* is not finite after it; there is no checkpoint yet: lower --lr")
        self.assertIsNone(self.log()[-1]["dev"]["loss"])
        said = self.refusal("--steps", 1, "--lr", 1e6, "--f16", out="large")
        self.assertRegex(said, r"error: --f16 ends at 65504, and [a-z0-9.]+ has [0-9]+: export without it")
        self.train("--steps", 1, "--lr", 1e6, out="large")
        self.assertTrue(self.weights("large"))

    def test_a_gradient_that_is_no_number_names_block_and_step(self):
        self.train("--steps", 1, "--evaluate-steps", 1000)
        step = torch.load(self.folder / "run" / "checkpoint.pt", weights_only=True)["step"]
        said = self.refusal("--steps", 200, "--lr", 1e30, "--evaluate-steps", 1000, "--clip", 1e30, "--schedule", "constant")
        self.assertRegex(said, r"error: step \d+: the (gradient|output) of (encoder|decoder|head)\S* is not finite; the checkpoint of an earlier step")
        self.assertEqual(torch.load(self.folder / "run" / "checkpoint.pt", weights_only=True)["step"], step)

    def test_the_block_that_makes_no_number_is_named(self):
        trainer = Trainer(parser().parse_args(self.arguments("--dropout", 0.1)))
        batches = trainer.data.chunk(1, 0, 0.0, 200)[:1]

        def output(module, inputs, y):
            return y * float("nan")

        def gradient(module, inputs, y):
            if y.requires_grad:
                y.register_hook(lambda g: g * float("nan"))

        for spoil in (output, gradient):
            for name in ("encoder.self.1", "encoder.ffn.1", "decoder.self.1", "decoder.cross.1", "decoder.ffn.1"):
                with self.subTest(spoil.__name__, block=name), trainer.model.get_submodule(name).register_forward_hook(spoil):
                    self.refused(f"step 1: the {spoil.__name__} of {name} is not finite; there is no checkpoint", trainer.train_step, batches)
                for optimizer in trainer.optimizers:
                    optimizer.zero_grad()
        trainer.train_step(batches)

    def test_refuses_in_words(self):
        self.train("--steps", 1, "--evaluate-steps", 1000)
        for options, where, part in (
                (("--seed", 2), {}, "has --seed 1: give it"),
                (("--optimizer", "muon"), {}, "has --optimizer adamw: give it"),
                (("--supernet",), {}, "has no --supernet: leave it out"),
                (("--teacher", self.folder / "none.toml"), {"out": "new"}, "none.toml"),
                ((), {"out": "dev.tsv"}, "dev.tsv: File exists: name a folder"),
                ((), {"out": "dev.tsv/run"}, "run: Not a directory: name a folder"),
                ((), {"out": "taken"}, "taken: Is a directory: name a folder"),
                ((), {"data": "no.py:pairs", "out": "new"}, "no.py:pairs: FileNotFoundError"),
                ((), {"data": "bad.py:pairs", "out": "new"}, "bad.py:pairs: SyntaxError: invalid syntax (bad.py, line 1)"),
                ((), {"data": "odd.py:none", "out": "new"}, "odd.py:none: AttributeError"),
                ((), {"data": "odd.py:fails", "out": "new"}, "odd.py:fails, chunk 0: ValueError: too odd (line 4)"),
                ((), {"data": "odd.py:one", "out": "new"}, "odd.py:one, chunk 0: 1 fields, not 2: source and target"),
                ((), {"data": "odd.py:text", "out": "new"}, "odd.py:text, chunk 0: 1 fields, not 2"),
                ((), {"data": "odd.py:three", "out": "new"}, "odd.py:three, chunk 0: 3 fields, not 2"),
                (("--sandwich", 1, "--out", "new"), {}, "are of --supernet"),
                (("--supernet", "--weights", "rellu=2", "--out", "new"), {}, "--weights names rellu"),
                (("--prefixes", "--out", "new"), {}, "--prefixes is of --wait-k"),
                (("--patience", 1, "--out", "new"), {"dev": None}, "give --dev"),
                ((), {"data": "none.tsv"}, "none.tsv"),
                ((), {"data": "bad.tsv", "out": "new"}, "bad.tsv:2: 1 fields, not 2"),
                ((), {"data": "long.tsv", "out": "new"}, "long.tsv:1: \"one one"),
                ((), {"data": "unknown.tsv", "out": "new"}, 'unknown.tsv:2: the vocabulary cannot spell the word "zebra"'),
                ((), {"data": "return.tsv", "out": "new"}, "return.tsv:2: 3 fields, not 2"),
                ((), {"data": "empty.tsv", "out": "new"}, "has no examples")):
            (self.folder / "taken" / "log.jsonl").mkdir(parents=True, exist_ok=True)
            (self.folder / "return.tsv").write_bytes(b"one\teins\r\none\teins\rtwo\tzwei\n")
            (self.folder / "bad.tsv").write_text("one\teins\ntwo\n", encoding="utf-8")
            (self.folder / "long.tsv").write_text("one " * 70 + "\teins\n", encoding="utf-8")
            (self.folder / "unknown.tsv").write_text("one\teins\nzebra\teins\n", encoding="utf-8")
            (self.folder / "empty.tsv").write_text("", encoding="utf-8")
            (self.folder / "bad.py").write_text("def pairs(:\n", encoding="utf-8")
            (self.folder / "odd.py").write_text(
                "one, text, three = (lambda *_, pair=pair: [pair] * 5 for pair in (('one',), 'one', ('one', 'eins', 'uno')))\n\n"
                "def fails(seed, chunk, progress):\n    raise ValueError('too\\nodd')\n", encoding="utf-8")
            with self.subTest(part=part):
                self.assertIn(part, self.refusal("--steps", 2, *options, **where))
        self.train("--supernet", "--steps", 1, "--evaluate-steps", 1000, out="net")
        self.assertIn("has --supernet: give it", self.refusal("--steps", 2, out="net"))
        for option, value, part in (("--weight-decay", -5, "-5 is below 0"), ("--seed", 2**64, "has more than 64 bits"),
                                    ("--seed", -2**63 - 1, "has more than 64 bits"), ("--wait-k", 2**53 + 1, "is above 9007199254740992"),
                                    ("--steps", 10**400, "is above 9007199254740992"), ("--threads", 1025, "1025 is above 1024")):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
                parser().parse_args([*self.arguments(), f"{option}={value}"])
            self.assertIn(part, said.getvalue())
        with open(self.folder / "run" / "log.jsonl", "ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertIn("run: another training writes it: give another --out", self.refusal("--steps", 2))
        (self.folder / "run" / "checkpoint.pt").write_bytes(b"broken")
        self.assertIn("is no checkpoint", self.refusal("--steps", 2))
        text = self.manifest.read_text(encoding="utf-8")
        self.manifest.write_text(text.replace('default = "relu"', 'default = "linear"'), encoding="utf-8")
        self.train("--steps", 1, "--evaluate-steps", 1000, out="other")
        os.replace(self.folder / "other" / "checkpoint.pt", self.folder / "run" / "checkpoint.pt")
        self.manifest.write_text(text, encoding="utf-8")
        self.assertIn("is of another manifest", self.refusal("--steps", 2))
        self.train("--steps", 1, "--evaluate-steps", 1000, out="words")
        vocabulary = self.folder / "tiny" / "vocab.txt"
        words = vocabulary.read_text(encoding="utf-8").splitlines()
        vocabulary.write_text("\n".join([*words[:-2], words[-1], words[-2], ""]), encoding="utf-8")
        self.assertIn("is of other vocabularies", self.refusal("--steps", 2, out="words"))


if __name__ == "__main__":
    main()
