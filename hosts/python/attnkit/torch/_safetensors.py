"""safetensors files, which are a JSON header and bytes."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import struct

import torch

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def tensors_of(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors in the bytes of a file that libattnkit has checked or made."""
    size, = struct.unpack_from("<Q", data)
    header, buffer = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
    made = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(buffer, dtype=torch.uint8)[begin:end] if end > begin else torch.empty(0, dtype=torch.uint8)
        made[name] = flat.clone().view(_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return made


def save(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a file in one step: it is whole or as before."""
    path, header, data, end = pathlib.Path(path), {}, [], 0
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        data.append(ctypes.string_at(t.data_ptr(), t.nbytes) if t.nbytes else b"")
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write(path, struct.pack("<Q", len(text)) + text + b"".join(data))


def write(path: pathlib.Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
