"""attnkit.ray without Ray: what is trained, and what is kept of it."""

import json
import pathlib
import sys
import tempfile
import threading
import time
import tomllib
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))

import tiny_model  # noqa: E402
from attnkit._toml import toml_text  # noqa: E402
from attnkit.ray import training  # noqa: E402
from attnkit.ray.__main__ import Driver, Node, main  # noqa: E402
from attnkit.ray.training import Plan  # noqa: E402

PLACEMENT = "decoder.self=relu"


class Done:
    """The answer of a call on a node."""

    def __init__(self, value):
        self.value = value


class Call:
    def __init__(self, function):
        self.function = function

    def options(self, **_):
        return self

    def remote(self, *arguments):
        return Done(self.function(*arguments))


class RayError(Exception):
    pass


RAY = types.SimpleNamespace(put=Done, get=lambda done: done.value, wait=lambda tasks, timeout: (tasks, []),
                            exceptions=types.SimpleNamespace(RayError=RayError))


class Killed(BaseException):
    pass


class PlanTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = tiny_model.write_model(self.folder / "model")
        self.train = self.folder / "train.tsv"
        self.train.write_text("one\teins\n")
        self.out = self.folder / "search"
        self.out.mkdir()

    def plan(self, more="", model=None):
        return Plan(f"--data {self.train} --steps 5 {more}", False, str(self.out), str(model or self.model))

    def test_a_key_is_that_of_all_bytes(self):
        toml = self.model.read_text()
        keys = [self.plan().key(toml)]
        self.assertEqual(self.plan().key(toml), keys[0])
        for name, text in (("tiny.safetensors", b"other"), ("vocab.txt", b"<pad>\n")):
            (self.model.parent / name).write_bytes(text)
            keys.append(self.plan().key(toml))
        self.train.write_text("two\tzwei\n")
        keys.append(self.plan().key(toml))
        index = self.model.parent / "index.json"
        index.write_text(json.dumps({"weight_map": {"x": "tiny.safetensors"}}))
        self.model.write_text(toml.replace("tiny.safetensors", "index.json"))
        keys.append(self.plan().key(toml))
        (self.model.parent / "tiny.safetensors").write_bytes(b"of an index")
        keys.append(self.plan().key(toml))
        teacher = tiny_model.write_model(self.folder / "teacher")
        for weights in (b"one", b"another"):
            (teacher.parent / "tiny.safetensors").write_bytes(weights)
            keys.append(self.plan(f"--teacher {teacher}").key(toml))
        self.assertEqual(len(set(keys)), len(keys))

    def test_files_that_are_not_there(self):
        (self.model.parent / "vocab.txt").unlink()
        with self.assertRaisesRegex(SystemExit, "--train: .*vocab.txt cannot be read"):
            self.plan()
        self.model.write_text("a = [")
        with self.assertRaisesRegex(SystemExit, "--train: .*model.toml is no manifest"):
            self.plan()

    def test_trained_weights_have_a_sha256_and_no_cache(self):
        text = training.with_weights('[weights]\nfile = "a"\ncache = true\ntype = "int8"\n', pathlib.Path("b"), "0" * 64)
        self.assertEqual(tomllib.loads(text)["weights"], {"type": "int8", "file": "b", "sha256": "0" * 64})

    def test_a_kill_between_index_and_weights_leaves_a_winner_that_is_trained(self):
        toml, trained = self.model.read_text(), []
        node = types.SimpleNamespace(train=Call(lambda key, *_: trained.append(key) or b"weights"))

        def drive():
            driver = Driver.__new__(Driver)
            driver.ray, driver.plan, driver.trainings, driver.lock = RAY, self.plan(), {}, threading.Lock()
            driver.train(None, node, driver.plan.key(toml), {"toml": toml, "placement": PLACEMENT}, ".")
            return driver.plan

        write = training.write

        def dying(path, data):
            write(path, data)
            raise Killed

        with mock.patch.object(training, "write", dying), self.assertRaises(Killed):
            drive()
        plan = drive()
        self.assertEqual(len(trained), 2, "an entry without its weights is trained anew")
        (plan.folder / "placements.json").write_text("{}")  # as versions before this one may have left it
        plan = drive()
        self.assertEqual(len(trained), 2)
        (self.out / "result.json").write_text(json.dumps({"answer": {"placement": PLACEMENT}}))
        (self.out / "winner.toml").write_text(toml)
        plan.finish()
        named = tomllib.loads((self.out / "winner.toml").read_text())["weights"]["file"]
        self.assertEqual((self.out / named).read_bytes(), b"weights")
        (self.out / named).unlink()
        with self.assertRaisesRegex(SystemExit, f"trained has no weights of {PLACEMENT} any more"):
            plan.finish()
        plan.keys = {}
        with self.assertRaisesRegex(SystemExit, f"trained has no weights of {PLACEMENT} any more"):
            plan.finish()

    def test_two_searches_train_one_placement_one_after_the_other(self):
        inside, most = [], []

        def train(words, from_scratch, toml, folder, out):
            out.mkdir(parents=True)
            inside.append(words)
            time.sleep(0.05)  # in which the others come
            most.append(len(inside))
            inside.remove(words)
            return b"weights"

        def run():
            node = Node()
            self.addCleanup(node.folder.cleanup)
            node.train("key", [], False, "", ".")

        with mock.patch.object(training, "train", train), mock.patch.dict("os.environ", {"XDG_CACHE_HOME": str(self.folder)}):
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(most, [1] * 4)
        self.assertEqual(list((self.folder / "attnkit" / "trained").iterdir()), [])

    def test_half_a_line_is_no_answer(self):
        node = Node()
        self.addCleanup(node.folder.cleanup)
        self.addCleanup(node.stop, 1)
        node.start(1, ["sh", "-c", 'read -r line; echo "[1]"; read -r line; printf "[2"'])
        self.assertEqual(node.ask(1, b"{}\n"), b"[1]\n")
        self.assertIsNone(node.ask(1, b"{}\n"))

    def test_a_value_is_not_taken_for_the_manifest(self):
        words = ["attnkit.ray", "search", "--strategy", "pareto", "model.toml"]
        with mock.patch.object(sys, "argv", words), self.assertRaisesRegex(SystemExit, "--strategy stands before the manifest"):
            main()

    def test_control_characters_are_toml(self):
        tables = {"a": {"b\x7f": "c\x7f\x1b\n", "d": True}}
        self.assertEqual(tomllib.loads(toml_text(tables)), tables)
        self.assertNotIn("\x7f", toml_text(tables))


if __name__ == "__main__":
    unittest.main()
