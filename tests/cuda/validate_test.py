"""attnkit validate-plugin holds a plugin for CUDA to the same laws on a device, which the emulator stands in for."""

import json
import os
import pathlib
import subprocess
import unittest

FOLDER = pathlib.Path(os.environ["ATTNKIT_CUDA_FOLDER"])


def validate(fault, *checks, devices=1, draws=0):
    arguments = [argument for check in checks for argument in ("--only", check)]
    done = subprocess.run([os.environ["ATTNKIT"], "validate-plugin", FOLDER / f"device-{fault}/relu-cuda.so", "--seed", "1", "--draws", str(draws),
                           "--json", *arguments], capture_output=True, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": str(FOLDER / "driver"), "ATTNKIT_EMULATED_DEVICES": str(devices)})
    return {c["name"]: (c["verdict"], c["reason"]) for c in json.loads(done.stdout)["checks"]}


class OfADevice(unittest.TestCase):
    def test_a_good_one_passes(self):
        found = validate("NONE", "load", "plan", "table", "memory", "whole.writes", "whole.halves", "whole.layout", "whole.repeats", "whole.workers", "whole.at_once",
                         "refusal", "locality", "stream.chunks", "stream.slots", "stream.moves", "stream.other_process", "gradient.skips", draws=1)
        self.assertEqual({name: said for name, said in found.items() if said[0] == "failed"}, {})
        self.assertGreater(sum(verdict == "passed" for verdict, _ in found.values()), 35)
        for name in ("load.device", "memory.fences", "whole.writes", "whole.halves", "stream.chunks", "stream.other_process", "gradient.skips"):
            self.assertEqual(found[name][0], "passed", found[name])

    def test_its_process_is_not_looked_at(self):
        for name, said in validate("NONE", "process").items():
            self.assertEqual(said, ("not applicable", "it computes on CUDA, whose driver is a part of the process"), name)

    def test_without_a_device_nothing_is_run(self):
        verdict, reason = validate("NONE", "load.device", devices=0)["load.device"]
        self.assertEqual((verdict, reason), ("not applicable", "it computes on CUDA, and there is no device: the driver knows no device"))
        found = validate("NONE", "load.device", "whole.writes", devices=0)
        self.assertEqual(found["whole.writes"][0], "not applicable")

    def test_faults_are_found(self):
        for fault, check, words in (("READS_ON_THE_HOST", "whole.writes", "was killed by signal"),
                                    ("OTHER_STREAM", "whole.writes", ""),
                                    ("FORGETS_A_RUN", "whole.repeats_often", ""),
                                    ("WRITES_PAST", "whole.writes", "past an allocation")):
            verdict, reason = validate(fault, check)[check]
            self.assertEqual(verdict, "failed", (fault, reason))
            self.assertIn(words, reason, fault)


if __name__ == "__main__":
    unittest.main()
