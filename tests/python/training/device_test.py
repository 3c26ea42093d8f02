"""python -m attnkit.train --device: what is on the device, what the CUDA variants learn, and what is refused."""

import os
import unittest
import unittest.mock
import warnings

import torch
from support import SPACE, TrainTest, attnkit, command, main

import tiny_model
from attnkit.torch.length import Fixed, Network, Ratio, Table
from attnkit.train.__main__ import parser
from attnkit.train.trainer import Trainer

META = torch.device("meta")  # has shapes and no numbers, and is never mixed with tensors elsewhere


class Device(TrainTest):
    def trainer(self, *options):
        return Trainer(parser().parse_args(self.arguments(*options)))

    def on_meta(self, *options):
        # Fused AdamW knows no such device, and what has no numbers has no lengths to compare.
        for name, made in (("trainer._device", lambda _: META), ("trainer.Trainer._optimizers", lambda _: [])):
            patch = unittest.mock.patch(f"attnkit.train.{name}", made)
            patch.start()
            self.addCleanup(patch.stop)
        return self.trainer(*options)

    def test_all_tensors_of_a_step_are_on_the_device(self):
        lengths = '\n[length]\npredict = "ratio"\nalpha = 1.5\n'
        self.manifest = tiny_model.write_model(self.folder / "tiny", attention='default = "relu"', extra=SPACE + lengths)
        teacher = tiny_model.write_model(self.folder / "teacher", extra=lengths)
        trainer = self.on_meta("--supernet", "--wait-k", "1,2", "--predicted-lengths", 0, "--teacher", teacher)
        self.assertEqual({t.device for t in (*trainer.average, *trainer.named.values(), *trainer.teacher.parameters())}, {META})
        batch = trainer.data.chunk(1, 0, 0.0, 200)[0]
        for placement in (trainer.supernet.baseline, trainer.supernet.uniform("leap")):
            trainer.supernet.place(placement)
            part = batch.share(0, 2).to(META)
            self.assertEqual({t.device for t in vars(part).values() if torch.is_tensor(t)}, {META})
            logits = trainer.outputs(trainer.model, part, unittest.mock.Mock(random=lambda: 1.0, uniform=lambda *_: 1.0, choice=lambda of: of[0]))
            logits.sum().backward()
            self.assertEqual(trainer.teacher(part.source, part.source_lengths, part.entered, part.lengths, layer=True)[0].device, META)
        self.assertEqual({p.grad.device for p in trainer.named.values() if p.grad is not None}, {META})

    def test_lengths_are_predicted_on_the_device(self):
        source, lengths = torch.zeros(2, 3, dtype=torch.long, device=META), torch.zeros(2, dtype=torch.long, device=META)
        for made in (Ratio(1.5), Fixed(3.0), Table([1.0, 2.0], 1.0, 9)):
            self.assertEqual(made(source, None, lengths).device, META, type(made).__name__)
        rows, network = torch.zeros(3, 4, device=META), object.__new__(Network)
        network.max_length, network.tensors = 9, {f"length.{name}": torch.zeros(shape) for name, shape in (
            ("conv.1.weight", (4, 4, 3)), ("conv.2.weight", (4, 4, 3)), ("conv.1.bias", 4), ("conv.2.bias", 4), ("conv.1.norm.weight", 4),
            ("conv.1.norm.bias", 4), ("conv.2.norm.weight", 4), ("conv.2.norm.bias", 4), ("out.weight", (1, 4)), ("out.bias", 1))}
        self.assertEqual({network._one(rows[:n]).device for n in (0, 3)}, {META})

    def test_a_checkpoint_goes_on_on_another_device(self):
        self.train("--steps", 2, "--evaluate-steps", 1000)
        with warnings.catch_warnings(action="ignore"):  # meta takes no numbers
            trainer = self.on_meta("--steps", 4)
        self.assertEqual((trainer.step, {t.device for t in trainer.average}), (2, {META}))

    def test_learns_by_the_variants_of_the_emulator(self):
        self.train("--steps", 4, "--evaluate-steps", 1000, out="cpu")
        of = attnkit.torch.runtime()
        self.addCleanup(attnkit.torch.use_runtime, of)
        attnkit.torch.use_runtime(attnkit.Runtime(threads=1, plugin_path=os.environ["ATTNKIT_EMULATED"]))
        self.train("--steps", 4, "--evaluate-steps", 1000, out="emulated")
        self.assertNotEqual(self.weights("cpu"), self.weights("emulated"), "the CPU's plugins ran in place of the variants")
        for cpu, emulated in zip(self.log("cpu"), self.log("emulated"), strict=True):
            self.assertAlmostEqual(cpu.get("loss", 0), emulated.get("loss", 0), delta=1e-3)

    def test_refuses_in_words(self):
        for name, part in (("tpu", "--device tpu: cpu, cuda or one GPU"), ("meta", "--device meta: cpu, cuda or one GPU")):
            self.assertIn(part, self.refusal("--device", name))
        if not torch.cuda.is_available():
            self.assertIn("finds no GPU here: train with --device cpu", self.refusal("--device", "cuda"))
        with unittest.mock.patch("torch.cuda.is_available", return_value=True), unittest.mock.patch("torch.cuda.device_count", return_value=2):
            self.assertIn("--device cuda:2: this process needs GPU 2, of 0 to 1 that are here", self.refusal("--device", "cuda:2"))
            with unittest.mock.patch.dict(os.environ, LOCAL_RANK="3"):
                self.assertIn("--device cuda: this process needs GPU 3, of 0 to 1", self.refusal("--device", "cuda"))
        with (unittest.mock.patch("attnkit.train.trainer._device", lambda _: torch.device("cuda")),
              unittest.mock.patch("attnkit.train.trainer.bound", lambda *_: unittest.mock.Mock(takes=lambda *_: False))):
            self.assertIn("--device cuda: encoder.self.1.relu has no gradient on CUDA: place another", self.refusal("--device", "cuda"))
        teacher = tiny_model.write_model(self.folder / "teacher")
        with (unittest.mock.patch("attnkit.train.trainer._device", lambda _: torch.device("cuda")),
              unittest.mock.patch("attnkit.train.trainer.bound", lambda *_: unittest.mock.Mock(takes=lambda *asked: asked[-1]))):
            self.assertIn("--device cuda: the teacher's encoder.self.1.softmax has no run on CUDA", self.refusal("--device", "cuda", "--teacher", teacher))
        self.assertFalse((self.folder / "run").exists())

    @unittest.skipUnless(torch.cuda.is_available(), "there is no GPU here")
    def test_a_gpu_learns_what_the_cpu_does(self):
        for device in ("cpu", "cuda"):
            self.train("--steps", 20, "--evaluate-steps", 1000, "--no-bf16", "--device", device, out=device)
        for cpu, cuda in zip(self.log("cpu"), self.log("cuda"), strict=True):
            self.assertAlmostEqual(cpu.get("loss", 0), cuda.get("loss", 0), delta=1e-3)
        self.assertEqual(command("verify", self.folder / "cuda" / "model" / "model.toml").code, 0)
        self.train("--steps", 40, "--evaluate-steps", 1000, "--device", "cpu", out="cuda")
        self.assertEqual(self.log("cuda")[-1]["step"], 40)


if __name__ == "__main__":
    main()
