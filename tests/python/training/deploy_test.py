"""A model that was trained in Python runs in C and Rust, and a plugin from elsewhere trains by its name alone."""

import json
import os
import random
import subprocess
import sys

from support import SOURCE, TorchTest, command, main

import tiny_model

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}


class Deploy(TorchTest):
    def train(self, attention, steps, **variables):
        """The manifest of a tiny model that was trained on lists of words, and the losses on the way."""
        drawn, lists = random.Random(1), []
        for _ in range(400):
            words = drawn.choices(list(WORDS), k=drawn.randint(1, 4))
            lists.append(f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}\n")
        (self.folder / "train.tsv").write_text("".join(lists), encoding="utf-8")
        manifest, out = tiny_model.write_model(self.folder / "tiny", attention=attention), self.folder / "run"
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
        plugins = self.folder / "plugins"
        plugins.mkdir()
        subprocess.run(["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{SOURCE}/abi/include", SOURCE / "samples/hello_plugin/mean.cpp",
                        "-o", plugins / "mean.so"], check=True)
        path = os.pathsep.join(filter(None, [str(plugins), os.environ.get("ATTNKIT_PLUGIN_PATH")]))
        manifest, losses = self.train('default = "relu"\n"decoder.self" = { use = "mean", decay = 0.5 }', 100, ATTNKIT_PLUGIN_PATH=path)
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertEqual(command("verify", manifest, env={"ATTNKIT_PLUGIN_PATH": path}).code, 0)


if __name__ == "__main__":
    main()
