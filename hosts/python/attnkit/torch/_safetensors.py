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


def bytes_of(tensors: dict[str, torch.Tensor]) -> bytes:
    """A file of tensors."""
    header, data, end = {}, [], 0
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        data.append(ctypes.string_at(t.data_ptr(), t.nbytes) if t.nbytes else b"")
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def write(files: dict[pathlib.Path, bytes]) -> None:
    """Writes files, all of them before the first takes the place of an earlier one, and each of those in one step."""
    parts = {path: path.with_name(path.name + ".part") for path in files}
    try:
        for path, part in parts.items():
            with open(part, "wb") as file:
                file.write(files[path])
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
