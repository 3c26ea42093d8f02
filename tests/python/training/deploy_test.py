"""A model that was trained in Python runs in C and Rust, and a plugin from elsewhere trains by its name alone."""

import json
import os
import random
import re
import subprocess
import sys

from support import SOURCE, TorchTest, command, main

import tiny_model
from attnkit.torch._safetensors import tensors_of

# mean with a gain of each head that is learned.
GAINED = [
    ('.name = "mean"', '.name = "gained"'),
    ("    o = ports.output(", '    gain = ports.learned("gain", {heads}, "of each head");\n    o = ports.output('),
    ("  Plan plan(", """  void fill(uint32_t, uint64_t, float* data, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) data[i] = 1;
  }

  Plan plan("""),
    ("= sums[c] / sums[e];", "= static_cast<const Real*>(gain.of(run.ports).data)[h] * sums[c] / sums[e];"),
    ("    int64_t left = sight.queries;", """    int64_t left = sight.queries;
    const Real factor = static_cast<const Real*>(gain.of(grad.run->ports).data)[h];
    const attnkit::View<const Real> out(*grad.run, o);
    if (auto* to = static_cast<Real*>(gain.of(grad.grads).data))
      for (int64_t i = 0; i < sight.queries; ++i)
        for (int64_t c = 0; c < e; ++c) to[h] += given.row(b, h, i)[c] * out.row(b, h, i)[c] / factor;"""),
    ("[c] += given.row(b, h, left - 1)[c]", "[c] += factor * given.row(b, h, left - 1)[c]"),
    ("attnkit::Port v, o;", "attnkit::Port v, o, gain;"),
]

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}


class Deploy(TorchTest):
    def plugin(self, name, *changes):
        """ATTNKIT_PLUGIN_PATH with a plugin made of the sample's source with these changes."""
        plugins, source = self.folder / "plugins", (SOURCE / "samples/hello_plugin/mean.cpp").read_text(encoding="utf-8")
        for before, after in changes:
            self.assertIn(before, source)
            source = source.replace(before, after)
        plugins.mkdir()
        (plugins / f"{name}.cpp").write_text(source, encoding="utf-8")
        subprocess.run(["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{SOURCE}/abi/include", plugins / f"{name}.cpp", "-o", plugins / f"{name}.so"],
                       check=True)
        return os.pathsep.join(filter(None, [str(plugins), os.environ.get("ATTNKIT_PLUGIN_PATH")]))

    def train(self, attention, steps, **variables):
        """The manifest of a tiny model that was trained on lists of words, and the losses on the way."""
        drawn, lists = random.Random(1), []
        for _ in range(400):
            words = drawn.choices(list(WORDS), k=drawn.randint(1, 4))
            lists.append(f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}\n")
        (self.folder / "train.tsv").write_text("".join(lists), encoding="utf-8")
        manifest, out = tiny_model.write_model(self.folder / "tiny", attention=attention), self.folder / "run"
        text = manifest.read_text(encoding="utf-8")
        manifest.write_text(re.sub(r'file = ".*"\nsha256 = .*', "seed = 1", text), encoding="utf-8")
        done = subprocess.run([sys.executable, "-B", "-m", "attnkit.train", manifest, "--data", self.folder / "train.tsv", "--out", out, "--steps",
                               str(steps), "--tokens", "200", "--warmup", "5", "--lr", "0.01", "--threads", "1", "--log-every", "10"],
                              env={**os.environ, **variables}, capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out / "model" / "model.toml", [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]

    def test_trained_in_python_runs_in_c_and_rust(self):
        manifest, _ = self.train('"encoder.self" = "softmax"\n"decoder.self" = "relu"\n"decoder.cross" = "leap"', 300)
        programs = os.environ["ATTNKIT_TRANSLATORS"].split(os.pathsep)
        for program in programs:
            done = subprocess.run([program, manifest, "two three one"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.stdout.split("\n")[0], "zwei drei eins", f"{program}: {done.stdout}{done.stderr}")
        self.assertEqual(command("verify", manifest).code, 0)
        if len(programs) < 2:
            self.skipTest("it ran in C alone: there is no cargo for samples/rust")

    def test_a_plugin_from_elsewhere_trains_by_name_alone(self):
        path = self.plugin("gained", *GAINED)
        manifest, losses = self.train('default = "relu"\n"decoder.self" = { use = "gained", decay = 0.5 }', 100, ATTNKIT_PLUGIN_PATH=path)
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertEqual(command("verify", manifest, env={"ATTNKIT_PLUGIN_PATH": path}).code, 0)
        gains = tensors_of((manifest.parent / "weights.safetensors").read_bytes())["decoder.self.1.gained.gain"]
        self.assertTrue(all(abs(gain - 1) > 0.01 for gain in gains), gains)


if __name__ == "__main__":
    main()
