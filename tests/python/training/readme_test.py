"""The training program in hosts/python/README.md, run; its model verifies."""

import os
import re

from support import SOURCE, TorchTest, command, main

README = SOURCE / "hosts/python/README.md"


class Readme(TorchTest):
    def test_training(self):
        *_, program = re.findall(r"(?ms)^```python\n(.*?)^```$", README.read_text(encoding="utf-8"))
        program, names = program.replace('"relu.toml"', repr(str(SOURCE / "samples/manifests/relu.toml"))), {}
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        exec(compile(program, README, "exec"), names)
        self.assertLess(names["loss"].item(), 0.5)
        self.assertIn("ok, ", command("verify", names["manifest"]).out)


if __name__ == "__main__":
    main()
