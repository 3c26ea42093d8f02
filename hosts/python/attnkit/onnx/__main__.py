"""Writes a model of attnkit as a graph of ONNX with the operator attnkit.Block.

    python -m attnkit.onnx model.toml model.onnx
    python -m attnkit.onnx model.toml folder --steps

docs/onnx.md says how ONNX Runtime loads it.
"""

import argparse
import sys

from ..error import Error


def main():
    made = argparse.ArgumentParser("python -m attnkit.onnx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("manifest")
    made.add_argument("file", help="the graph to write; with --steps a folder")
    kind = made.add_mutually_exclusive_group()
    kind.add_argument("--steps", action="store_true", help="graphs that decode with states: decoder.onnx, encoder.onnx")
    kind.add_argument("--standard", action="store_true", help="LinearAttention of opset 27 where a causal block of relu or linear is one")
    given = made.parse_args()
    try:
        from ._export import export, export_steps
    except ImportError as e:
        sys.exit(f"attnkit.onnx needs the packages onnx and numpy: {e}")
    try:
        if given.steps:
            export_steps(given.manifest, given.file)
        else:
            export(given.manifest, given.file, standard=given.standard)
    except Error as e:
        sys.exit(f"attnkit.onnx: {e}")


if __name__ == "__main__":
    main()
