"""The common part of the tests of the Python package: a runtime, models, and the command to compare with (../cli)."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))

import attnkit
import stream_test  # noqa: F401, measures of latency
import tiny_model
from command import SAMPLE, CommandTest

TEXTS = ["one two three", "four", "two two-s seven six", "Ü", "seven six five four three two one"]
RUNTIME = attnkit.Runtime(threads=2)


class PackageTest(CommandTest):
    def tiny(self, name="model", stream=False, **options):
        """A tiny model, its manifest being self.folder/name/model.toml."""
        if stream:
            options["extra"] = "[stream]\nk = 1\n"
        return attnkit.Model(RUNTIME, tiny_model.write_model(self.folder / name, **options))

    def ids(self, model, text):
        return [*model.tokenize(attnkit.SOURCE, text), model.info.end_id]

    def refused(self, part, function, *arguments, code=attnkit.INVALID, **options):
        with self.assertRaises(attnkit.Error) as caught:
            function(*arguments, **options)
        self.assertEqual(caught.exception.code, code)
        self.assertIn(part, str(caught.exception))
        return caught.exception
