"""Files of arrays and numbers, read and written with the standard library alone."""
import ast
import json
import re
import struct


def read_npy(path):
    """Rows of an array of float32."""
    bytes_ = path.read_bytes()
    length = struct.unpack("<H", bytes_[8:10])[0]
    header = ast.literal_eval(bytes_[10:10 + length].decode())
    assert bytes_[:8] == b"\x93NUMPY\x01\0" and header["descr"] == "<f4" and not header["fortran_order"], header
    rows, width = header["shape"]
    data = bytes_[10 + length:]
    assert len(data) == 4 * rows * width and (10 + length) % 64 == 0
    return [struct.unpack_from(f"<{width}f", data, 4 * width * i) for i in range(rows)]


def read_safetensors(path):
    """Shapes and flat values by name."""
    bytes_ = path.read_bytes()
    length = struct.unpack("<Q", bytes_[:8])[0]
    tensors = {}
    for name, t in json.loads(bytes_[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        kind = {"F32": "f", "I32": "i"}[t["dtype"]]
        tensors[name] = (t["shape"], struct.unpack(f"<{(end - begin) // 4}{kind}", bytes_[8 + length + begin:8 + length + end]))
    return tensors


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path, document):
    """A list of numbers is on one line."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    path.write_text(re.sub(r"\[\s+(\d+(?:,\s+\d+)*)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text) + "\n")
