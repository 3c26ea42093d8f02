"""A model of a manifest as a graph of ONNX: attnkit_model_forward, every mechanism a node attnkit.Block."""

from __future__ import annotations

import json
import math
import os
import pathlib
import struct
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Union

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from .._abi import (ATTN_AUX_IN, ATTN_AUX_OUT, ATTN_KEY, ATTN_KNOWS_K_TOTAL, ATTN_KNOWS_Q_TOTAL, ATTN_LEARNED, ATTN_OUTPUT, ATTN_PER_MODEL,
                    ATTN_QUERY, ATTN_RAW, ATTN_STREAM, ATTN_TABLE, ATTNKIT_ENCODER_DECODER)
from .._means import means_of
from ..block import Block, Port, options_text
from ..error import UNSUPPORTED, Error
from ..model import Model, tied
from ..runtime import Runtime
from ._graph import Graph, block
from ._linear import OPSET, as_gated_recurrence, as_linear_attention, is_linear_attention, state_width

if TYPE_CHECKING:
    from .._types import Path

_Known = tuple[Union[str, None], Union[str, None], Union[str, None]]
_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32}


def export(manifest: Path, file: Path, standard: bool = False, runtime: Runtime | None = None, large: int = 1 << 30) -> int:
    """Writes the model of a manifest to `file`.  standard: causal blocks become LinearAttention of opset 27 where they are one; it
    returns how many.  large: more bytes of weights go into a file beside it, `file`.data: a message of protobuf ends at 2 GiB.

    Inputs, as the model has sides: source (B, S) and target (B, T), ids in int64 or, of speech, frames (B, T, features) in float32;
    source_len and target_len (B), int64.  Output: logits, or what the model's head gives.
    """
    runtime = runtime or Runtime()
    with Model(runtime, manifest) as model:
        return _save(Exported(runtime, model, standard).whole(), pathlib.Path(file), large)


def export_steps(manifest: Path, folder: Path, standard: bool = False, runtime: Runtime | None = None, large: int = 1 << 30) -> int:
    """Writes a model with a decoder as graphs that decode with states: decoder.onnx and, of one that reads a source, encoder.onnx.

    encoder.onnx: source, source_len as in export; memory (B, S, d_model), memory_len and, where mechanisms need it and [length]
    predicts it, target_total.  decoder.onnx: target (B, N), the scalar target_pos, which counts the tokens before these, and what the
    encoder gave, memory with no rows from the second step on; logits, and for each block BLOCK.state as BLOCK.next.  standard: as in
    export; states of LinearAttention are float32 (B, heads, width, values), of zeros at first.
    """
    runtime, folder = runtime or Runtime(), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with Model(runtime, manifest) as model:
        graphs = {"decoder.onnx": Exported(runtime, model, standard).step()}
        if model.info.kind == ATTNKIT_ENCODER_DECODER:
            graphs["encoder.onnx"] = Exported(runtime, model, standard).encoder()
    return sum(_save(made, folder / name, large) for name, made in graphs.items())


def _save(made: onnx.ModelProto, file: pathlib.Path, large: int) -> int:
    """Each file whole or as before.  Returns the number of nodes LinearAttention."""
    size = sum(t.ByteSize() for t in made.graph.initializer)
    with tempfile.TemporaryDirectory(prefix=f"{file.name}.", suffix=".part", dir=file.parent) as folder:
        part = pathlib.Path(folder, file.name)
        beside = part.with_name(f"{file.name}.data")
        onnx.save_model(made, os.fspath(part), save_as_external_data=size > large, location=beside.name)
        apart = beside.exists()  # not where all tensors are too small for it
        if apart:
            beside.replace(file.with_name(beside.name))
        part.replace(file)
    if not apart:
        file.with_name(beside.name).unlink(missing_ok=True)
    return sum(node.op_type == "LinearAttention" for node in made.graph.node)


def tensors_of(data: bytes) -> dict[str, NDArray[Any]]:
    size, = struct.unpack_from("<Q", data)
    made = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            x = np.frombuffer(data, _TYPES[entry["dtype"]], offset=8 + size + begin, count=(end - begin) // np.dtype(_TYPES[entry["dtype"]]).itemsize)
            if entry["dtype"] == "BF16":  # the upper half of a float32; numpy has no such type
                x = (x.astype(np.uint32) << 16).view(np.float32)
            made[name] = x.reshape(entry["shape"])
    return made


class Exported:
    def __init__(self, runtime: Runtime, model: Model, standard: bool = False) -> None:
        self.described, self.info, self.tensors = model.describe(), model.info, tensors_of(model.weights())
        self.runtime, self.standard, self.graph = runtime, standard, Graph()
        self.position: str | None = None  # of the first row of a step, (1)

    def whole(self) -> onnx.ModelProto:
        d, graph = self.described, self.graph
        if d["encoder_layers"]:
            source, lengths = self.source()
            memory, aux = self.stack("encoder", source, lengths, lengths, {})
        else:
            source, memory, lengths, aux = None, None, None, {}
        rows = memory
        if d["decoder_layers"]:
            target = graph.input("target", TensorProto.INT64, ["batch", "target"])
            target_len = graph.input("target_len", TensorProto.INT64, ["batch"])
            target = self.ids(target, target_len)
            total = self.total(source, memory, lengths, target_len)
            rows, aux = self.stack("decoder", target, target_len, total, aux, memory, (lengths, None, lengths))
            lengths = target_len
        assert rows is not None  # a model has a side
        graph("Identity", self.head(rows, lengths, aux), outputs=["logits"])
        side = "target" if d["decoder_layers"] else "source"
        graph.output("logits", ["batch", side, self.info.outputs] if d["head"]["type"] == "lm" else ["batch", self.info.outputs])
        return self.model("whole")

    def model(self, what: str) -> onnx.ModelProto:
        name = self.described["name"] or "attnkit"
        return self.graph.model(name, OPSET if self.standard else 20, doc_string=f"{what} of {name}, made of an attnkit manifest")

    def encoder(self) -> onnx.ModelProto:
        graph = self.graph
        source, lengths = self.source()
        memory, aux = self.stack("encoder", source, lengths, lengths, {})
        graph("Identity", memory, outputs=["memory"])
        graph("Identity", lengths, outputs=["memory_len"])
        graph.output("memory", ["batch", "keys", self.described["d_model"]])
        graph.output("memory_len", ["batch"], TensorProto.INT64)
        if self.needs_total() and self.described["length"]["predict"] != "reference":
            graph("Identity", self.total(source, memory, lengths, lengths), outputs=["target_total"])
            graph.output("target_total", ["batch"], TensorProto.DOUBLE)
        return self.model("encoder")

    def needs_total(self) -> bool:
        return any(b["knows_q_total"] and b["role"].startswith("decoder") for b in self.described["blocks"])

    def step(self) -> onnx.ModelProto:
        d, graph = self.described, self.graph
        if not d["decoder_layers"]:
            raise Error(UNSUPPORTED, "a model without a decoder writes nothing step by step")
        target = self.from_zero(graph.input("target", TensorProto.INT64, ["batch", "rows"]))
        self.position = self.from_zero(graph("Reshape", graph.input("target_pos", TensorProto.INT64, []), np.array([1])))
        # Zeros for each place that a target has: beyond them Gather fails, where a Slice of positions would end.
        places = graph("Add", self.position, graph("Range", np.int64(0), graph("Squeeze", graph.rows(target)), np.int64(1)))
        zeros = graph("Gather", graph("ConstantOfShape", np.array([d["max_target"]])), places, outputs=["target_within_max_length"])
        target = graph("Add", target, graph("Cast", zeros, to=TensorProto.INT64))
        memory = None
        known: _Known = (None, None, None)
        if d["encoder_layers"]:
            memory = graph.input("memory", TensorProto.FLOAT, ["batch", "keys", d["d_model"]])
            length = graph.input("memory_len", TensorProto.INT64, ["batch"])
            # Keys are appended where they are given; later they are in the state.
            fresh = graph("Min", length, graph.rows(memory))
            known = fresh, graph("Sub", length, fresh), length
        total = graph.input("target_total", TensorProto.DOUBLE, ["batch"]) if self.needs_total() else None
        rows, aux = self.stack("decoder", target, None, total, {}, memory, known)
        graph("Identity", self.head(rows, None, aux), outputs=["logits"])
        graph.output("logits", ["batch", "rows", self.info.outputs])
        return self.model("decoder")

    def source(self) -> tuple[str, str]:
        graph, speech = self.graph, self.described["speech"]
        if not self.described["source_ends"]:
            raise Error(UNSUPPORTED, "sources that end with no token (end = false of [model.encoder]) cannot be exported: the graph would read the one behind them")
        if not speech:
            ids, lengths = graph.input("source", TensorProto.INT64, ["batch", "source"]), graph.input("source_len", TensorProto.INT64, ["batch"])
            return self.ids(ids, lengths), lengths
        x = graph.input("source", TensorProto.FLOAT, ["batch", "source", self.info.features])
        lengths = graph.input("source_len", TensorProto.INT64, ["batch"])
        return self.frontend(x, lengths)

    def ids(self, x: str, lengths: str) -> str:
        """Ids for Gather; those past the lengths, which attnkit does not read, are 0."""
        graph = self.graph
        return self.from_zero(graph.only(x, graph("Squeeze", graph.real(x, lengths), np.array([2])), np.int64(0)))

    def from_zero(self, places: str) -> str:
        """Those below 0, which Gather counts from the end of a table, lie beyond every table."""
        graph = self.graph
        return graph("Where", graph("Less", places, np.int64(0)), np.int64(2**31 - 1), places)

    def frontend(self, x: str, lengths: str) -> tuple[str, str]:
        """Convolutions over frames, as many rows as they make of each length."""
        graph, table = self.graph, self.described["speech"]["frontend"]
        layers, kernel, stride = (table[key] for key in ("layers", "kernel", "stride"))
        centred = table["type"] == "centred"
        if not centred:
            at = {name: self.tensors[f"encoder.features.{name}"] for name in ("mean", "scale")}
            x = graph("Mul", graph("Sub", x, at["mean"]), at["scale"])
        x = graph("Transpose", x, perm=[0, 2, 1])
        shrunk = 1
        for i in range(1, layers + 1):
            step = stride if not centred or i == layers else 1
            pads = [kernel // 2, kernel // 2] if centred else [kernel - stride, 0]
            name = f"encoder.frontend.conv.{i}"
            x = self.activation(graph("Conv", x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], strides=[step], pads=pads))
            shrunk *= step
        x = graph("Transpose", x, perm=[0, 2, 1])
        x = x if centred else self.dense(x, "encoder.frontend.out")
        return x, graph("Div", graph("Add", lengths, np.int64(shrunk - 1)) if centred else lengths, np.int64(shrunk))

    def total(self, source: str | None, memory: str | None, lengths: str | None, target_len: str) -> str:
        """The length of the target as mechanisms are told it, (B): as [length] predicts it."""
        graph, length, most = self.graph, self.described["length"], np.float64(self.described["max_length"])
        kind = length and length["predict"]
        if not kind or kind == "reference":
            return target_len
        if kind == "fixed":
            return graph("Add", graph("Mul", graph("Cast", target_len, to=TensorProto.DOUBLE), np.float64(0)), np.float64(length["length"]))
        if kind == "ratio":
            known = graph("Mul", graph("Cast", lengths, to=TensorProto.DOUBLE), np.float64(length["alpha"]))
            return graph("Where", graph("Greater", lengths, np.int64(0)), known, np.float64(1))
        assert memory is not None and lengths is not None  # the manifest was checked
        real = graph.real(memory, lengths)
        if kind == "lut":
            table = np.array(means_of(length, self.described["source_vocabulary"], self.info.source_vocab))
            each = graph.only(graph("Unsqueeze", graph("Gather", table, source), np.array([2])), real, np.float64(0))
            each = graph("Div", each, np.float64(length["dampening"]))
        else:
            at = {name: t.astype(np.float32) for name, t in tensors_of(pathlib.Path(length["file"]).read_bytes()).items()}
            x = graph.only(memory, real)
            for name in ("length.conv.1", "length.conv.2"):
                x = graph("Conv", graph("Transpose", x, perm=[0, 2, 1]), at[f"{name}.weight"], at[f"{name}.bias"], pads=[1, 1])
                x = graph("LayerNormalization", graph("Transpose", graph("Relu", x), perm=[0, 2, 1]), at[f"{name}.norm.weight"],
                          at[f"{name}.norm.bias"])
                x = graph.only(x, real)
            logs = graph("Cast", graph.linear(x, at["length.out.weight"], at["length.out.bias"]), to=TensorProto.DOUBLE)
            each = graph("Round", graph("Sub", graph("Exp", logs), np.float64(1)))
            each = graph.only(graph("Clip", each, np.float64(0), most), real, np.float64(0))
        return graph("Clip", graph("ReduceSum", each, np.array([1, 2]), keepdims=0), np.float64(1), most)

    def stack(self, name: str, x: str, lengths: str | None, total: str | None, aux: dict[str, str], memory: str | None = None,
              known: _Known = (None, None, None)) -> tuple[str, dict[str, str]]:
        """The output of the last layer, and the sequences that mechanisms carried.  known: of the memory's rows how many are real and how
        many were before them, and its length."""
        graph, d = self.graph, self.described
        y = self.embed(name, x)
        x = y if lengths is None else graph.only(y, graph.real(x, lengths))
        pre = d["norm"] == "pre"

        def residual(layer: str, around: str, run: Callable[[str], str]) -> str:
            return graph("Add", around, run(self.norm(around, f"{layer}.norm"))) if pre else self.norm(graph("Add", around, run(around)),
                                                                                                       f"{layer}.norm")

        blocks = {b["block"]: b for b in d["blocks"]}
        for layer in range(1, d[f"{name}_layers"] + 1):
            own = f"{name}.self.{layer}"
            x = residual(own, x, lambda y: self.attention(blocks[own], y, y, {"q_len": lengths}, (total, total), aux))
            cross = f"{name}.cross.{layer}"
            if memory is not None:
                rows = {"q_len": lengths, "k_len": known[0], "k_pos": known[1]}
                x = residual(cross, x, lambda y: self.attention(blocks[cross], y, memory, rows, (total, known[2]), aux))
            x = residual(f"{name}.ffn.{layer}", x, lambda y: self.feed_forward(y, f"{name}.ffn.{layer}"))
        return self.norm(x, f"{name}.norm") if d["final_norm"] else x, dict(aux)

    def embed(self, name: str, x: str) -> str:
        """scale * table[id] + position."""
        graph, d = self.graph, self.described
        first = d["position_offset"]
        shared = name == "encoder" and {"source", "target"} <= tied(d)
        table = f"{'decoder' if shared else name}.embed.weight"
        if table in self.tensors:
            x = graph("Gather", self.weight(table), x)
            if d["embed_scale"]:
                x = graph("Mul", x, np.float32(math.sqrt(d["d_model"])))
            if name == "decoder" and d["zero_begin"]:
                places = graph("Range", np.int64(0), graph("Squeeze", graph.rows(x)), np.int64(1))
                places = graph("Add", places, self.position) if self.position else places
                x = graph("Where", graph("Unsqueeze", graph("Equal", places, np.int64(0)), np.array([1])), np.float32(0), x)
        positions = None
        if d["positions"] == "learned":
            positions = self.weight(f"{name}.positions.weight")
        elif d["positions"] == "sinusoidal":
            most = d["max_target" if name == "decoder" else "max_length"]
            positions = graph.constant(f"{name}.sinusoids", sinusoids(most, d["d_model"], d["sinusoids"], first))
            first = 0
        if positions is not None:
            x = graph("Add", x, self.from_position(positions, x, first))
        if name == "encoder" and f"{name}.token_types.weight" in self.tensors:
            x = graph("Add", x, self.tensors[f"{name}.token_types.weight"][0])
        return self.norm(x, f"{name}.embed.norm") if d["embed_norm"] else x

    def from_position(self, table: str, x: str, first: int = 0) -> str:
        """The rows of a table of positions, the first one being `first`, that belong to those of x."""
        graph = self.graph
        begin = graph("Add", self.position, np.array([first])) if self.position else graph.value(np.array([first]))
        return graph.cut(table, 0, begin, graph("Add", graph.rows(x), begin))

    def weight(self, name: str) -> str:
        return self.graph.constant(name, self.tensors[name])

    def dense(self, x: str, name: str) -> str:
        return self.graph.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        graph, d = self.graph, self.described
        if d["norm_type"] == "layer":
            return graph("LayerNormalization", x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), axis=-1, epsilon=d["norm_eps"])
        return graph("Mul", self.scaled(x, d["norm_eps"]), self.weight(f"{name}.weight"))

    def scaled(self, x: str, eps: float) -> str:
        """x over the root of its mean square."""
        graph = self.graph
        mean = graph("ReduceMean", graph("Mul", x, x), np.array([-1]))
        return graph("Div", x, graph("Sqrt", graph("Add", mean, np.float32(eps))))

    def activation(self, x: str) -> str:
        graph, name = self.graph, self.described["activation"]
        if name == "relu":
            return graph("Relu", x)
        if name in ("gelu", "gelu_tanh"):
            return graph("Gelu", x, approximate="tanh" if name == "gelu_tanh" else "none")
        gate = x if name == "silu" else graph("Mul", x, np.float32(1.702))
        return graph("Mul", x, graph("Sigmoid", gate))

    def feed_forward(self, x: str, name: str) -> str:
        y = self.dense(x, f"{name}.in")
        gated = self.graph("Mul", self.activation(self.dense(x, f"{name}.gate")), y) if self.described["gated"] else self.activation(y)
        return self.dense(gated, f"{name}.out")

    def attention(self, described: dict[str, Any], x: str, context: str, rows: dict[str, str | None],
                  totals: tuple[str | None, str | None], aux: dict[str, str]) -> str:
        """rows: what is known of those of queries and keys, by names of inputs; None: nothing."""
        graph, d = self.graph, self.described
        mechanism, name, role = described["mechanism"], described["block"], described["role"]
        at = Block(self.runtime, mechanism, role, d["d_model"], d["heads"], described["causal"], d["head_width"],
                   options_text(described["options"]), d["kv_heads"], d["head_width"])
        inputs: dict[str, str] = {}
        outputs: list[str] = []
        output = next(port for port in at.ports if port.kind == ATTN_OUTPUT)
        for port in at.ports:
            if port.kind in (ATTN_QUERY, ATTN_KEY):
                inputs[port.name] = self.projected(described, port, x if port.kind == ATTN_QUERY else context)
            elif port.kind == ATTN_AUX_IN:
                if port.name in aux:
                    inputs[port.name] = aux[port.name]
            elif port.kind in (ATTN_LEARNED, ATTN_TABLE):
                inputs[port.name] = self.weight(f"{'model' if port.flags & ATTN_PER_MODEL else name}.{mechanism}.{port.name}")
            elif port.kind == ATTN_AUX_OUT:
                outputs.append(port.name)
        heads = [port.shape[1] for port in at.ports if port.kind in (ATTN_QUERY, ATTN_KEY)]
        if self.standard and described["causal"] and is_linear_attention(mechanism, described["options"], heads[0], heads[-1]):
            return self.projected_out(described, output, self.linear_attention(described, at, inputs, totals[0]))
        inputs.update((key, value) for key, value in rows.items() if value is not None)
        for known, total, key in ((described["knows_q_total"], totals[0], "q_total"), (described["knows_k_total"], totals[1], "k_total")):
            if known and total is not None:
                inputs[key] = total
        made, state, capacity = [f"{name}.{key}" for key in ("o", *outputs)], "", 0
        if self.position:
            capacity = d["max_length" if role == "decoder.cross" else "max_target"]
            self.check_step(at, described, capacity)
            inputs["q_pos"], state = "target_pos", f"{name}.next"
            inputs["state"] = graph.input(f"{name}.state", TensorProto.UINT8, ["batch", f"{name}.bytes"])
            graph.output(state, ["batch", f"{name}.more"], TensorProto.UINT8)
        graph.add(block(mechanism, inputs, [made[0], *([state] if state or outputs else []), *made[1:]], name=name, role=role,
                        heads=d["heads"], d_model=d["d_model"], kv_heads=d["kv_heads"], key_width=d["head_width"],
                        head_width=d["head_width"], causal=int(described["causal"]), options=options_text(described["options"]),
                        capacity=capacity))
        graph.knows(made[0], [None, None, output.shape[1] * output.shape[3]])
        aux.update(zip(outputs, made[1:]))
        return self.projected_out(described, output, made[0])

    def linear_attention(self, described: dict[str, Any], at: Block, inputs: dict[str, str], total: str | None) -> str:
        """A causal block in standard operators; of steps with its state, float32."""
        graph, d, name, mechanism, options = self.graph, self.described, described["block"], described["mechanism"], described["options"]
        past, present = None, None
        gated = mechanism == "ssru"
        kv_heads = d["d_model"] if gated else next(p for p in at.ports if p.name == "k").shape[1]
        if self.position:
            shape = ["batch", kv_heads, *((1, 1) if gated else (state_width(mechanism, options, d["head_width"]), d["head_width"] + 1))]
            past, present = graph.input(f"{name}.state", TensorProto.FLOAT, shape), f"{name}.next"
            graph.output(present, shape)
        if gated:
            return as_gated_recurrence(graph, kv_heads, inputs["x"], inputs["value"], inputs["forget"], inputs["forget_bias"], past, present)
        more: dict[str, Any] = {port.name: self.tensors[inputs[port.name]] for port in at.ports if port.kind in (ATTN_LEARNED, ATTN_TABLE)}
        if mechanism == "cosformer":
            more["fraction"] = self.fraction(inputs["q"], total, options["beyond"] == "saturate")
        if mechanism == "rope_linear":
            turned = options["rotated"] or d["head_width"] // 2
            speeds = options["base"] ** (-2.0 * np.arange(turned // 2) / turned)
            more["turn"] = lambda y: self.turned(y, f"{name}.", speeds, 1.0, turned, False)
        return as_linear_attention(graph, mechanism, options, inputs["q"], inputs["k"], inputs["v"], d["heads"], kv_heads, d["head_width"],
                                   past, present, more)

    def fraction(self, x: str, total: str | None, saturates: bool) -> str:
        """The place of each row of x, from 1, over the length of the whole, (B, N, 1, 1)."""
        graph = self.graph
        assert total is not None  # the mechanism asked for it
        places = graph("Range", np.int64(1), graph("Add", graph("Squeeze", graph.rows(x)), np.int64(1)), np.int64(1))
        places = graph("Add", places, self.position) if self.position else places
        made = graph("Div", *(graph("Cast", y, to=TensorProto.DOUBLE) for y in (places, graph("Unsqueeze", total, np.array([1])))))
        made = graph("Min", made, np.float64(1)) if saturates else made
        return graph("Unsqueeze", graph("Cast", made, to=TensorProto.FLOAT), np.array([2, 3]))

    def check_step(self, at: Block, described: dict[str, Any], capacity: int) -> None:
        """Can this block take one token after another?"""
        if any(port.kind in (ATTN_AUX_IN, ATTN_AUX_OUT) for port in at.ports):
            raise Error(UNSUPPORTED, f"{described['block']}: {at.mechanism} carries sequences from block to block, which a graph of steps does "
                                     "not have")
        flags = ATTN_STREAM | ATTN_KNOWS_Q_TOTAL * described["knows_q_total"] | ATTN_KNOWS_K_TOTAL * described["knows_k_total"]
        try:
            at.plan(at.request(1, 1, 1, past=capacity - 1, flags=flags))
        except Error as e:
            raise Error(e.code, f"{described['block']}: {e.message}") from None

    def shared(self, port: Port) -> bool:
        """Does a port use the block's own q, k, v or o?"""
        d = self.described
        if port.flags & ATTN_RAW or port.shape[3] != d["head_width"]:
            return False
        key = port.kind == ATTN_KEY and port.name in ("k", "v")
        if port.shape[1] != d["heads"] and not (key and port.shape[1] == d["kv_heads"]):
            return False
        return port.kind == ATTN_OUTPUT or port.name in ("q", "k", "v")

    def adapter(self, described: dict[str, Any], what: str) -> Any:
        return self.tensors.get(f"{described['block']}.{described['mechanism']}.adapter.{what}", np.float32(what[-5:] != "shift"))

    def projected(self, described: dict[str, Any], port: Port, x: str) -> str:
        """The input of a QUERY or KEY port, all heads of a row beside each other."""
        graph, d = self.graph, self.described
        if port.flags & ATTN_RAW:
            return x
        shared = self.shared(port)
        name = described["block"] + ("" if shared else f".{described['mechanism']}") + f".{port.name}"
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        heads = d["kv_heads"] if port.kind == ATTN_KEY and shared else port.shape[1]
        if shared and port.name != "v" and d["adapters"]:
            scale, shift = (self.adapter(described, f"{port.name}_{part}") for part in ("scale", "shift"))
            weight, bias = weight * np.reshape(scale, (-1, 1)), np.broadcast_to(shift if bias is None else bias * scale + shift, len(weight))
        y = graph.linear(x, weight, bias)
        alone = described["role"] != "decoder.cross"
        turned = shared and port.name != "v" and alone and (d["qk_norm"] or d["rotary"])
        if turned or heads != port.shape[1]:
            y = graph.heads(y, heads, port.shape[3])
            if turned and d["qk_norm"]:
                y = graph("Mul", self.scaled(y, d["norm_eps"]), self.weight(f"{name}.norm.weight"))
            if turned and d["rotary"]:
                y = self.rotate(y)
            if heads != port.shape[1]:
                y = graph("Gather", y, np.repeat(np.arange(heads), port.shape[1] // heads), axis=2)
            y = graph.beside(y, port.shape[1] * port.shape[3])
        if shared and port.kind == ATTN_QUERY and d["attention_scale"] is not None:
            y = graph("Mul", y, np.float32(d["attention_scale"] * math.sqrt(port.shape[3])))
        return y

    def rotate(self, y: str) -> str:
        """(B, N, heads, width), pairs of channels turned by positions."""
        d, longest = self.described["rotary"], max(self.described["max_length"], self.described["max_target"])
        if d["scaling"] == "longrope" and d["original_length"] < longest:
            raise Error(UNSUPPORTED, f"rotary positions of scaling longrope have other factors for texts of more than {d['original_length']} tokens, "
                                     f"which a graph has not: export a manifest with max_length = {d['original_length']}, not {longest}, and "
                                     f"attention_factor = {d['attention_factor']} in rotary")
        return self.turned(y, "rotary.", rotary_speeds(d), d["attention_factor"], d["width"] // 2 * 2, d["layout"] == "halves")

    def turned(self, y: str, prefix: str, speeds: NDArray[Any], factor: float, turned: int, halves: bool) -> str:
        """(B, N, heads, width), the first `turned` channels in pairs, by positions times speeds."""
        graph, width = self.graph, self.described["head_width"]
        angles = np.arange(max(self.described["max_length"], self.described["max_target"]))[:, None] * speeds
        cosine, sine = (self.rotary_table(prefix + name, factor * f(angles), y) for name, f in (("cosine", np.cos), ("sine", np.sin)))
        a, b = ((graph.cut(y, 3, 0, turned // 2), graph.cut(y, 3, turned // 2, turned)) if halves else
                (graph.cut(y, 3, 0, turned, 2), graph.cut(y, 3, 1, turned, 2)))
        a, b = graph("Sub", graph("Mul", a, cosine), graph("Mul", b, sine)), graph("Add", graph("Mul", b, cosine), graph("Mul", a, sine))
        if halves:
            made = [a, b]
        else:
            both = graph("Concat", *(graph("Unsqueeze", x, np.array([4])) for x in (a, b)), axis=4)
            made = [graph("Reshape", both, np.array([0, 0, 0, turned]))]
        return graph("Concat", *made, *([graph.cut(y, 3, turned, width)] if turned < width else []), axis=3)

    def rotary_table(self, name: str, values: NDArray[Any], y: str) -> str:
        """The rows of a table for the positions of y, (N, 1, pairs)."""
        graph = self.graph
        table = graph.constant(name, values.astype(np.float32))
        return graph("Unsqueeze", self.from_position(table, y), np.array([1]))

    def projected_out(self, described: dict[str, Any], port: Port, o: str) -> str:
        graph = self.graph
        if port.flags & ATTN_RAW:
            return o
        if self.described["head_norm"]:
            o = graph.beside(self.scaled(graph.heads(o, port.shape[1]), 1e-5))
        name = f"{described['block']}.o" if self.shared(port) else f"{described['block']}.{described['mechanism']}.{port.name}"
        weight = self.tensors[f"{name}.weight"]
        if self.described["adapters"]:
            weight = weight * self.adapter(described, "gain")
        return graph.linear(o, weight, self.tensors.get(f"{name}.bias"))

    def head(self, x: str, lengths: str | None, aux: dict[str, str]) -> str:
        graph, d = self.graph, self.described
        head = d["head"]
        if head["type"] == "lm":
            if d["head_scale"] != 1:
                x = graph("Mul", x, np.float32(d["head_scale"]))
            stack = "decoder" if "target" in tied(d) else "encoder"
            table = f"{stack}.embed.weight" if "output" in tied(d) else "head.weight"
            y = graph("MatMul", x, graph("Transpose", self.weight(table), perm=[1, 0]))
            y = graph("Add", y, self.weight("head.bias")) if d["head_bias"] else y
            return y if lengths is None else graph.only(y, graph.real(y, lengths))
        if head["of"] is not None:
            x = graph("Squeeze", aux[head["of"]], np.array([1]))
            # A carried sequence ends in rows of zeros where its mechanism left rows out.
            filled = graph("ReduceMax", graph("Cast", graph("Cast", x, to=TensorProto.BOOL), to=TensorProto.INT64), np.array([-1]), keepdims=0)
            places = graph("Range", np.int64(1), graph("Add", graph("Squeeze", graph.rows(x)), np.int64(1)), np.int64(1))
            lengths = graph("ReduceMax", graph("Mul", filled, places), np.array([-1]), keepdims=0)
        assert lengths is not None  # of whole sequences
        if head["pool"] == "first":
            lengths = graph("Min", lengths, np.int64(1))
        total = graph("ReduceSum", graph.only(x, graph.real(x, lengths)), np.array([1]), keepdims=0)
        count = graph("Unsqueeze", graph("Cast", graph("Max", lengths, np.int64(1)), to=TensorProto.FLOAT), np.array([1]))
        x = graph("Div", total, count)
        if head["type"] == "embedding":
            x = graph("Tanh", self.dense(x, "head.pooler")) if head["pooler"] else x
            return graph("Div", x, graph("Max", graph("ReduceL2", x, np.array([-1])), np.float32(1e-12))) if head["normalise"] else x
        if head["hidden"]:
            x = graph("Relu", self.dense(x, "head.hidden"))
        return self.dense(x, "head")


def sinusoids(rows: int, width: int, layout: str, first: int) -> NDArray[Any]:
    """The table of positions `first` and on: sines and cosines in turns, or all sines and then all cosines."""
    channels = np.arange(width)
    pair, cosine = (channels // 2, channels % 2 == 1) if layout == "interleaved" else (channels % (width // 2), channels >= width // 2)
    steps = max(1.0, width // 2 - 1 if layout == "tensor2tensor" else width / 2)
    angle = np.arange(first, first + rows)[:, None] / 10000 ** (pair / steps)
    return np.where(cosine, np.cos(angle), np.sin(angle)).astype(np.float32)


def rotary_speeds(d: dict[str, Any]) -> Any:
    speeds = d["base"] ** (-2.0 * np.arange(d["width"] // 2) / d["width"]) / np.array(d["slower"] or 1.0)
    if d["scaling"] in ("none", "longrope"):
        return speeds
    if d["scaling"] == "linear":
        return speeds / d["factor"]
    if d["scaling"] == "llama3":
        low, high = d["low_frequency_factor"], d["high_frequency_factor"]
        kept = np.clip((d["original_length"] * speeds / (2 * math.pi) - low) / (high - low), 0, 1)
        return speeds / d["factor"] + kept * (speeds - speeds / d["factor"])
    raise Error(UNSUPPORTED, f"rotary positions of scaling {d['scaling']} cannot be exported")
