"""The kernels of the plugins, compiled by nvcc: no register goes to local memory, no stack, the products of linear mechanisms and
of tiles in 16 bits are on the tensor cores, and docs/cuda.md predicts from the registers that they have.

resources_test.py NVCC INCLUDE_FOLDER OBJECT:KEPT_FOLDER...
resources_test.py NVCC INCLUDE_FOLDER FILE:ARCHITECTURE...

Prints registers by kernel, the first thing to look at when one is slow.  Machine code is read where cuobjdump is
installed, and PTX elsewhere.
"""
import collections
import concurrent.futures
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

NVCC, INCLUDE, *COMPILED = sys.argv[1:]
BUILT = ".o:" in COMPILED[0]
KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'.*?\n.*\n\s+(\d+) bytes stack frame, (\d+) bytes spill "
                    r"stores, (\d+) bytes spill loads\n.*?Used (\d+) registers")
CUOBJDUMP = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.path.dirname(NVCC))
# The instructions of the tensor cores: products of 16 bits, of depth 16, and of tf32, of depth 8.
ASKED = [r"HMMA\.16816\.F32", r"HMMA\.1688\.F32\.TF32"] if CUOBJDUMP else [
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.b?f16", r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32"]

# Rows of docs/cuda.md's tables "registers | shared memory | blocks per multiprocessor": the words before the table, the row's
# first cell, the plugin, its kernels, and threads of a block.
PREDICTED = [
    ("Softmax, whole causal", "f32 (`blocks_kernel`)", "softmax", "blocks_kernelIf.*Everywhere.*Li64ELb0E", 256),
    ("Softmax, whole causal", "f16, bf16 by `blocks_kernel`", "softmax", "blocks_kernelI(6__half|13__nv).*Everywhere.*Li64ELb0E", 256),
    ("Softmax, whole causal", "gradient, f32 (`gradient_kernel`)", "softmax", "gradient_kernelIf.*Li32E", 256),
    ("The same call of `local`", "f32 (`blocks_kernel`)", "local", "blocks_kernelIf.*Li64ELb0E", 256),
    ("The same call of `local`", "f16, bf16 (`blocks_kernel`)", "local", "blocks_kernelI(6__half|13__nv).*Li64ELb0E", 256),
    ("The same call of `local`", "gradient, f32 (`gradient_kernel`)", "local", "gradient_kernelIf.*Li32E", 256),
    ("The same call of `local`", "one token, 1024 sessions of 8 heads (`direct_kernel`)", "local", "direct_kernelIf", 256),
    ("The same call of `bigbird`", "f32 (`blocks_kernel`)", "bigbird", "blocks_kernelIf.*Li64ELb0E", 256),
    ("The same call of `bigbird`", "f16, bf16 (`blocks_kernel`)", "bigbird", "blocks_kernelI(6__half|13__nv).*Li64ELb0E", 256),
    ("The same call of `bigbird`", "gradient, f32 (`gradient_kernel`)", "bigbird", "gradient_kernelIf.*Li32E", 256),
    ("The same call of `nystromformer`", "f32 (`blocks_kernel`, twice)", "nystromformer", "blocks_kernelIf.*KeysOfIfE.*Li64ELb0E", 256),
    ("The same call of `nystromformer`", "means of segments (`means_kernel`)", "nystromformer", "means_kernelIf", 128),
    ("The same call of `nystromformer`", "products in f64 (`product_kernel`)", "nystromformer", "product_kernel", 64),
    ("The same in f16 and bf16", "relu, linear", "relu", "chunks_kernel.*(6__half|nv_bfloat16).*SharedSums", 128),
    *(("The same in f16 and bf16", row, row.split(",")[0], "chunks_kernel.*(6__half|nv_bfloat16).*SharedSums", 128)
      for row in ("rope_linear", "cosformer", "leap", "latte", "performer, m = 128")),
    *(("Sums in registers, the same call", f"{row}, {name}", row.split(",")[0], f"chunks_kernel.*{kind}.*RegisterTiles.*Li64E", 128)
      for row in ("relu, linear", "cosformer", "rope_linear", "leap") for name, kind in (("bf16", "nv_bfloat16"), ("f16", "6__half"))),
    ("Gradients in f16 and bf16 of relu", "forward (`scan_kernel`)", "relu", r"\dscan_kernel.*Li64ELb1E", 256),
    ("Gradients in f16 and bf16 of relu", "reverse (`scan_kernel`)", "relu", r"\dscan_kernel.*Li64ELb0E", 256),
    ("Luna, the same shapes", "causal, whole", "luna", "causal_kernelIf", 128),
    ("Luna, the same shapes", "bidirectional: pack", "luna", r"\dpack_kernelI[^d]", 128),
    ("Luna, the same shapes", "bidirectional: unpack", "luna", "unpack_kernelI[^d]", 128),
    ("Luna, the same shapes", "causal, one token, 1024 sessions", "luna", "causal_kernelI[^d]", 128),
    *(("Luna, the same shapes", row, "luna", rf"\d{kernel}_gradient_kernelIfE", 128)
      for row, kernel in (("gradient, causal", "causal"), ("gradient, bidirectional: unpack", "unpack"), ("gradient, bidirectional: pack", "pack"))),
    ("Linformer, bidirectional", "`append_kernel`", "linformer", "append_kernelIf", 128),
    ("Linformer, bidirectional", "`attend_kernel`", "linformer", "attend_kernelIf", 128),
    ("Linformer, bidirectional", "gradient: `gradient_kernel`, softmax's", "linformer", "gradient_kernelIf.*Li32E", 256),
    ("Linformer, bidirectional", "gradient: `give_kernel`", "linformer", "give_kernelIf", 128),
    ("Linformer, bidirectional", "gradient: `learn_kernel`", "linformer", "learn_kernelIfLb0E", 128),
]


def blocks_of(registers, threads, shared):
    """How many blocks a multiprocessor of Hopper holds: of 64 Ki registers, given out by 8, and of 228 KiB of shared memory, of which a
    block has 1 KiB more than it asks for."""
    return min(65536 // (-(-registers // 8) * 8 * threads), 228 * 1024 // (shared + 1024))


def code_of(folder):
    """The code of the kernels that nvcc kept there, by name."""
    parts = []
    for file in pathlib.Path(folder).glob("*.cubin" if CUOBJDUMP else "*.ptx"):
        if CUOBJDUMP:
            code = subprocess.run([CUOBJDUMP, "-sass", file], check=True, capture_output=True, text=True).stdout
            parts += re.split(r"Function : (\w+)", code)[1:]
        else:
            parts += re.split(r"\.entry (\w+)", file.read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2]))


def compiled(pair):
    """The report of ptxas on kernels, and their code by name: of an object of the build, or of a file that is compiled now."""
    file, how = pair.split(":")
    if file.endswith(".o"):
        return KERNEL.findall(pathlib.Path(file + ".resources").read_text()), code_of(how)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([NVCC, "-std=c++20", "-O3", f"-arch=sm_{how}", "-cubin", "--resource-usage", "--keep", f"--keep-dir={folder}",
                               f"-I{INCLUDE}", "-o", f"{folder}/out.cubin", file], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return KERNEL.findall(done.stdout + done.stderr), code_of(folder)


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

    @unittest.skipUnless(BUILT, "of the objects of a build")
    def test_predictions_are_of_these_kernels(self):
        kernels = {os.path.basename(pair.split(":")[0]).split(".")[0]: kernels for pair, (kernels, _) in all_compiled()}
        document = (pathlib.Path(__file__).parents[2] / "docs/cuda.md").read_text(encoding="utf-8")
        for before, row, plugin, kernel, threads in PREDICTED:
            with self.subTest(before=before, row=row):
                _, after = document.split(before)
                registers, shared, blocks = re.search(rf"^\| {re.escape(row)} \| ([\d and]+) \| (\d+) KB \| (\d+)", after, re.M).groups()
                found = {int(r) for name, *_, r in kernels[plugin] if re.search(kernel, name)}
                said = {int(r) for r in registers.split(" and ")}
                self.assertEqual(said, found if len(said) > 1 else {max(found)})
                self.assertEqual(int(blocks), blocks_of(max(found), threads, 1000 * int(shared)))

    def test_products_in_16_bits_are_on_the_tensor_cores(self):
        # What a bf16 kernel has in registers is beyond f16 alone, where it takes tf32.
        asked = {"chunks_kernel": ASKED, "sums_kernel": ASKED[:1], "scan_kernel": ASKED, "scan_sums_kernel": ASKED[1:], "blocks_kernel": ASKED[1:]}
        found = collections.Counter()
        for pair, (_, code) in all_compiled():
            for name, body in code.items():
                of = re.search(r"6linear\d+((?:chunks|sums|scan|scan_sums)_kernel)I|(blocks_kernel)I(?:6__half|13__nv_bfloat16|f)\w*"
                               r"(?:Everywhere|Window|Listed)\w*Li64E", name)
                if not of:
                    continue
                kernel = of[1] or of[2]
                halves = "6__half" in name or "bfloat16" in name
                found[kernel] += halves
                registers = "RegisterTiles" in name or kernel.startswith("scan")
                for one in ASKED[:1] if registers and "bfloat16" in name else asked[kernel]:
                    self.assertEqual(bool(re.search(one, body)), halves, f"{one} in {name} of {pair}")
        self.assertEqual(set(+found) | (set() if BUILT else {"blocks_kernel"}), set(asked))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
