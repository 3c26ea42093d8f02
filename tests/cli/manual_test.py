"""attnkit manual: the page of man and the completions know every subcommand and option of the help, and shells take them."""

import os
import re
import shutil
import subprocess
import unittest

from command import CommandTest

FORMS = ("man", "bash", "zsh", "fish")


class Manual(CommandTest):
    def setUp(self):
        super().setUp()
        self.pages = {}
        for form in FORMS:
            self.pages[form] = self.folder / f"page.{form}"
            self.pages[form].write_text(self.run_ok("manual", form).out)

    def commands(self):
        names = re.findall(r"(?m)^  ([a-z-]+) +\w", self.run_ok("--help").out.partition("Options of every")[0])
        return {name: re.findall(r"(?m)^  (?:-\w, )?--([a-z-]+)", self.run_ok(name, "--help").out) for name in names}

    def complete(self, *words):
        """The completions that bash offers for the last word."""
        script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _attnkit 2>/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", script, self.pages["bash"], *words], capture_output=True, text=True, cwd=self.folder, check=True)
        return set(done.stdout.split())

    def test_every_form_has_every_option(self):
        commands = self.commands()
        self.assertGreater(len(commands), 10)
        spelled = {"man": lambda o: "\\-\\-" + o.replace("-", "\\-"), "bash": "--{}".format, "zsh": "--{}[".format, "fish": "-l {}".format}
        for form, page in self.pages.items():
            text = page.read_text()
            for name, options in commands.items():
                self.assertRegex(text, rf"\b{name.replace('-', '.?-')}\b")
                for option in options:
                    self.assertIn(spelled[form](option), text, f"{form}: {name}")

    def test_bash_completes(self):
        commands = self.commands()
        self.assertLessEqual(set(commands), self.complete("attnkit", ""))
        self.assertEqual(self.complete("attnkit", "insp"), {"inspect"})
        for name, options in commands.items():
            self.assertEqual(self.complete("attnkit", name, "--"), {f"--{option}" for option in options})
        self.assertEqual(self.complete("attnkit", "run", "--unknown", ""), {"error", "skip", "unk"})
        self.assertEqual(self.complete("attnkit", "--progress", "p"), {"plain"})
        self.assertEqual(self.complete("attnkit", "run", "--text", ""), set())
        (self.folder / "model.toml").touch()
        for words in (["run", "mod"], ["run", "--file", "mod"], ["bundle", "-o", "mod"]):
            self.assertEqual(self.complete("attnkit", *words), {"model.toml"})

    def test_programs_accept_them(self):
        checks = {"man": ["man", "--warnings", "-l"], "zsh": ["zsh", "-n"], "fish": ["fish", "-n"]}
        ran = [form for form, command in checks.items() if shutil.which(command[0])]
        for form in ran:
            done = subprocess.run([*checks[form], self.pages[form]], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
            self.assertEqual((done.returncode, done.stderr), (0, ""), form)
        if os.environ.get("CI") == "true":
            self.assertEqual(ran, [*checks])
        elif len(ran) < len(checks):
            self.skipTest(f"of man, zsh and fish only {ran} are here")

    def test_other_forms_are_refused(self):
        error = self.run_code(2, "manual", "fisch").err
        self.assertIn('there is no manual "fisch"; it must be one of man, bash, zsh, fish; did you mean "fish"?', error)
        self.assertIn("FORM is missing", self.run_code(2, "manual").err)
        self.assertEqual(self.run_ok("manual", "man", "--json").json()["text"], self.pages["man"].read_text())


if __name__ == "__main__":
    unittest.main()
