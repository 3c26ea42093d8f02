"""samples/manifests: one for each mechanism, and every one of them validates and runs as it is."""

import pathlib
import re
import tomllib
import unittest

from command import CommandTest
from recordings import noise, write_wav

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "samples/manifests"
MANIFESTS = sorted(FOLDER.glob("*.toml"))


class Manifests(CommandTest):
    def test_every_mechanism_has_one(self):
        names = {p["name"] for p in self.run_ok("plugins", "--json").json()["plugins"] if p["device"] == "cpu"}
        for name in names:
            path = FOLDER / f"{name}.toml"
            self.assertTrue(path.exists(), path)
            self.assertIn(f'"{name}"', re.sub("#.*", "", path.read_text()), path)

    def test_validate(self):
        for path in MANIFESTS:
            with self.subTest(path.name):
                done = self.run_ok("validate", path)
                self.assertNotIn("warning", done.out + done.err)

    def test_run(self):
        for path in MANIFESTS:
            with self.subTest(path.name):
                classifier = "head" in tomllib.loads(path.read_text())["model"]
                options = [] if classifier or path.name in ("mixed.toml",) else ["--limit", 12]
                speech = "features" in tomllib.loads(path.read_text())["model"].get("encoder", {})
                given = (["--audio", write_wav(self.folder / "a.wav", noise(9000))] if speech
                         else ["--text", "two hundred and forty-one euros"])
                document = self.run_ok("run", path, *given, "--json", *options).json()
                self.assertEqual(len(document["results"]), 1)

    def test_inspect(self):
        for path in MANIFESTS:
            with self.subTest(path.name):
                document = self.run_ok("inspect", path, "--json").json()
                self.assertGreater(document["parameters"], 0)


if __name__ == "__main__":
    unittest.main()
