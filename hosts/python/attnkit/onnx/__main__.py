"""Writes a model of attnkit as a graph of ONNX with the operator attnkit.Block.

    python -m attnkit.onnx model.toml model.onnx
    python -m attnkit.onnx model.toml folder --steps
    python -m attnkit.onnx model.toml folder --steps --standard

docs/onnx.md says how ONNX Runtime loads it.
"""

from __future__ import annotations

import argparse
import sys

from ..error import Error


def main() -> None:
    made = argparse.ArgumentParser("python -m attnkit.onnx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("manifest")
    made.add_argument("file", help="the graph to write; with --steps a folder")
    made.add_argument("--steps", action="store_true", help="graphs that decode with states: decoder.onnx, encoder.onnx")
    made.add_argument("--standard", action="store_true", help="LinearAttention of opset 27 where a causal block is one")
    given = made.parse_args()
    try:
        from ._export import export, export_steps
    except ImportError as e:
        sys.exit(f"attnkit.onnx needs the packages onnx and numpy: {e}")
    try:
        found = (export_steps if given.steps else export)(given.manifest, given.file, standard=given.standard)
        if given.standard and found == 0:
            print("attnkit.onnx: no block of this model is a LinearAttention: --standard changes none", file=sys.stderr)
    except Error as e:
        sys.exit(f"attnkit.onnx: {e}")
    except OSError as e:
        sys.exit(f"attnkit.onnx: {given.file}: {e.strerror or e}")


if __name__ == "__main__":
    main()
