"""Mechanisms in graphs of ONNX: the operator attnkit.Block for ONNX Runtime, models as graphs, the standard LinearAttention.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(attnkit.onnx.library())
    onnxruntime.InferenceSession("model.onnx", options)

docs/onnx.md describes the operator.  Needs the packages onnx and numpy, library() neither.
"""

from ._library import library

__all__ = ["block", "export", "export_steps", "import_linear_attention", "library"]


def __getattr__(name):
    if name == "block":
        from ._graph import block as found
    elif name == "export":
        from ._export import export as found
    elif name == "export_steps":
        from ._export import export_steps as found
    elif name == "import_linear_attention":
        from ._linear import import_linear_attention as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
