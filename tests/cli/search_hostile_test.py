"""attnkit search: plugins that misbehave cost their own trials."""

import html
import re
import resource
import unittest

from search_support import PLUGINS, SPACE, SearchTest, search_table


class Hostile(SearchTest):
    """Plugins that misbehave cost their own trials."""

    def survive(self, name, *options, **more):
        model = self.tiny(name, search_table({"encoder.self": ["softmax", "relu", name]}))
        said = self.search("--plugin-dir", PLUGINS, *options, model=model, out=self.folder / f"out-{name}", **more)
        document = self.result(self.folder / f"out-{name}")
        self.check_result(document)
        self.assertEqual({p["blocks"]["encoder.self"][0] for p in document["placements"] if p["status"] == "ranked"},
                         {"softmax", "relu"} | ({name} if name == "chatter" else set()))
        reasons = [r["reason"] for r in document["refused"]] + \
            [p["reason"] for p in document["placements"] if p["reason"]]
        page = (self.folder / f"out-{name}" / "report.html").read_text()
        page = html.unescape(page)
        for reason in reasons:
            self.assertIn(reason.split(" (")[0], page)
            self.assertIn(reason.split(" (")[0], " ".join(said.out.split()))
        return " ".join(reasons)

    def test_crashes(self):
        for name in ("crash_create", "crash_plan", "crash_run"):
            self.assertIn("killed by signal 11 (Segmentation fault)", self.survive(name))
        self.assertIn("ended with code 0", self.survive("exit_run"))

    def test_hangs(self):
        self.assertIn("timed out: no reply within 1.5 s", self.survive("hang_run", "--trial-timeout", "1.5"))

    def test_numbers(self):
        self.assertIn("not numbers (NaN)", self.survive("nan_run"))

    def test_chatter(self):
        self.assertEqual(self.survive("chatter"), "")
        self.assertIn("what a plugin says", (self.folder / "out-chatter" / "workers.log").read_text())

    def test_memory(self):
        limit = 3 << 30
        reason = self.survive("hungry", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertIn("killed by signal", reason)

    def test_trial_memory(self):
        said = "needs more than the 100.0 MiB of --trial-memory"
        self.assertIn(said, self.survive("hungry", "--trial-memory", "100MiB"))
        model, out = self.folder / "hungry" / "model.toml", self.folder / "out-hungry"
        trials = self.journal(out)
        for size, again in (("90MiB", False), ("0.15GiB", True)):  # tried again only with more
            self.search("--plugin-dir", PLUGINS, "--trial-memory", size, "--resume", model=model, out=out)
            self.assertEqual(self.journal(out) != trials, again)
        self.assertIn("than the 153.6 MiB", " ".join(p["reason"] or "" for p in self.result(out)["placements"]))

    def test_crash_at_a_long_length(self):
        """The placement keeps its place at the length that is ranked."""
        model = self.tiny("long", search_table({"encoder.self": ["softmax", "crash_long"]}))
        said = self.search("--plugin-dir", PLUGINS, "--lengths", "16,32,300", "--rank", "quality", "--finalists", "2",
                           model=model)
        document = self.result()
        self.check_result(document)
        by_name = {p["blocks"]["encoder.self"][0]: p for p in document["placements"]}
        long = by_name["crash_long"]
        self.assertEqual([at["length"] for at in long["cost"]["at"]], [16, 32])
        self.assertEqual([at["length"] for at in by_name["softmax"]["cost"]["at"]], [16, 32, 300])
        self.assertEqual(long["cost"]["untimed"], [{"length": 300, "reason": "killed by signal 11 (Segmentation fault)"}])
        self.assertIn(f"not timed: {long['id']} at 300 tokens: killed by signal 11", " ".join(said.out.split()))
        self.assertIn("Not timed", (self.out / "report.html").read_text())

    def test_baselines(self):
        model = self.tiny("b", search_table({"encoder.self": ["softmax", "crash_run"]}, baseline=None))
        for name in ("crash_run", "crash_plan"):
            said = self.search("--plugin-dir", PLUGINS, "--space", "encoder.self=relu,softmax", "--baseline", name, model=model,
                               code=3, out=self.folder / name)
            self.assertIn("the baseline", said.err)

    def test_the_manifests_own_placement(self):
        model = self.tiny("own", search_table(SPACE), attention='default = "softmax"\n"encoder.self" = "crash_plan"')
        for options in ([], ["--json"]):
            said = self.search("--plugin-dir", PLUGINS, *options, model=model, code=4)
            self.assertIn("the manifest's own placement crashed the worker: killed by signal 11 (Segmentation fault)",
                          said.json()["message"] if options else said.err)
        self.assertFalse(self.out.exists())
        # One that crashes in create is not loaded in the first place.
        own = model.read_text()
        model.write_text(own.replace("crash_plan", "crash_create"))
        said = self.search("--plugin-dir", PLUGINS, model=model, code=4)
        self.assertIn('mechanism "crash_create" cannot be used', said.err)
        self.assertIn("killed by signal 11 (Segmentation fault)", said.err)
        model.write_text(own)
        # Other mistakes are reported with their place, as ever.
        model.write_text(model.read_text().replace("crash_plan", "nope"))
        self.assertIn("model.toml:16:18: error[AK201]", self.search("--plugin-dir", PLUGINS, model=model, code=4).err)

    def test_too_little_time(self):
        said = self.search("--plugin-dir", PLUGINS, "--baseline", "hang_run", "--trial-timeout", "0.2", code=3,
                           model=self.tiny("h", search_table({"encoder.self": ["softmax", "relu"]}, baseline=None)))
        self.assertRegex(said.err, "the baseline .* cannot be .*")


if __name__ == "__main__":
    unittest.main()
