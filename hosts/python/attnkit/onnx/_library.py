"""Finds the library with the operators, beside libattnkit."""

from .._library import find
from ..error import INVALID, Error


def library() -> str:
    """The path for SessionOptions.register_custom_ops_library; ATTNKIT_LIBRARY names the libattnkit that it lies beside."""
    file = find().resolve().parent / "attnkit/libattnkit-onnxruntime.so"
    if not file.is_file():
        raise Error(INVALID, f"{file} is no file: this libattnkit was installed without its operators for ONNX Runtime")
    return str(file)
