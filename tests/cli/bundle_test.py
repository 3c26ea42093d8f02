"""attnkit bundle, and attnkit search --bundle: a model in a folder that runs wherever it is put."""

import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import time
import tomllib
import unittest
import zipfile

from command import COMMAND, SAMPLE
from search_support import SPACE, SearchTest, search_table

PHRASES = ["two hundred and forty-one euros ; half past three", "the third of march"]


def tensors(path):
    """Name, type and bytes of a safetensors file's tensors."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], raw[8 + size:][slice(*t["data_offsets"])]) for name, t in header.items()}


def with_limit(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Bundles(SearchTest):
    def setUp(self):
        super().setUp()
        self.bundle = self.folder / "bundle"

    def make(self, manifest, code=0, bundle=None, **options):
        return self.run_code(code, "bundle", manifest, "-o", bundle or self.bundle, **options)

    def moved(self):
        """Into a folder of another name; what it was made from is gone from there."""
        place = self.folder / "another machine" / "x"
        shutil.move(self.bundle, place)
        return place / "model.toml"

    def check(self, manifest):
        """Nothing to complain of, and nothing of [search] left."""
        said = self.run_ok("validate", manifest, "--json").json()
        self.assertEqual(said["diagnostics"], [])
        tables = tomllib.loads(manifest.read_text())
        self.assertNotIn("search", tables)
        self.assertNotIn("seed", tables["weights"])
        weights = manifest.parent / tables["weights"]["file"]
        self.assertEqual(hashlib.sha256(weights.read_bytes()).hexdigest(), tables["weights"]["sha256"])
        return tables

    def says(self, manifest, words, **options):
        return self.run_ok("run", manifest, *[o for w in words for o in ("--text", w)], **options).out

    def left(self):
        return sorted(p.name for p in self.folder.iterdir())


class Models(Bundles):
    def test_the_sample(self):
        said = self.make(SAMPLE)
        self.assertEqual(said.err, "")
        manifest = self.moved()
        tables = self.check(manifest)
        self.assertEqual(sorted(tables["attention"]["params"]), ["cosformer", "leap"])
        self.assertEqual(sorted(p.name for p in manifest.parent.iterdir()),
                         ["LICENSE", "README.md", "model.toml", "numbers-en-de.safetensors", "vocab.txt"])
        self.assertFalse((manifest.parent / "LICENSE").is_symlink())
        self.assertEqual(self.says("model.toml", PHRASES, cwd=manifest.parent), self.says(SAMPLE, PHRASES))
        whole, own = (tensors(p.parent / "numbers-en-de.safetensors") for p in (SAMPLE, manifest))
        self.assertLess(len(own), len(whole))
        self.assertEqual(own, {name: whole[name] for name in own})  # f16 stays f16
        self.assertFalse([name for name in own if ".relu." in name or "encoder.self.1.leap" in name])
        readme = (manifest.parent / "README.md").read_text()
        for part in ("# numbers-en-de", "attnkit run model.toml --text", "cosformer, leap, softmax",
                     f"{len(whole) - len(own)} of other placements left out"):
            self.assertIn(part, readme)
        # A bundle of a bundle is the same, but for where it says that it comes from.
        self.make(manifest)
        again = self.bundle / "model.toml"
        self.assertEqual(again.read_text().split("\n", 1)[1], manifest.read_text().split("\n", 1)[1])

    def test_names_and_licences(self):
        model = self.tiny("m", search_table(SPACE))
        for name in ("en", "de"):
            (model.parent / name).mkdir()
            shutil.copy(model.parent / "vocab.txt", model.parent / name / "vocab.txt")
        (model.parent / "weights").mkdir()
        (model.parent / "tiny.safetensors").rename(model.parent / "weights" / "model.toml")
        licences = {"LICENSE", "LICENCE.Apache-2.0", "COPYING_2", "license.model.txt"}
        others = ("licensee.txt", "notice.tsv", "NOTICE_OF.py", "weights/license.safetensors")
        for name in ("weights/NOTICE.txt", "weights/license.md", "weights/LICENSE", *others, *licences):
            (model.parent / name).write_text(name)
        text = model.read_text().replace("tiny.safetensors", "weights/model.toml")
        for name in ("en", "de"):
            text = text.replace('"vocab.txt"', f'"{name}/vocab.txt"', 1)
        model.write_text(text)
        before = self.says(model, ["one two"])
        document = self.run_ok("bundle", model, "-o", self.bundle, "--json").json()
        self.assertEqual((document["schema"], document["licensed"], document["measured"]), ("attnkit.bundle/1", True, False))
        manifest = self.moved()
        tables = self.check(manifest)
        self.assertEqual(tables["weights"]["file"], "model-2.toml")
        self.assertEqual([tables["model"][s]["vocab"] for s in ("encoder", "decoder")], ["vocab.txt", "vocab-2.txt"])
        self.assertEqual({p.name for p in manifest.parent.iterdir()}, {f["name"] for f in document["files"]})
        licences |= {"NOTICE.txt", "license.md", "LICENSE-2"}
        self.assertEqual({f["name"] for f in document["files"] if f["what"] == "licence"}, licences)
        self.assertNotIn("No licence", (manifest.parent / "README.md").read_text())
        self.assertEqual(self.says(manifest, ["one two"]), before)
        # A bundle of the bundle has the same ones.
        again = self.run_ok("bundle", manifest, "-o", self.bundle, "--json").json()
        self.assertEqual({f["name"] for f in again["files"] if f["what"] == "licence"}, licences)

    def test_predictors_of_the_length(self):
        for predict, file in (('predict = "lut"\nlut = "lengths.tsv"\n', "lengths.tsv"),
                              ('predict = "network"\nfile = "length.safetensors"\n', "length.safetensors")):
            text = re.sub(r'predict = "ratio"\nalpha = .*\n', predict, SAMPLE.read_text())
            text = re.sub(r'"([\w.-]+\.(?:txt|tsv|safetensors))"', lambda m: f'"{SAMPLE.parent / m[1]}"', text)
            model = self.folder / "model.toml"
            model.write_text(text.replace('"decoder.self" = "leap"', '"decoder.self" = "cosformer"'))
            before = self.says(model, PHRASES)
            self.make(model)
            self.assertTrue((self.bundle / file).exists())
            self.check(self.bundle / "model.toml")
            self.assertEqual(self.says(self.bundle / "model.toml", PHRASES), before)
            shutil.rmtree(self.bundle)

    def test_a_seed_becomes_a_file(self):
        model = self.tiny("m", "", attention='default = "leap"')
        model.write_text(re.sub(r"(?ms)^file = .*?^sha256 = .*?$", "seed = 3", model.read_text()))
        before = self.says(model, ["one two"])
        self.assertIn("no licence was found", self.make(model).out)
        self.assertIn(f"no LICENSE, COPYING or NOTICE in {model.parent}. ", (self.bundle / "README.md").read_text())
        self.check(self.bundle / "model.toml")
        self.assertTrue((self.bundle / "weights.safetensors").exists())
        self.assertEqual(self.says(self.bundle / "model.toml", ["one two"]), before)

    def test_weights_of_other_forms_become_a_file(self):
        model = self.tiny("m", "")
        file = model.parent / "tiny.safetensors"
        whole, text = tensors(file), re.sub(r"(?m)^sha256 = .*$", "", model.read_text())
        before = self.says(model, ["one two"])
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = {name: t for name, t in json.loads(raw[8:8 + size]).items() if name != "__metadata__"}
        halves = [dict(list(header.items())[i::2]) for i in (0, 1)]
        for i, half in enumerate(halves):
            data = b""
            for name, t in half.items():
                half[name] = {**t, "data_offsets": [len(data), len(data) + len(whole[name][1])]}
                data += whole[name][1]
            (model.parent / f"{i}.safetensors").write_bytes(struct.pack("<Q", len(json.dumps(half))) + json.dumps(half).encode() + data)
        index = {"weight_map": {name: f"{i}.safetensors" for i, half in enumerate(halves) for name in half}}
        (model.parent / "tiny.index.json").write_text(json.dumps(index))
        with zipfile.ZipFile(model.parent / "tiny.npz", "w") as archive:
            for name, t in header.items():
                said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({''.join(f'{n},' for n in t['shape'])})}}".encode()
                said += b" " * (-(len(said) + 11) % 64) + b"\n"
                archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(said)) + said + whole[name][1])
        for other in ("tiny.index.json", "tiny.npz"):
            model.write_text(text.replace("tiny.safetensors", other))
            self.make(model)
            self.assertEqual(self.check(self.bundle / "model.toml")["weights"]["file"], "weights.safetensors")
            self.assertEqual(self.says(self.bundle / "model.toml", ["one two"]), before)
            shutil.rmtree(self.bundle)

    def test_of_a_gguf_the_vocabulary_alone_is_copied(self):
        gguf, model = self.folder / "m.gguf", self.folder / "m.toml"
        shutil.copy(pathlib.Path(__file__).parent.parent / "import" / "gguf" / "llama3.gguf", gguf)
        size = gguf.stat().st_size
        self.run_ok("import", gguf, "-o", model)
        os.truncate(gguf, 1100 << 20)  # more than other files of a bundle may have
        said = self.run_ok("run", model, "--text", "The attention", "--limit", "8").out
        self.make(model)
        self.run_ok("quantize", model, "-o", self.folder / "int8")
        gguf.unlink()
        manifest = self.moved()
        self.assertLess((manifest.parent / "m.gguf").stat().st_size, size / 2)
        self.assertEqual(self.run_ok("run", manifest, "--text", "The attention", "--limit", "8").out, said)
        self.make(manifest)
        for copy in (self.bundle, self.folder / "int8"):
            self.assertEqual((copy / "m.gguf").read_bytes(), (manifest.parent / "m.gguf").read_bytes())

    def test_a_stream_without_keys(self):
        model = self.tiny("m", "[stream]\n")
        self.make(model)
        self.assertEqual(self.check(self.bundle / "model.toml")["stream"], {})

    def test_overrides(self):
        text = SAMPLE.read_text().replace(SAMPLE.parent.name + ".safetensors", str(SAMPLE.parent / "numbers-en-de.safetensors"))
        text = text.replace('"vocab.txt"', f'"{SAMPLE.parent}/vocab.txt"')
        model = self.folder / "model.toml"
        model.write_text(text + '\n[[attention.override]]\nblock = "decoder.self"\nlayers = [1, 3]\nuse = { use = "leap", eps = 0.2 }\n'
                         '[[attention.override]]\nblock = "decoder.self"\nlayers = 3\nuse = "relu"\n')
        grid = [(b["block"], b["mechanism"], b["options"]) for b in self.run_ok("inspect", model, "--json").json()["blocks"]]
        before = self.says(model, PHRASES)
        self.make(model)
        moved = self.moved()
        self.check(moved)
        self.assertEqual([(b["block"], b["mechanism"], b["options"])
                          for b in self.run_ok("inspect", moved, "--json").json()["blocks"]], grid)
        self.assertEqual(self.says(moved, PHRASES), before)

    def test_speech(self):
        model = SAMPLE.parent.parent / "numbers-speech" / "model.toml"
        self.make(model)
        self.check(self.bundle / "model.toml")
        audio = sorted((model.parent / "recordings").glob("*.flac"))[0]
        self.assertEqual(self.run_ok("run", self.bundle / "model.toml", "--audio", audio).out,
                         self.run_ok("run", model, "--audio", audio).out)
        self.assertIn("--audio FILE", (self.bundle / "README.md").read_text())


class Winners(Bundles):
    def test_of_a_search(self):
        lists = (SAMPLE.parent / "dev.tsv").read_text().splitlines()[:24]
        for name in ("dev.tsv", "test.tsv"):
            (self.folder / name).write_text("\n".join(lists) + "\n")
        said = self.search("--strategy", "ablation", "--data", self.folder / "dev.tsv", "--test", self.folder / "test.tsv",
                           "--bundle", self.bundle, model=SAMPLE)
        self.assertTrue(said.err.endswith(f"\nbundle: {self.bundle}\n"), said.err)
        winner = self.out / "winner.toml"
        before = self.says(winner, PHRASES)
        manifest = self.moved()
        shutil.move(self.out, self.folder / "gone")
        used = {m for layers in self.placement("gone")["blocks"].values() for m in layers}
        tables = self.check(manifest)
        self.assertLessEqual(set(tables["attention"].get("params", {})), used)
        self.assertEqual(self.says("model.toml", PHRASES, cwd=manifest.parent), before)
        weights = manifest.parent / "numbers-en-de.safetensors"
        self.assertLess(weights.stat().st_size, (SAMPLE.parent / weights.name).stat().st_size)
        self.figures((manifest.parent / "README.md").read_text(), "gone")
        # Later, from what the search wrote, comes the same.
        self.make(self.folder / "gone" / "winner.toml")
        self.assertEqual(*((folder / weights.name).read_bytes() for folder in (self.bundle, manifest.parent)))
        # The manifest says where it comes from, so its size may differ.
        self.assertEqual(*([line for line in (folder / "README.md").read_text().splitlines() if "| manifest |" not in line]
                           for folder in (self.bundle, manifest.parent)))

    def placement(self, out):
        document = self.result(self.folder / out)
        return next(p for p in document["placements"] if p["id"] == document["answer"]["placement"])

    def figures(self, readme, out):
        document, own = self.result(self.folder / out), self.placement(out)
        row = r"\| {} \| {} \| .* to .* \| .* \|"
        quality = own["quality"]
        self.assertRegex(readme, row.format("exact, development set, 24 examples", f"{quality['value']:.1f} %"))
        self.assertIn(document["answer"]["text"], readme)
        self.assertIn(document["machine"]["cpu"], readme)
        self.assertIn(document["command"], readme)
        self.assertIn(f"| rcp_mem | {own['rcp_mem']:.3f} |", readme)

    def test_figures_are_of_this_model_and_placement(self):
        self.search()
        winner = (self.out / "winner.toml").read_text()
        for changed in (winner.replace('"tiny"', '"other"'), winner.replace('"decoder.self" = ', '"decoder.self" = "leap" #')):
            (self.out / "winner.toml").write_text(changed)
            self.assertIn("no figures", self.make(self.out / "winner.toml").out)
            self.assertIn("None: this placement was not measured", (self.bundle / "README.md").read_text())
            shutil.rmtree(self.bundle)
        for result in ("{", "[]", '{"schema": "attnkit.search/1"}'):
            (self.out / "result.json").write_text(result)
            self.assertIn("no figures", self.make(self.out / "winner.toml").out)
            shutil.rmtree(self.bundle)

    def test_figures_with_intervals(self):
        self.search()
        document = self.result()
        own = next(p for p in document["placements"] if p["id"] == document["answer"]["placement"])
        own |= {"test": {"value": 98.75, "low": 98.1, "high": 99.2, "lists": 2000, "baseline": 99.5},
                "throughput": {"value": 3.5, "low": 3.25, "high": 3.75, "blocks": 4},
                "memory": {"value": 0.5, "peak_bytes": 1 << 20, "baseline_peak_bytes": 2 << 20},
                "rcp_mem": 2.5, "rcp_mem_low": 2.25, "rcp_mem_high": 2.75}
        (self.out / "result.json").write_text(json.dumps(document))
        self.make(self.out / "winner.toml")
        readme = (self.bundle / "README.md").read_text()
        for line in ("| exact, test set, 2000 examples | 98.8 % | 98.1 to 99.2 % | 99.5 % |",
                     "| throughput over the baseline's at 32 tokens | 3.50 | 3.25 to 3.75 | 1 |",
                     "| peak memory of a session at 32 tokens | 1.00 MiB |  | 2.00 MiB |", "| rcp_mem | 2.500 | 2.250 to 2.750 | "):
            self.assertIn("\n" + line, readme)

    def test_without_a_winner(self):
        self.search("--max-state", "1B", "--bundle", self.bundle, code=8)
        self.assertFalse(self.bundle.exists())

    def test_a_folder_that_cannot_be_is_refused_before_the_search(self):
        (self.folder / "full").mkdir()
        (self.folder / "full" / "file").write_text("mine")
        for bundle, code, message in ((self.folder / "full", 6, "is there and not empty"), ("", 2, "--bundle is empty"),
                                      (self.out, 2, "would hold the folder of --output"),
                                      (self.out.parent / "x" / "..", 6, "is there and not empty")):
            self.assertIn(message, self.search("--bundle", bundle, code=code).err)
        self.assertFalse(self.out.exists())
        self.assertEqual((self.folder / "full" / "file").read_text(), "mine")

    def test_a_full_disk_keeps_the_search(self):
        (self.model.parent / "LICENSE").write_bytes(b" " * (3 << 20))
        said = self.search("--bundle", self.bundle, code=6, preexec_fn=with_limit(2 << 20))
        self.assertIn("File too large", said.err)
        self.assertIn(f"attnkit bundle {self.out}/winner.toml -o {self.bundle}", said.err)
        self.assertEqual(self.left(), ["model", "out"])
        self.make(self.out / "winner.toml")
        self.assertIn("| rcp", (self.bundle / "README.md").read_text())


class Folders(Bundles):
    def test_what_is_there_stays(self):
        self.bundle.mkdir()
        (self.bundle / "mine").write_text("mine")
        (self.folder / "file").write_text("mine")
        for bundle, code, message in ((self.bundle, 6, "is there and not empty"), (self.folder / "file", 6, "no folder"),
                                      (self.folder / "file" / "x", 6, "Not a directory"), ("/proc/x", 6, "cannot be made"),
                                      ("/proc/x/y", 6, "cannot be made")):
            self.assertIn(message, self.make(self.model, code, bundle).err)
        self.assertIn("working folder", self.run_code(2, "bundle", self.model, "-o", ".", cwd=self.folder / "model").err)
        self.assertIn("--output", self.run_code(2, "bundle", self.model).err)
        self.assertEqual(self.left(), ["bundle", "file", "model"])
        self.assertEqual([p.name for p in self.bundle.iterdir()], ["mine"])

    def test_ways_to_write_a_folder(self):
        os.symlink("real", self.folder / "link")
        (self.folder / "real").mkdir(mode=0o700)
        for bundle in ("empty/", "deep/er/still", "./dotted/../dots", "link"):
            if bundle == "empty/":
                (self.folder / "empty").mkdir()
            self.run_ok("bundle", self.model, "-o", bundle, cwd=self.folder)
            self.run_ok("run", os.path.normpath(f"{bundle}/model.toml"), "--text", "one", cwd=self.folder)
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertEqual((self.folder / "real").stat().st_mode & 0o777, 0o777 & ~self.mask())
        self.assertEqual(self.left(), ["deep", "dots", "empty", "link", "model", "real"])

    @staticmethod
    def mask():
        mask = os.umask(0)
        os.umask(mask)
        return mask

    def test_a_full_disk_leaves_nothing(self):
        for size in (0, 100, 5000):
            self.assertIn("File too large", self.make(self.model, 6, preexec_fn=with_limit(size)).err)
            self.assertEqual(self.left(), ["model"])

    def test_signals_leave_nothing(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for number, ignored in ((signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGHUP, False), (signal.SIGHUP, True)):
            child = subprocess.Popen([COMMAND, "quantize", self.model, "-o", self.bundle, "--data", pipe], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     preexec_fn=lambda: signal.signal(number, signal.SIG_IGN) if ignored else None)
            with open(pipe, "w", encoding="utf-8") as data:  # once the command reads it, beside what it has written
                self.assertEqual(len(self.left()), 3)
                data.write("one two\tone\n")
                for _ in range(2 if number == signal.SIGHUP else 1):  # a shell that ends sends it, and so does the kernel
                    child.send_signal(number)
                    time.sleep(0.05)
            _, err = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 0 if ignored else 130, err)
            self.assertEqual(self.left(), ["bundle", "model", "pipe"] if ignored else ["model", "pipe"])

    def test_a_mount_point_is_refused_before_the_work(self):
        self.bundle.mkdir()
        inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" "$0" || exit 77; exec "$@"', self.bundle]
        done = subprocess.run([*inside, COMMAND, "bundle", self.folder / "no model", "-o", self.bundle], capture_output=True, check=False)
        if done.returncode == 77 or done.stderr.startswith(b"unshare: "):
            self.skipTest("no rights to mount")
        self.assertEqual(done.returncode, 6)
        self.assertIn(b"is a mount point, which no folder can replace: name a new folder in it", done.stderr)

    def test_a_model_that_does_not_open(self):
        self.model.write_text(self.model.read_text().replace('default = "softmax"', 'default = "nope"'))
        self.assertIn("AK201", self.make(self.model, 4).err)
        self.assertEqual(self.left(), ["model"])


if __name__ == "__main__":
    unittest.main()
