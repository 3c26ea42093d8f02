"""attnkit search: mistakes, data, spaces and folders."""

import html
import re
import shlex
import shutil
import unittest

from command import SAMPLE
from search_support import PLUGINS, ROLES, SPACE, SearchTest, pairs, search_table


class Usage(SearchTest):
    def test_spaces(self):
        everything = self.search("--space", "encoder.self=all", "--space", "decoder.self=softmax", "--space",
                                 "decoder.cross=softmax", "--strategy", "grid")
        self.assertLessEqual({"softmax", "relu", "cosformer", "leap"},
                             {p["blocks"]["encoder.self"][0] for p in self.result()["placements"]})
        self.assertIn("decoder.cross", everything.out)

    def test_of_all_mechanisms_the_models_own_is_the_baseline(self):
        model = self.tiny("own", search_table(SPACE, baseline=None), attention='default = "leap"')
        self.search("--space", "encoder.self=all", "--space", "decoder.self=all", model=model)
        self.assertEqual(self.result()["settings"]["baseline"], "encoder.self=leap decoder.self=leap decoder.cross=softmax")
        model = self.tiny("options", search_table(SPACE, baseline=None), attention='default = "softmax"\n"decoder.self" = { use = "local", window = 7 }')
        self.search("--space", "decoder.self=all", "--space", "encoder.self=softmax", model=model, out=self.folder / "of options")
        self.assertIn("decoder.self=local{window = 7}", self.result(self.folder / "of options")["settings"]["baseline"])

    def test_lengths_beyond_the_models(self):
        model = self.tiny("short", search_table(SPACE))
        model.write_text(model.read_text().replace("decoder = { layers = 1,", "decoder = { layers = 1, max_length = 48,"))
        said = self.search("--length", 64, "--lengths", 64, code=2, model=model)
        self.assertIn("attnkit: length 64 is beyond the model's max_length 48: choose --length N of at most 48\n", said.err)
        self.search("--length", 48, "--lengths", "48,64", model=model)  # nothing was measured, so nothing stands in the way
        result = self.result()
        winner = next(p for p in result["placements"] if p["id"] == result["answer"]["placement"])
        self.assertEqual((result["settings"]["lengths"], [at["length"] for at in winner["cost"]["untimed"]]), ([48, 64], [64]))
        said = self.search("--length", 2 ** 20, "--lengths", 16, "--trial-memory", "64MiB", code=2, out=self.folder / "much")
        self.assertIn("which cannot be larger (needs more than the 64.0 MiB of --trial-memory): choose --length N of at most ", said.err)

    def test_a_role_that_is_left_out_stays_as_it_is(self):
        model = self.tiny("plain", "")
        self.search("--data", self.model.parent / "data.tsv", "--space", "encoder.self=softmax,relu", "--baseline",
                    "softmax", model=model)
        self.assertEqual([p["blocks"]["decoder.self"] for p in self.result()["placements"]], [["softmax"]] * 2)

    def test_mistakes(self):
        plain = self.tiny("plain", "")
        data = ["--data", self.model.parent / "data.tsv"]
        for options, message in [
                (["--space", "encoder.self=softmax,nope"], 'no mechanism "nope" is loaded; there are bigbird, '),
                (["--space", "elbow=softmax,relu"], "it has encoder.self, decoder.self, decoder.cross"),
                (["--space", "encoder.self=softmax,softmax"], '"softmax" is named twice'),
                (["--space", "encoder.self=softmax,"], 'no mechanism "" is loaded'),
                (["--space", "encoder.self="], "must be ROLE=NAME,NAME,... or ROLE=all"),
                (["--space", "encoder.self"], "must be ROLE=NAME,NAME,... or ROLE=all"),
                (["--space", "encoder.self=relu", "--space", "encoder.self=softmax"], "encoder.self is given twice"),
                ([word for role in ROLES for word in ("--space", f"{role}=softmax")], "nothing to choose from"),
                (["--baseline", "nope"], '--baseline: no mechanism "nope"'), (["--frobnicate"], "--frobnicate"),
                (["--max-state", "1"], "KiB"), (["--lengths", "16,"], "--lengths"), (["--strategy", "best"], "grid"),
                (["--per-layer"], "a grid places by role"), (["--quick", "--thorough"], "contradict each other")]:
            said = self.search(*options, code=2)
            self.assertIn(message, said.err)
            self.assertEqual(said.err.count("attnkit: "), 1)
        self.assertIn("--data FILE", self.search(model=plain, code=2).err)
        self.assertIn("nothing to choose from", self.search(*data, model=plain, code=2).err)
        self.assertFalse(self.out.exists(), "a mistake leaves no folder")

    def test_no_manifest(self):
        for path in (self.folder / "nothing.toml", self.folder):
            self.assertIn("a manifest is a TOML file", self.search(model=path, code=6).err)

    def test_seeds(self):
        """The command takes what the manifest takes, and no more."""
        for seed, code in ((0, 0), (2 ** 32 - 1, 0), (2 ** 32, 2), (-1, 2)):
            self.assertIn("" if code == 0 else "4294967295", self.search("--seed", seed, code=code).err)
            shutil.rmtree(self.out, ignore_errors=True)
            model = self.tiny(f"seed{seed}", search_table(SPACE, seed=seed))
            self.assertIn("" if code == 0 else "4294967295", self.search(model=model, code=3 if code else 0).err)
            shutil.rmtree(self.out, ignore_errors=True)

    def test_data(self):
        for data, message in [("", "is empty"), ("one two\tzwei\nthree\n", "data.tsv:2: has no tab"),
                              ("one\teins\n\nfour\tvier\n", "data.tsv:2"), ("one\teins\n\teins\n", "data.tsv:2"),
                              ("one nine\teins\n", 'data.tsv:1: the input: '), ("one\teins\tzwei\n", "data.tsv:1")]:
            (self.model.parent / "data.tsv").write_text(data)
            self.assertIn(message, self.search(code=6).err)
        self.assertIn("nowhere.tsv", self.search("--data", "nowhere.tsv", code=6).err)
        (self.model.parent / "data.tsv").unlink()
        self.assertIn("data.tsv, which [search] data names, is not there: --data FILE", self.search(code=6).err)
        self.assertIn(str(self.folder), self.search("--data", self.folder, code=6).err)
        # Nothing was measured, so nothing stands in the way; lines may end as on Windows.
        (self.model.parent / "data.tsv").write_bytes(pairs(30).replace("\n", "\r\n").encode())
        self.search()

    def test_refusals(self):
        # Beside plugins that crash when they are asked anything: a refusal is no reason to ask them.
        plugins = ["--plugin-dir", PLUGINS]
        model = self.tiny("m", search_table({role: ["softmax", "relu", "chatter"] for role in ROLES}))
        self.search(*plugins, model=model)
        refused = {r["block"]: (r["choice"], r["reason"]) for r in self.result()["refused"]}
        self.assertEqual(refused["decoder.self"][0], "chatter")
        self.assertIn("the mean of the past is not implemented", refused["decoder.self"][1])
        self.assertFalse([p for p in self.result()["placements"] if "chatter" in p["blocks"]["decoder.self"]])
        only = self.search(*plugins, "--space", "decoder.self=chatter", code=2, model=model, out=self.folder / "o2")
        self.assertIn("decoder.self refuses every choice", only.err)
        self.assertIn("the mean of the past", only.err)

    def test_weights_that_were_not_trained_for_a_mechanism(self):
        said = self.search("--plugin-dir", PLUGINS, "--space", "encoder.self=softmax,relu,chatter", "--space",
                           "decoder.self=softmax", "--space", "decoder.cross=softmax", "--data", self.folder / "dev.tsv",
                           "--test", self.folder / "same.tsv", model=self.sample())
        refused = self.result()["refused"]
        self.assertEqual([(r["block"], r["choice"]) for r in refused], [("encoder.self", "chatter")])
        self.assertIn("chatter", refused[0]["reason"])
        self.assertEqual(len(self.result()["placements"]), 2)
        self.assertIn("chatter", said.out)
        self.assertIn("The test set is the data of the race", self.result()["answer"]["text"])

    def sample(self):
        (self.folder / "dev.tsv").write_text("\n".join((SAMPLE.parent / "dev.tsv").read_text().splitlines()[:20]) + "\n")
        (self.folder / "same.tsv").write_text((self.folder / "dev.tsv").read_text())
        return SAMPLE

    def test_folders(self):
        (self.folder / "file").write_text("")
        self.assertIn("file", self.search(code=6, out=self.folder / "file").err)
        self.assertIn("file", self.search(code=6, out=self.folder / "file" / "below").err)
        odd = self.folder / "it's  a \"folder\" \\ $HOME"
        self.search(out=odd)
        command = self.result(odd)["command"]
        self.assertEqual(shlex.split(command)[:5], ["attnkit", "search", str(self.model), "-o", str(odd)])
        page = html.unescape(re.sub("<[^>]*>", "", (odd / "report.html").read_text()))
        self.assertEqual(page.count(command), 1)
        self.run_ok("run", odd / "winner.toml", "--text", "one", cwd="/")
        self.assertIn("--resume continues it", self.search(code=6, out=odd).err)


if __name__ == "__main__":
    unittest.main()
