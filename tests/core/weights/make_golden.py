"""Makes golden/quantised.gguf: of every type a tensor of random blocks, and beside it the f32 that the library `gguf` makes of them.

    pip install gguf==0.19.0 numpy
    python3 make_golden.py
"""
from pathlib import Path

import gguf
import numpy

ROWS = 3
TYPES = {"F16": [], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}  # where blocks have f16 scales


def blocks(name, random):
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if name == "F16":
        return random.standard_normal((ROWS, 40)).astype(numpy.float16)
    if name == "BF16":
        return (random.standard_normal((ROWS, 40)).astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)
    made = random.integers(0, 256, (ROWS, 512 // numbers, size), dtype=numpy.uint8)
    for at in TYPES[name]:
        scales = random.standard_normal(made.shape[:2]).astype(numpy.float16) * random.choice([1, 1e-6, 100], made.shape[:2])
        made[:, :, at:at + 2] = scales.astype(numpy.float16)[..., None].view(numpy.uint8)
    return made.reshape(ROWS, -1)


def main():
    folder = Path(__file__).parent / "golden"
    folder.mkdir(exist_ok=True)
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(folder / "quantised.gguf", "none")
    for name in TYPES:
        kind, data = gguf.GGMLQuantizationType[name], blocks(name, random)
        writer.add_tensor(name, data, raw_dtype=kind)
        writer.add_tensor(name + ".f32", gguf.quants.dequantize(data, kind).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
