"""The kernels of the plugins, compiled by nvcc: no register goes to local memory, no stack.

resources_test.py NVCC INCLUDE_FOLDER FILE:ARCHITECTURE...

Prints registers by kernel, the first thing to look at when one is slow.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, INCLUDE, *COMPILED = sys.argv[1:]
KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'.*?\n.*\n\s+(\d+) bytes stack frame, (\d+) bytes spill "
                    r"stores, (\d+) bytes spill loads\n.*?Used (\d+) registers")


def resources(file, architecture):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([NVCC, "-std=c++20", "-O3", f"-arch=sm_{architecture}", "-cubin", "--resource-usage",
                               f"-I{INCLUDE}", "-o", f"{folder}/out", file], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return KERNEL.findall(done.stdout + done.stderr)


class Resources(unittest.TestCase):
    def test_nothing_spills(self):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            made = list(pool.map(lambda pair: resources(*pair.split(":")), COMPILED))
        for pair, kernels in zip(COMPILED, made):
            self.assertTrue(kernels, pair)
            for name, architecture, stack, stores, loads, registers in kernels:
                kernel = re.search(r"\d([a-z_]+_kernel)[IE]", name).group(1)
                print(f"{os.path.basename(pair.split(':')[0])} {architecture} {kernel}: {registers} registers")
                self.assertEqual((stack, stores, loads), ("0", "0", "0"), f"{pair} {name}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
