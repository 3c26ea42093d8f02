"""Mechanisms as the standard operator LinearAttention of opset 27, and back.

LinearAttention has no denominator: with a one behind each value it sums the weights as well, in the last column.  Its queries and keys
are features, which operators before it make.  ssru is its rule
"gated" with a head for each channel, a query of 1, 1 - f as the key and log f as the decay.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ..block import options_text
from ..error import INVALID, UNSUPPORTED, Error
from ._graph import DOMAIN, Graph, block, graphs, prune, used

OPSET = 27
MECHANISMS = ("relu", "linear", "cosformer", "leap", "rope_linear", "performer", "ssru")


def is_linear_attention(mechanism: str, options: dict[str, Any], heads: int, kv_heads: int) -> bool:
    """Is a causal block of these options one, given its feature map in front?"""
    if mechanism == "cosformer":
        return bool(options["beyond"] != "error")  # a graph refuses no row
    if mechanism == "leap":
        return bool(options["shared"]) or heads == kv_heads  # a query would have features of its own
    if mechanism == "performer":  # elsewhere what keys are scaled by is part of the result, and follows the keys
        return bool(options["stabiliser"] == "fixed" or (options["feature_eps"] == 0 and options["guard"] == "none"))
    return mechanism in MECHANISMS


def state_width(mechanism: str, options: dict[str, Any], width: int) -> int:
    """The rows of a head's state."""
    return options["features"] if mechanism == "performer" else width if mechanism in ("relu", "linear") else 2 * width


def _waves(graph: Graph, x: str, angle: str) -> str:
    """Features whose products are those of x, times the cosine of the difference of angles (..., 1)."""
    return graph("Concat", graph("Mul", x, graph("Cos", angle)), graph("Mul", x, graph("Sin", angle)), axis=3)


def _module(graph: Graph, x: str, side: str, learned: dict[str, NDArray[Any]]) -> str:
    """LeaP of x (B, N, heads, width): proportions (B, N, heads, 1)."""
    def layer(x: str, number: int) -> str:
        weight, bias = (learned[f"{side}_{letter}{number}"] for letter in "wb")
        y = graph("MatMul", x, np.ascontiguousarray(weight.swapaxes(-1, -2)))
        return graph("Add", y, bias if bias.ndim == 1 else bias[:, None])
    y = layer(graph("Unsqueeze", x, np.array([3])), 1)
    if f"{side}_w2" in learned:
        y = layer(graph("Relu", y), 2)
    return graph("Squeeze", graph("Sigmoid", y), np.array([3]))


def _projections(graph: Graph, x: str, omega: NDArray[Any], options: dict[str, Any], query: bool) -> str:
    """FAVOR+ features of x (B, N, heads, width)."""
    features, width = omega.shape
    x = graph("Mul", x, np.float32(width ** -0.25))
    y = graph("MatMul", x, np.ascontiguousarray(omega.T))
    half = graph("Mul", graph("ReduceSum", graph("Mul", x, x), np.array([3])), np.float32(0.5))
    scale = graph("ReduceMax", y, np.array([3])) if query else np.float32(options["fixed"] if options["stabiliser"] == "fixed" else 0)
    y = graph("Exp", graph("Sub", graph("Sub", y, half), scale))
    y = graph("Add", y, np.float32(options["feature_eps"])) if options["feature_eps"] else y
    return graph("Mul", y, np.float32(features ** -0.5))


def _features(graph: Graph, mechanism: str, options: dict[str, Any], q: str, k: str, heads: int, kv_heads: int, width: int,
              more: dict[str, Any]) -> tuple[str, str]:
    """Rows of features, all heads beside each other, whose products are the weights.

    more: what a mechanism needs beside q and k: its learned tensors and tables by name; of cosformer "fraction" (B, N, 1, 1), a row's place
    over the length; of rope_linear "turn", which turns rows (B, N, heads, width).  rope_linear has two heads of queries for each, for
    the weights and for what they are divided by.
    """
    def scaled(x: str) -> str:
        return graph("Mul", x, np.float32(1 / math.sqrt(width))) if options.get("scale") == "inverse_sqrt" else x

    if mechanism == "relu":
        return graph("Relu", scaled(q)), graph("Relu", k)
    if mechanism == "linear":
        q, k = (graph("Add", graph("Elu", x), np.float32(1)) for x in (q, k))
        return q, k
    q, k = graph.heads(scaled(q), heads), graph.heads(k, kv_heads)
    if mechanism == "cosformer":
        angle = graph("Mul", more["fraction"], np.float32(math.pi / 2))
        q, k = (_waves(graph, graph("Relu", x), angle) for x in (q, k))
    elif mechanism == "leap":
        a, b = graph("Relu", q), graph("Relu", k)
        q, k = (_waves(graph, x, graph("Mul", _module(graph, x, side, more), np.float32(math.pi / 2))) for x, side in ((a, "q"), (b, "k")))
    elif mechanism == "performer":
        q, k = (_projections(graph, x, more["omega"], options, query) for x, query in ((q, True), (k, False)))
    else:
        a, b = (graph("Add", graph("Elu", x), np.float32(1)) for x in (q, k))
        nothing = graph("Mul", a, np.float32(0))
        both = [graph("Concat", *parts, axis=3) for parts in ((more["turn"](a), nothing), (nothing, a))]
        q = graph("Concat", *(graph("Unsqueeze", x, np.array([3])) for x in both), axis=3)
        k, heads = graph("Concat", more["turn"](b), b, axis=3), 2 * heads
    across = state_width(mechanism, options, width)
    q, k = (graph("Reshape", x, np.array([0, 0, n * across])) for x, n in ((q, heads), (k, kv_heads)))
    return q, k


def as_linear_attention(graph: Graph, mechanism: str, options: dict[str, Any], q: str, k: str, v: str, heads: int, kv_heads: int,
                        width: int, past: str | None = None, present: str | None = None, more: dict[str, Any] | None = None) -> str:
    """Adds nodes that compute a causal block; q, k, v: rows with all heads beside each other; width: of a query in a head.

    options: all of the mechanism's, by name.  past, present: names of states, (B, kv_heads, state_width(), value width + 1).  more: as of
    _features.
    """
    if mechanism not in MECHANISMS[:-1] or not is_linear_attention(mechanism, options, heads, kv_heads):
        raise Error(UNSUPPORTED, f"{mechanism} with these options is no LinearAttention")
    q, k = _features(graph, mechanism, options, q, k, heads, kv_heads, width, more or {})
    v = graph.heads(v, kv_heads)
    ones = graph("ConstantOfShape", graph("Concat", graph("Shape", v, end=3), np.array([1]), axis=0),
                 value=numpy_helper.from_array(np.ones(1, np.float32)))
    name = graph.name("LinearAttention")
    inputs = [q, k, graph.beside(graph("Concat", v, ones, axis=3)), *([past] if past else [])]
    split = 2 if mechanism == "rope_linear" else 1
    graph.add(helper.make_node("LinearAttention", inputs, [name, present or f"{name}_state"], name=name, q_num_heads=split * heads,
                               kv_num_heads=kv_heads, scale=1.0, update_rule="linear"))
    o = graph.heads(name, heads)
    weighted, sums = graph.cut(o, 3, 0, -1), graph.cut(o, 3, -1, np.iinfo(np.int64).max)
    if split == 2:  # of the first half of a head what is divided, of the second what divides it
        columns = graph("Div", graph("Shape", o, start=3, end=4), np.array([2]))
        weighted = graph.cut(o, 3, 0, graph("Sub", columns, np.array([1])))
    eps = np.float32(options["eps"])
    if options["guard"] != "none":
        sums = graph("Add", sums, eps) if options["guard"] == "add" else graph("Max", sums, eps)
    return graph.beside(graph("Div", weighted, sums))


def as_gated_recurrence(graph: Graph, channels: int, x: str, value: NDArray[Any] | str, forget: NDArray[Any] | str,
                        bias: NDArray[Any] | str, past: str | None = None, present: str | None = None) -> str:
    """Adds nodes that compute ssru of rows x; value, forget: (channels, channels).  past, present: names of states, (B, channels, 1, 1)."""
    rest = graph("Neg", graph("Add", graph("MatMul", x, forget), bias))
    written = graph("MatMul", x, value)
    ones = graph("ConstantOfShape", graph("Shape", written), value=numpy_helper.from_array(np.ones(1, np.float32)))
    decay = graph("Neg", graph("Softplus", rest))  # log f; the logarithm of a sigmoid is -inf where that underflows
    name = graph.name("LinearAttention")
    graph.add(helper.make_node("LinearAttention", [ones, graph("Sigmoid", rest), written, past or "", decay], [name, present or f"{name}_state"],
                               name=name, q_num_heads=channels, kv_num_heads=channels, scale=1.0, update_rule="gated"))
    return graph("Relu", name)


def import_linear_attention(model: onnx.ModelProto, capacity: int = 0, position: str = "past_length", every: bool = False) -> int:
    """Makes attnkit.Block of what a model of ONNX computes by LinearAttention and is a mechanism; returns how many were made.

    That is the rule "linear" of queries and keys that went through Relu, or Elu and Add of 1, with a one behind each value and a division
    by what became of the ones; and the rule "gated" as ssru has it.  Other nodes are left as they are.

    capacity: the most rows of a sequence.  With it, nodes with past_state or present_state become blocks with a state: the inputs and
    outputs of the graph of these names are then uint8 (batch, bytes), the empty one (batch, 0), and the integer input `position`, which
    is added where the graph has none of that name, says how many rows the states have seen.  Without it they are left.

    every: throws Error where a node would be left, which says why; the model is then as before.
    """
    nodes = [n for n in model.graph.node if _operator(n) == "LinearAttention"]
    if not nodes:
        raise Error(INVALID, "this graph has no LinearAttention")
    found, made = _Matcher(model, capacity), []
    for node in nodes:
        try:
            made.append(found.match(node))
        except _Other as why:
            if every:
                raise Error(UNSUPPORTED, f'LinearAttention "{node.name or node.output[0]}": {why}') from None
    if any(m.past for m in made):
        found.add_position(position)
    for m in made:
        found.replace(m, position)
    if made:
        prune(model.graph)
        if DOMAIN not in [domain.domain for domain in model.opset_import]:
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return len(made)


class _Other(Exception):
    """Why a node is no mechanism."""


@dataclasses.dataclass
class _Match:
    """A block in place of a node."""

    mechanism: str
    inputs: dict[str, str]
    attributes: dict[str, Any]
    last: onnx.NodeProto  # what makes the block's output
    past: str
    present: str  # "" where nothing uses it
    name: str
    heads: int  # into which the output is put; 0: none


class _Matcher:
    def __init__(self, model: onnx.ModelProto, capacity: int) -> None:
        self.graph, self.capacity = model.graph, capacity
        self.maker = {name: node for node in self.graph.node for name in node.output}
        self.uses: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.uses.setdefault(name, []).append(node)
        inferred = onnx.shape_inference.infer_shapes(model).graph
        self.types = {v.name: v.type.tensor_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
        self.inputs, self.outputs = ({v.name: v for v in values} for values in (self.graph.input, self.graph.output))
        self.constants = {t.name: t for t in self.graph.initializer if t.name not in self.inputs}
        self.read = used(self.graph)
        self.inside = {name for node in self.graph.node for g in graphs(node) for name in used(g)}

    def made_by(self, name: str, *operators: str) -> onnx.NodeProto | None:
        """The node behind a value, if it is one of these."""
        node = self.maker.get(name)
        return node if node is not None and _operator(node) in operators else None

    def users(self, name: str) -> list[onnx.NodeProto]:
        return self.uses.get(name, [])

    def array(self, name: str) -> list[Any] | None:
        """The numbers of a constant as a list, or None."""
        node = self.made_by(name, "Constant")
        tensor = self.constants.get(name) if node is None else _attributes(node).get("value")
        return None if tensor is None else list(numpy_helper.to_array(tensor).reshape(-1).tolist())

    def number(self, name: str) -> float | None:
        """A constant that is one number, or None."""
        values = self.array(name)
        return values[0] if values and values == values[:1] * len(values) else None

    def last(self, name: str) -> int | None:
        """The size of the last dimension, or None."""
        type_ = self.types.get(name)
        dims = type_.shape.dim if type_ is not None and type_.HasField("shape") else ()
        return dims[-1].dim_value or None if dims else None

    def feature(self, name: str) -> tuple[str, str] | None:
        """(mechanism, x) where a value is a feature map of x."""
        node = self.made_by(name, "Relu", "Add")
        if node is None:
            return None
        if node.op_type == "Relu":
            return "relu", node.input[0]
        for elu, one in (node.input, reversed(node.input)):
            inner = self.made_by(elu, "Elu")
            if inner is not None and self.number(one) == 1 and _attributes(inner).get("alpha", 1.0) == 1:
                return "linear", inner.input[0]
        return None

    def in_heads(self, node: onnx.NodeProto, heads: int) -> bool:
        """Does this Reshape put rows into heads?"""
        shape = self.array(node.input[1]) if _operator(node) == "Reshape" else None
        return shape is not None and len(shape) == 4 and shape[2] == heads

    def values(self, name: str, heads: int) -> str | None:
        """The values before a one was put behind each, rows of all heads beside each other; None: something else."""
        outer = self.made_by(name, "Reshape")
        joined = self.made_by(outer.input[0], "Concat") if outer is not None else None
        if joined is None or len(joined.input) != 2 or _attributes(joined)["axis"] not in (3, -1):
            return None
        ones = self.made_by(joined.input[1], "ConstantOfShape")
        value = _attributes(ones).get("value") if ones is not None else None
        one = self.number(joined.input[1]) if value is None else float(numpy_helper.to_array(value)[0])
        inner = self.made_by(joined.input[0], "Reshape")
        return inner.input[0] if one == 1 and inner is not None and self.in_heads(inner, heads) else None

    def columns(self, node: onnx.NodeProto, width: int) -> tuple[str | None, str | None]:
        """Of a node that cuts the last dimension: the value with all columns but the last, that with the last alone."""
        options = _attributes(node)
        if _operator(node) == "Split":
            sizes = self.array(node.input[1]) if len(node.input) > 1 else None
            return node.output if options.get("axis", 0) in (3, -1) and sizes == [width, 1] else (None, None)
        begin, end, axis, step = (self.array(name) for name in [*node.input[1:], "", ""][:4]) if _operator(node) == "Slice" else [None] * 4
        if axis not in ([3], [-1]) or step not in (None, [1]):
            return None, None
        first = begin == [0] and end in ([-1], [width])
        last = begin in ([-1], [width]) and end is not None and end[0] > width
        return node.output[0] if first else None, node.output[0] if last else None

    def division(self, name: str, heads: int, width: int) -> tuple[onnx.NodeProto, str, float] | None:
        """(node, guard, eps) of the division of what LinearAttention gives by its last column."""
        cuts = [self.columns(node, width) for reshaped in self.users(name) if self.in_heads(reshaped, heads)
                for node in self.users(reshaped.output[0])]
        values, sums = {first for first, _ in cuts if first}, {last for _, last in cuts if last}
        divisions = [node for value in values for node in self.users(value) if _operator(node) == "Div" and node.input[0] in values]
        if len(divisions) != 1:
            return None
        below = divisions[0].input[1]
        if below in sums:
            return divisions[0], "none", 0.0
        guarded = self.made_by(below, "Add", "Max")
        if guarded is None or len(guarded.input) != 2:
            return None
        eps = [self.number(x) for x in guarded.input if x not in sums]
        return (divisions[0], "add" if guarded.op_type == "Add" else "clamp", eps[0]) if len(eps) == 1 and eps[0] is not None else None

    def match(self, node: onnx.NodeProto) -> _Match:
        """The block that a node is; throws _Other."""
        options, inputs = _attributes(node), [*node.input, "", "", ""]
        rule = options.get("update_rule", b"gated_delta").decode(errors="replace")
        if rule not in ("linear", "gated"):
            raise _Other(f'update_rule is "{rule}": mechanisms have "linear" (relu and linear) and "gated" (ssru)')
        if inputs[5] or (inputs[4] and rule == "linear"):
            raise _Other(f'update_rule is "{rule}", and it has a {"beta" if inputs[5] else "decay"}')
        for name in inputs[:3]:
            kind = self.types[name].elem_type if name in self.types else TensorProto.FLOAT
            if kind != TensorProto.FLOAT:
                raise _Other(f"it is of {TensorProto.DataType.Name(kind)}: attnkit.Block computes in FLOAT")
        past, present = self.states(inputs[3], [*node.output, ""][1])
        mechanism, given, attributes, last, heads = (self.average if rule == "linear" else self.recurrence)(node, options, inputs)
        if past or present:
            attributes["capacity"] = self.capacity
            if self.needed_beside(node.output[0], last):
                raise _Other("it has a state, and the graph uses its output for something else too, which a block does not give")
        return _Match(mechanism, given, attributes, last, past, present, node.name or node.output[0], heads)

    def states(self, past: str, present: str) -> tuple[str, str]:
        """The names of the states that a node has; they must come from outside and go there, since a block's are bytes."""
        present = present if present in self.read else ""
        if (past or present) and not self.capacity:
            raise _Other("it has a past_state or a present_state: say by capacity how many rows a sequence has at most")
        if past and (past not in self.inputs or past in self.outputs or past in self.inside or len(self.users(past)) > 1):
            raise _Other(f'past_state "{past}" is no input of the graph that this node alone reads')
        if present and (present not in self.outputs or present in self.inside or self.users(present)):
            raise _Other(f'present_state "{present}" is not an output of the graph alone')
        return past, present

    def needed_beside(self, name: str, last: onnx.NodeProto) -> bool:
        """Does the graph need a value for more than this node?"""
        return name in self.outputs or name in self.inside or any(self.needed_beside(made, last) for node in self.users(name) if node is not last
                                                                  for made in node.output)

    def average(self, node: onnx.NodeProto, options: dict[str, Any],
                inputs: list[str]) -> tuple[str, dict[str, str], dict[str, Any], onnx.NodeProto, int]:
        heads, kv_heads = options["q_num_heads"], options["kv_num_heads"]
        q, k, v = self.feature(inputs[0]), self.feature(inputs[1]), self.values(inputs[2], kv_heads)
        if q is None or k is None or q[0] != k[0]:
            raise _Other('update_rule is "linear", and its query and key are not both Relu (relu), or both Elu and 1 more (linear)')
        key, value = self.last(q[1]), v and self.last(v)
        divided = None if key is None or value is None else self.division(node.output[0], heads, value // kv_heads)
        if divided is None or key is None or value is None or v is None:
            raise _Other('update_rule is "linear", and it has not a one behind each value and a division by what became of the ones')
        division, guard, eps = divided
        # The weights, and so their sum, are times the scale.
        scale = options.get("scale") or math.sqrt(heads / key)
        if guard != "none":
            if scale < 0 or not 0 <= eps / scale <= 1e6:
                raise _Other(f"its guard of {eps:g} over its scale of {scale:g} is {eps / scale:g}: mechanisms take 0 to 1e6, and a scale above 0")
            eps /= scale
        attributes = {"heads": heads, "kv_heads": kv_heads, "key_width": key // heads, "head_width": value // kv_heads,
                      "options": options_text({"guard": guard, "eps": eps})}
        return q[0], {"q": q[1], "k": k[1], "v": v}, attributes, division, heads

    def recurrence(self, node: onnx.NodeProto, options: dict[str, Any],
                   inputs: list[str]) -> tuple[str, dict[str, str], dict[str, Any], onnx.NodeProto, int]:
        """ssru: of each channel f c + (1 - f) x W, f = sigmoid(x W_f + b_f), and its Relu."""
        other = _Other('update_rule is "gated", and it is not ssru: heads of width 1, a query of ones, Sigmoid(-z) as the key and '
                       "-Softplus(-z) as the decay, z = x W_f + b_f, x W as the value, and a Relu behind it")
        channels, after = options["q_num_heads"], [user for user in self.users(node.output[0]) if _operator(user) == "Relu"]
        ones = self.made_by(inputs[0], "ConstantOfShape")
        fill = ones is not None and _attributes(ones).get("value")
        key, outer = self.made_by(inputs[1], "Sigmoid"), self.made_by(inputs[4], "Neg")
        soft = outer is not None and self.made_by(outer.input[0], "Softplus")
        if not fill or numpy_helper.to_array(fill).tolist() != [1] or key is None or not soft or key.input[0] != soft.input[0]:
            raise other
        rest, written = self.made_by(key.input[0], "Neg"), self.made_by(inputs[2], "MatMul")
        gate = rest is not None and self.made_by(rest.input[0], "Add")
        if not gate or written is None or len(after) != 1:
            raise other
        product, bias = (gate.input if self.made_by(gate.input[0], "MatMul") is not None else reversed(gate.input))
        product = self.made_by(product, "MatMul")
        square = [(channels, channels), (channels, channels), (channels,)]
        learned = [written.input[1], product.input[1], bias] if product is not None else []
        if [tuple(self.constants[name].dims) if name in self.constants else None for name in learned] != square \
                or product is None or product.input[0] != written.input[0] or options["kv_num_heads"] != channels \
                or options.get("scale", 0.0) not in (0.0, 1.0):
            raise other
        names = ("x", "value", "forget", "forget_bias")
        return "ssru", dict(zip(names, [written.input[0], *learned])), {"heads": 1, "d_model": channels}, after[0], 0

    def add_position(self, name: str) -> None:
        kinds = (TensorProto.INT32, TensorProto.INT64)
        if name in self.inputs:
            if self.inputs[name].type.tensor_type.elem_type not in kinds:
                raise Error(INVALID, f'position: the graph\'s input "{name}" is no int32 or int64')
        elif name in self.maker or name in self.constants:
            raise Error(INVALID, f'position: "{name}" is a value inside the graph; give the name of an input, or a free one')
        else:
            self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))

    def replace(self, match: _Match, position: str) -> None:
        inputs, name = dict(match.inputs), match.name
        for value, given in ((match.past, self.inputs), (match.present, self.outputs)):
            if value:
                batch = given[value].type.tensor_type.shape.dim[:1]
                batch = (batch[0].dim_value or batch[0].dim_param or "batch") if batch else "batch"
                given[value].CopyFrom(helper.make_tensor_value_info(value, TensorProto.UINT8, [batch, f"{value}.bytes"]))
        if match.past:
            inputs.update(k_pos=position, state=match.past)
        o = f"{name}_block" if match.heads else match.last.output[0]
        made = [block(match.mechanism, inputs, [o, *([match.present] if match.present else [])], name=f"{name}_block", role="decoder.self",
                      **match.attributes)]
        if match.heads:
            shape = numpy_helper.from_array(np.array([0, 0, match.heads, -1], np.int64), f"{name}_heads")
            self.graph.initializer.append(shape)
            made.append(helper.make_node("Reshape", [o, shape.name], list(match.last.output), name=f"{name}_heads"))
        place = list(self.graph.node).index(match.last)
        self.graph.node.remove(match.last)
        for new in reversed(made):
            self.graph.node.insert(place, new)
        if match.present:  # two nodes would make it
            old = next(n for n in self.graph.node if _operator(n) == "LinearAttention" and match.present in n.output)
            self.graph.node.remove(old)


def _operator(node: onnx.NodeProto) -> str:
    """The standard operator that a node is, or ""."""
    return node.op_type if node.domain in ("", "ai.onnx") else ""


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
