"""The program in hosts/python/README.md, run."""

import contextlib
import io
import pathlib
import re
import unittest

from support import SAMPLE

README = pathlib.Path(__file__).resolve().parents[2] / "hosts/python/README.md"


class Readme(unittest.TestCase):
    def test_program(self):
        program, block, _ = re.findall(r"(?ms)^```python\n(.*?)^```$", README.read_text(encoding="utf-8"))
        said, names = io.StringIO(), {}
        with contextlib.redirect_stdout(said):
            exec(compile(program.replace('"model.toml"', repr(str(SAMPLE))), README, "exec"), names)
        self.assertEqual(said.getvalue(), "zweihunderteinundvierzig Euro\nhalb vier\n")
        with contextlib.redirect_stdout(said):
            exec(compile(block, README, "exec"), {})
        self.assertEqual(said.getvalue().splitlines()[-1], block.rsplit("# ", 1)[1].strip())
        self.assertEqual(names["logits"].shape, (1, 1, names["model"].info.outputs))


if __name__ == "__main__":
    unittest.main()
