"""Mechanisms that a manifest names and the machine lacks: an error only where a block uses them."""

import unittest

from search_support import ROLES, SearchTest, search_table

CHOICES = ["softmax", "relu", "nope"]
PARAMS = 'default = "softmax"\nparams.nope = { factor = 4 }\n'


class Missing(SearchTest):
    def model_with(self, **keys):
        return self.tiny("missing", search_table({role: CHOICES for role in ROLES}, **keys), attention=PARAMS)

    def test_the_model_takes_no_notice(self):
        model = self.model_with(baseline="neither")
        said = self.run_ok("run", model, "--text", "one two")
        self.assertEqual(said.out, self.run_ok("run", self.model, "--text", "one two").out)
        # The name may be a slip, and then the options are lost: that is said wherever the model runs.
        self.assertIn('warning[AK208]: no mechanism "nope"', said.err)
        self.assertIn("no block uses it; mechanisms found: ", said.err)
        self.assertNotIn("AK209", said.err)
        self.run_ok("inspect", model)
        self.run_ok("stream", model, "--text", "one two", "--policy", "offline")

    def test_validate_says_so(self):
        said = self.run_ok("validate", self.model_with(baseline="neither"), "--json").json()
        self.assertTrue(said["ok"])
        self.assertEqual([(d["code"], d["severity"]) for d in said["diagnostics"]],
                         [("AK208", "warning")] + [("AK209", "warning")] * 4)

    def test_what_every_block_overrides(self):
        attention = "".join(f'"{role}" = "relu"\n' for role in ROLES)
        model = self.tiny("unused", "", attention='default = "nope"\n' + attention)
        self.assertIn('warning[AK208]: no mechanism "nope"', self.run_ok("run", model, "--text", "one two").err)
        self.assertEqual([d["code"] for d in self.run_ok("validate", model, "--json").json()["diagnostics"]], ["AK208"])

    def test_what_a_block_uses_must_be_there(self):
        model = self.model_with()
        model.write_text(model.read_text().replace('default = "softmax"', 'default = "nope"'))
        for command in ("validate", "inspect"):
            said = self.run_code(4, command, model)
            self.assertEqual((said.out + said.err).count("error[AK201]"), 1)

    def test_search_refuses_the_choice_and_goes_on(self):
        self.search(model=self.model_with())
        document = self.result()
        self.check_result(document)
        self.assertEqual([(r["block"], r["choice"]) for r in document["refused"]], [(role, "nope") for role in ROLES])
        self.assertIn('no mechanism "nope"', document["refused"][0]["reason"])
        self.assertEqual(len(document["placements"]), 8)
        self.assertEqual(self.run_ok("validate", self.out / "winner.toml", "--json").json()["diagnostics"], [])

    def test_search_needs_its_baseline(self):
        said = self.search(model=self.model_with(baseline="neither"), code=3)
        self.assertIn("the baseline encoder.self=neither decoder.self=neither decoder.cross=neither cannot be used", said.err)
        self.assertIn('no mechanism "neither"', said.err)
        self.assertIn("choose another with --baseline NAME", said.err)
        self.search("--baseline", "relu", model=self.model_with(baseline="neither"), out=self.folder / "again")

    def test_search_needs_a_choice(self):
        model = self.tiny("none", search_table({"encoder.self": ["nope", "neither"], "decoder.self": ["softmax", "relu"]}))
        said = self.search(model=model, code=2)
        self.assertIn("encoder.self refuses every choice; the last one, neither: ", said.err)

    def test_a_plugin_that_cannot_be_used(self):
        (self.folder / "plugins").mkdir()
        (self.folder / "plugins" / "nope.so").write_text("no library")
        said = self.run_ok("validate", self.model_with(), "--plugin-dir", self.folder / "plugins").out
        self.assertEqual(said.count('mechanism "nope" cannot be used: '), 4)


if __name__ == "__main__":
    unittest.main()
