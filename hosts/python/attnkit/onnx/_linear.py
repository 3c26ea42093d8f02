"""Mechanisms as the standard operator LinearAttention of opset 27, and back.

LinearAttention has no denominator: with a one behind each value it sums the weights as well, in the last column.
"""

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..block import options_text
from ..error import INVALID, UNSUPPORTED, Error
from ._graph import DOMAIN, block, prune, used

OPSET = 27
MECHANISMS = ("relu", "linear")


def as_linear_attention(graph, mechanism, options, q, k, v, heads, kv_heads, width, past=None, present=None):
    """Adds nodes that compute a causal block; q, k, v: rows with all heads beside each other; width: of a query in a head.

    options: all of the mechanism's, by name.  past, present: names of states, (B, kv_heads, width, value width + 1).
    """
    if mechanism not in MECHANISMS:
        raise Error(UNSUPPORTED, f"{mechanism} is no LinearAttention: {' and '.join(MECHANISMS)} are")
    if mechanism == "relu":
        q = graph("Mul", q, np.float32(1 / math.sqrt(width))) if options["scale"] == "inverse_sqrt" else q
        q, k = graph("Relu", q), graph("Relu", k)
    else:
        q, k = (graph("Add", graph("Elu", x), np.float32(1)) for x in (q, k))
    v = graph.heads(v, kv_heads)
    ones = graph("ConstantOfShape", graph("Concat", graph("Shape", v, end=3), np.array([1]), axis=0),
                 value=numpy_helper.from_array(np.ones(1, np.float32)))
    name = graph.name("LinearAttention")
    inputs = [q, k, graph.beside(graph("Concat", v, ones, axis=3)), *([past] if past else [])]
    graph.add(helper.make_node("LinearAttention", inputs, [name, present or f"{name}_state"], name=name, q_num_heads=heads,
                               kv_num_heads=kv_heads, scale=1.0, update_rule="linear"))
    o = graph.heads(name, heads)
    weighted, sums = graph.cut(o, 3, 0, -1), graph.cut(o, 3, -1, np.iinfo(np.int64).max)
    eps = np.float32(options["eps"])
    if options["guard"] != "none":
        sums = graph("Add", sums, eps) if options["guard"] == "add" else graph("Max", sums, eps)
    return graph.beside(graph("Div", weighted, sums))


def import_linear_attention(model):
    """Makes attnkit.Block of what a model of ONNX computes by LinearAttention and is a mechanism; returns how many were made.

    That is the rule "linear" without a state, of queries and keys that went through Relu, or Elu and Add of 1, with a one behind each
    value and a division by what became of the ones.  Other nodes are left as they are.
    """
    if not any(n.op_type == "LinearAttention" for n in model.graph.node):
        raise Error(INVALID, "this graph has no LinearAttention")
    found = _Matcher(model)
    made = sum(found.replace(node) for node in list(model.graph.node) if node.op_type == "LinearAttention")
    if made:
        prune(model.graph)
        if DOMAIN not in [domain.domain for domain in model.opset_import]:
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return made


class _Matcher:
    def __init__(self, model):
        self.graph = model.graph
        self.maker = {name: node for node in self.graph.node for name in node.output}
        self.uses = {}
        for node in self.graph.node:
            for name in node.input:
                self.uses.setdefault(name, []).append(node)
        inferred = onnx.shape_inference.infer_shapes(model).graph
        self.types = {v.name: v.type.tensor_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
        given = {v.name for v in self.graph.input}
        self.constants = {t.name: t for t in self.graph.initializer if t.name not in given}

    def made_by(self, name, *operators):
        """The node behind a value, if it is one of these."""
        node = self.maker.get(name)
        return node if node is not None and node.op_type in operators else None

    def users(self, name):
        return self.uses.get(name, [])

    def array(self, name):
        """The numbers of a constant as a list, or None."""
        node = self.made_by(name, "Constant")
        tensor = self.constants.get(name) if node is None else _attributes(node).get("value")
        return None if tensor is None else numpy_helper.to_array(tensor).reshape(-1).tolist()

    def number(self, name):
        """A constant that is one number, or None."""
        values = self.array(name)
        return values[0] if values and values == values[:1] * len(values) else None

    def last(self, name):
        """The size of the last dimension, or None."""
        type_ = self.types.get(name)
        dims = type_.shape.dim if type_ is not None and type_.HasField("shape") else ()
        return dims[-1].dim_value or None if dims else None

    def feature(self, name):
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

    def in_heads(self, node, heads):
        """Does this Reshape put rows into heads?"""
        shape = self.array(node.input[1])
        return node.op_type == "Reshape" and shape is not None and len(shape) == 4 and shape[2] == heads

    def values(self, name, heads):
        """What was before a one was put behind each value, rows of all heads beside each other; None: something else."""
        outer = self.made_by(name, "Reshape")
        joined = self.made_by(outer.input[0], "Concat") if outer is not None else None
        if joined is None or len(joined.input) != 2 or _attributes(joined)["axis"] not in (3, -1):
            return None
        ones = self.made_by(joined.input[1], "ConstantOfShape")
        value = _attributes(ones).get("value") if ones is not None else None
        one = self.number(joined.input[1]) if value is None else float(numpy_helper.to_array(value)[0])
        inner = self.made_by(joined.input[0], "Reshape")
        return inner.input[0] if one == 1 and inner is not None and self.in_heads(inner, heads) else None

    def columns(self, node, width):
        """Of a node that cuts the last dimension: the value with all columns but the last, that with the last alone."""
        options = _attributes(node)
        if node.op_type == "Split":
            sizes = self.array(node.input[1]) if len(node.input) > 1 else None
            return node.output if options.get("axis", 0) in (3, -1) and sizes == [width, 1] else (None, None)
        begin, end, axis, step = (self.array(name) for name in [*node.input[1:], ""][:4]) if node.op_type == "Slice" else [None] * 4
        if axis not in ([3], [-1]) or step not in (None, [1]):
            return None, None
        first = begin == [0] and end in ([-1], [width])
        last = begin in ([-1], [width]) and end is not None and end[0] > width
        return node.output[0] if first else None, node.output[0] if last else None

    def division(self, name, heads, width):
        """(node, guard, eps) of the division of what LinearAttention gives by its last column."""
        cuts = [self.columns(node, width) for reshaped in self.users(name) if self.in_heads(reshaped, heads)
                for node in self.users(reshaped.output[0])]
        values, sums = {first for first, _ in cuts if first}, {last for _, last in cuts if last}
        divisions = [node for value in values for node in self.users(value) if node.op_type == "Div" and node.input[0] in values]
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

    def replace(self, node):
        options = _attributes(node)
        inputs = [*node.input, "", "", ""]
        if options.get("update_rule", b"gated_delta") != b"linear" or any(inputs[3:6]) or node.output[1] in used(self.graph):
            return False
        heads, kv_heads = options["q_num_heads"], options["kv_num_heads"]
        q, k, v = self.feature(inputs[0]), self.feature(inputs[1]), self.values(inputs[2], kv_heads)
        if None in (q, k, v) or q[0] != k[0]:
            return False
        key, value = self.last(q[1]), self.last(v)
        divided = None if key is None or value is None else self.division(node.output[0], heads, value // kv_heads)
        if divided is None:
            return False
        division, guard, eps = divided
        # The weights, and so their sum, are times the scale.
        eps /= options.get("scale") or math.sqrt(heads / key)
        name = node.name or node.output[0]
        made = block(q[0], [q[1], k[1], v], [f"{name}_block"], name=f"{name}_block", role="decoder.self", heads=heads, kv_heads=kv_heads,
                     key_width=key // heads, head_width=value // kv_heads, options=options_text({"guard": guard, "eps": eps}))
        shape = numpy_helper.from_array(np.array([0, 0, heads, -1], np.int64), f"{name}_heads")
        self.graph.initializer.append(shape)
        place = list(self.graph.node).index(division)
        reshaped = helper.make_node("Reshape", [made.output[0], shape.name], list(division.output), name=f"{name}_heads")
        self.graph.node.remove(division)
        for new in (reshaped, made):
            self.graph.node.insert(place, new)
        return True


def _attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
