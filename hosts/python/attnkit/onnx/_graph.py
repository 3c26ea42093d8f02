"""A graph of ONNX while it is written."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "attnkit"
_ATTRIBUTES = {"heads", "d_model", "key_width", "head_width", "kv_heads", "role", "causal", "options", "capacity", "names"}


def block(mechanism: str, inputs: Sequence[str] | dict[str, str], outputs: Sequence[str], name: str | None = None,
          **attributes: Any) -> onnx.NodeProto:
    """A node attnkit.Block.  inputs: a list in the order of the ports, or a dict from names to values; attributes: heads, d_model,
    role, options, capacity, ..."""
    unknown = sorted(attributes.keys() - _ATTRIBUTES)
    if unknown:  # which ONNX Runtime would not notice
        raise TypeError(f"attnkit.Block has no attribute {unknown[0]!r}: it has {', '.join(sorted(_ATTRIBUTES))}")
    if isinstance(inputs, dict):
        attributes["names"] = " ".join(inputs)
        inputs = list(inputs.values())
    return helper.make_node("Block", inputs, outputs, name=name, domain=DOMAIN, mechanism=mechanism, **attributes)


def graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Those inside a node."""
    return [g for a in node.attribute for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]


def used(graph: onnx.GraphProto) -> set[str]:
    """Names that a graph reads, those of the graphs inside its nodes among them."""
    inner = [g for node in graph.node for g in graphs(node)]
    return {name for node in graph.node for name in node.input} | {v.name for v in graph.output} | {name for g in inner for name in used(g)}


def prune(graph: onnx.GraphProto) -> None:
    """Takes out what nothing uses."""
    while True:
        names = used(graph)
        idle = [node for node in graph.node if not names.intersection(node.output)]
        if not idle:
            break
        for node in idle:
            graph.node.remove(node)
    for tensor in [t for t in graph.initializer if t.name not in names]:
        graph.initializer.remove(tensor)


class Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.known: list[onnx.ValueInfoProto] = []

    def __call__(self, op: str, *inputs: Any, outputs: list[str] | None = None, **attributes: Any) -> str:
        """The value that a node makes; inputs: names, or arrays that become constants."""
        made = outputs or [self.name(op)]
        self.nodes.append(helper.make_node(op, [self.value(x) for x in inputs], made, name=made[0], **attributes))
        return made[0]

    def add(self, node: onnx.NodeProto) -> None:
        self.nodes.append(node)

    def name(self, what: str) -> str:
        return f"{what}_{len(self.nodes)}"

    def value(self, x: Any) -> str:
        """The name of a value; of an array that of a constant, one for equal small arrays."""
        if isinstance(x, str):
            return x
        x = np.asarray(x)
        key = f"constant_{len(self.initializers)}" if x.size > 16 else f"constant_{x.dtype}_{x.shape}_{x.tolist()}"
        return self.constant(key, x)

    def constant(self, name: str, x: NDArray[Any]) -> str:
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(x), name)
        return name

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def model(self, name: str, opset: int, **about: Any) -> onnx.ModelProto:
        made = helper.make_graph(self.nodes, name, self.inputs, self.outputs, list(self.initializers.values()),
                                value_info=self.known)
        # ONNX Runtime 1.17.3 overwrote others beside a value that nothing uses, from the second run of one shape on.
        prune(made)
        names = used(made)
        for node in made.node:
            if node.domain == DOMAIN:
                kept = [name if name in names else "" for name in node.output]
                while not kept[-1]:
                    kept.pop()
                node.output[:] = kept
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
        ir_version = 9 if opset <= 20 else 10  # the oldest that has the opset
        return helper.make_model(made, opset_imports=imports, ir_version=ir_version, producer_name="attnkit", **about)

    def heads(self, x: str, heads: int, width: int = -1) -> str:
        """(B, N, heads * width) as (B, N, heads, width); where N may be 0 the width must be said."""
        return self("Reshape", x, np.array([0, 0, heads, width], np.int64))

    def beside(self, x: str, columns: int = -1) -> str:
        """(B, N, heads, width) as (B, N, heads * width), which must be said where N may be 0."""
        return self("Reshape", x, np.array([0, 0, columns], np.int64))

    def knows(self, name: str, shape: Sequence[int | None]) -> None:
        """The shape of a value that a node of another domain makes, None: any.  ONNX Runtime runs LinearAttention behind it as a Scan, whose
        states need their shapes."""
        self.known.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def linear(self, x: str, weight: NDArray[Any], bias: NDArray[Any] | None = None) -> str:
        """weight (out, in), bias (out)."""
        y = self("MatMul", x, np.ascontiguousarray(weight.T))
        return y if bias is None else self("Add", y, bias)

    def cut(self, x: str, axis: int, begin: NDArray[Any] | int | str, end: NDArray[Any] | int | str, step: int = 1) -> str:
        """x[begin:end:step] along an axis; begin, end: numbers, or values (1)."""
        begin, end = (x if isinstance(x, str) else np.array(x).reshape(1) for x in (begin, end))
        return self("Slice", x, begin, end, np.array([axis]), np.array([step]))

    def rows(self, x: str) -> str:
        """The size of dimension 1, (1)."""
        return self("Shape", x, start=1, end=2)

    def real(self, x: str, lengths: str) -> str:
        """(B, N, 1): whether a row of x is before its length."""
        places = self("Range", np.int64(0), self("Squeeze", self.rows(x)), np.int64(1))
        return self("Unsqueeze", self("Less", places, self("Unsqueeze", lengths, np.array([1]))), np.array([2]))

    def only(self, x: str, real: str, zero: Any = np.float32(0)) -> str:
        """x with zeros past the lengths."""
        return self("Where", real, x, zero)
