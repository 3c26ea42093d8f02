"""Mechanisms in graphs of ONNX: the operator attnkit.Block for ONNX Runtime, models as graphs, the standard LinearAttention.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(attnkit.onnx.library())
    onnxruntime.InferenceSession("model.onnx", options)

docs/onnx.md describes the operator.  Needs the packages onnx and numpy, library() neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._library import library

if TYPE_CHECKING:
    from ._export import export, export_steps
    from ._graph import block
    from ._linear import import_linear_attention

__all__ = ["block", "export", "export_steps", "import_linear_attention", "library"]


def __getattr__(name: str) -> Any:
    if name == "block":
        from . import _graph as module
    elif name in ("export", "export_steps"):
        from . import _export as module  # type: ignore[no-redef]
    elif name == "import_linear_attention":
        from . import _linear as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
