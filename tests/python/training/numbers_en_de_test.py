"""numbers-en-de trained by the plugins and by its PyTorch reference: losses, gradients, and what many steps come to.

    numbers_en_de_test.py --measure STEPS [--f64] [--itself] [OPTION ...]      both over so many steps, in turns; options of attnkit.train
                                            --itself: the reference with one thread in place of the plugins, against itself with all
"""

import itertools
import json
import pathlib
import re
import statistics
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from support import SOURCE, TorchTest, main

from attnkit.torch import Supernet
from attnkit.train.__main__ import parser
from attnkit.train.examples import IGNORED
from attnkit.train.trainer import Trainer

sys.path.insert(0, str(SOURCE / "tests/models/reference"))
import model as reference  # noqa: E402

SAMPLE = SOURCE / "samples/models/numbers-en-de"
MIXED = {"encoder.self.1": "softmax", "encoder.self.2": "leap", "encoder.self.3": "cosformer", "decoder.self": "relu",
         "decoder.cross.1": "cosformer", "decoder.cross.2": "relu", "decoder.cross.3": "leap"}


class Reference(torch.nn.Module):
    """The reference behind the calls that a Trainer makes of a Supernet, whose weights and draws it takes."""

    def __init__(self, net):
        super().__init__()
        self.inner = reference.Model(net.info.target_vocab)
        self.inner.load_state_dict(net.state_dict())
        self.predict, self.baseline, self.draw, self.folder = net.predict, net.baseline, net.draw, net.folder
        self.place(net.baseline)

    def place(self, placement):
        self.placement = {(role, int(layer)): m for name, m in placement.items() for role, layer in (name.rsplit(".", 1),)}

    def forward(self, source, source_lengths, target, target_lengths, *, total=None, visible=None, expected=None, label_smoothing=0.0):
        total = self.predict(source, None, source_lengths) if total is None else total
        logits = self.inner(source, source_lengths, target, total.to(torch.get_default_dtype()), self.placement)
        if expected is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), expected.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)


class ReferenceTrainer(Trainer):
    def make_model(self, folder):
        return Reference(super().make_model(folder))


def trainers(folder, *options, kinds=(Trainer, ReferenceTrainer)):
    """(attnkit's, the reference's) of the four mechanisms from scratch, for the same batches, placements and steps."""
    text = (SAMPLE / "model.toml").read_text(encoding="utf-8")
    text = re.sub(r'(?m)^file = .*\nsha256 = .*$', "seed = 1", text).replace('"vocab.txt"', json.dumps(str(SAMPLE / "vocab.txt")))
    manifest = folder / "model.toml"
    manifest.write_text(text, encoding="utf-8")
    lines = (SAMPLE / "dev.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.tsv").write_text("".join(lines[::8]), encoding="utf-8")
    # Muon rounds to bfloat16, which makes of the smallest difference a large one.
    arguments = [str(manifest), "--data", str(folder / "train.tsv"), "--supernet", "--no-bf16", "--warmup", "20", "--steps", "1000", *map(str, options)]
    return [kind(parser().parse_args([*arguments, "--out", str(folder / f"run-{i}")])) for i, kind in enumerate(kinds)]


def norm(gradients):
    return sum(g.square().sum() for g in gradients.values()).sqrt()


def batches(trainer):
    while True:
        for batch in trainer.data.chunk(1, trainer.chunk, 0.0, trainer.options.tokens):
            yield batch
        trainer.chunk += 1


class NumbersEnDe(TorchTest):
    def test_losses_and_gradients(self):
        ours, theirs = trainers(self.folder, "--tokens", 1000)
        net, model = ours.model, theirs.model
        batch, mixed = next(batches(ours)), {name: MIXED.get(name) or MIXED[name.rsplit(".", 1)[0]] for name in net.candidates}
        for placement in (*(net.uniform(m) for m in reference.MECHANISMS), mixed, net.baseline):
            with self.subTest(placement=placement):
                found, expected = (self.gradients(each.float(), placement, batch) for each in (net, model))
                self.assertAlmostEqual(found.pop("loss"), expected["loss"], delta=1e-6 * expected.pop("loss"))
                # All in one: a ReLU that rounding puts on the other side of zero is much of a small tensor's gradient.
                self.assertLess(norm({name: expected[name] - g for name, g in found.items()}), 1e-4 * norm(expected))
                torch.set_default_dtype(torch.float64)
                self.addCleanup(torch.set_default_dtype, torch.float32)
                found, expected = (self.gradients(each.double(), placement, batch) for each in (net, model))
                torch.set_default_dtype(torch.float32)
                self.assertAlmostEqual(found.pop("loss"), expected["loss"], delta=1e-10 * expected.pop("loss"))
                for name, g in expected.items():
                    # A gradient that is zero but for rounding (softmax does not see a bias of its keys) has nothing to be relative to.
                    self.assertLess((found[name] - g).norm(), 1e-6 * g.norm() + 1e-12 * norm(expected), name)

    def gradients(self, model, placement, batch):
        model.zero_grad()
        model.place(placement)
        logits = model(batch.source, batch.source_lengths, batch.entered, batch.lengths)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.expected.flatten(), ignore_index=IGNORED)
        loss.backward()
        gradients = {name.removeprefix("inner."): p.grad for name, p in model.named_parameters() if p.grad is not None}
        return {"loss": loss.item(), **gradients}

    def test_steps(self):
        ours, theirs = trainers(self.folder, "--tokens", 800)
        for batch in itertools.islice(batches(ours), 20):
            a, b = (float(each.train_step([batch])) for each in (ours, theirs))
            # Before the first update and after it.  Then rounding may grow by ten with every few steps of a young model, in the reference as well.
            self.assertAlmostEqual(a, b, delta=(1e-6 if ours.step <= 2 else 1e-3) * b, msg=f"step {ours.step}")

    def test_the_manifest_of_training(self):
        net = Supernet.from_manifest(SAMPLE / "training.toml")
        for role, least in (("encoder.self", 10), ("decoder.self", 10), ("decoder.cross", 10)):
            self.assertGreaterEqual(len(net.candidates[f"{role}.1"]), least)


def measure(steps, *options):
    with tempfile.TemporaryDirectory() as folder:
        itself, threads = "--itself" in options, torch.get_num_threads()
        kinds = (ReferenceTrainer if itself else Trainer, ReferenceTrainer)
        made = trainers(pathlib.Path(folder), *(option for option in options if option not in ("--f64", "--itself")), kinds=kinds)
        if "--f64" in options:
            torch.set_default_dtype(torch.float64)
            for trainer in made:
                trainer.model.double()
                trainer.average = [p.double() for p in trainer.average]
        times, worst, drawn = ([], []), 0.0, batches(made[0])
        while made[0].step < steps:
            batch, losses = next(drawn), []
            for trainer, seconds in zip(made, times):
                torch.set_num_threads(1 if itself and trainer is made[0] else threads)
                begin = time.perf_counter()
                losses.append(float(trainer.train_step([batch])))
                seconds.append(time.perf_counter() - begin)
            worst = max(worst, abs(losses[0] - losses[1]) / losses[1])
            if made[0].step % 20 == 0:
                ours, theirs = (1e3 * statistics.median(seconds) for seconds in times)
                print(f"step {made[0].step}: losses {losses[0]:.6f} and {losses[1]:.6f}, at most {worst:.1e} apart until now; "
                      f"{ours:.0f} ms a step, the reference {theirs:.0f} ms", flush=True)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure(int(sys.argv[2]), *sys.argv[3:])
    else:
        main()
