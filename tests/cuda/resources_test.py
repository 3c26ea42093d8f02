"""The kernels of the plugins, compiled by nvcc: no register goes to local memory, no stack, and the chunks of linear
mechanisms in 16 bits are on the tensor cores.

resources_test.py NVCC INCLUDE_FOLDER FILE:ARCHITECTURE...

Prints registers by kernel, the first thing to look at when one is slow.  Machine code is read where cuobjdump is
installed, and PTX elsewhere.
"""
import concurrent.futures
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

NVCC, INCLUDE, *COMPILED = sys.argv[1:]
KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'.*?\n.*\n\s+(\d+) bytes stack frame, (\d+) bytes spill "
                    r"stores, (\d+) bytes spill loads\n.*?Used (\d+) registers")
CUOBJDUMP = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.path.dirname(NVCC))
# The instructions of the tensor cores: products of 16 bits, of depth 16, and of tf32, of depth 8.
ASKED = [r"HMMA\.16816\.F32", r"HMMA\.1688\.F32\.TF32"] if CUOBJDUMP else [
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.b?f16", r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32"]


def compiled(pair):
    """The report of ptxas on the kernels of a file, and their code by name."""
    file, architecture = pair.split(":")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([NVCC, "-std=c++20", "-O3", f"-arch=sm_{architecture}", "-cubin", "--resource-usage",
                               "--keep", f"--keep-dir={folder}", f"-I{INCLUDE}", "-o", f"{folder}/out", file],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        if CUOBJDUMP:
            code = subprocess.run([CUOBJDUMP, "-sass", f"{folder}/out"], check=True, capture_output=True, text=True).stdout
            parts = re.split(r"Function : (\w+)", code)
        else:
            name = os.path.splitext(os.path.basename(file))[0]
            with open(f"{folder}/{name}.ptx", encoding="utf-8") as ptx:
                parts = re.split(r"\.entry (\w+)", ptx.read())
    return KERNEL.findall(done.stdout + done.stderr), dict(zip(parts[1::2], parts[2::2]))


@functools.cache
def all_compiled():
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(zip(COMPILED, pool.map(compiled, COMPILED)))


class Resources(unittest.TestCase):
    def test_nothing_spills(self):
        for pair, (kernels, _) in all_compiled():
            self.assertTrue(kernels, pair)
            for name, architecture, stack, stores, loads, registers in kernels:
                kernel = re.search(r"\d([a-z_]+_kernel)[IE]", name).group(1)
                print(f"{os.path.basename(pair.split(':')[0])} {architecture} {kernel}: {registers} registers")
                self.assertEqual((stack, stores, loads), ("0", "0", "0"), f"{pair} {name}")

    def test_chunks_in_16_bits_are_on_the_tensor_cores(self):
        found = 0
        for pair, (_, code) in all_compiled():
            for name, body in code.items():
                if "chunks_kernel" not in name:
                    continue
                halves = "6__half" in name or "bfloat16" in name
                found += halves
                for asked in ASKED:
                    self.assertEqual(bool(re.search(asked, body)), halves, f"{asked} in {name} of {pair}")
        self.assertGreater(found, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
