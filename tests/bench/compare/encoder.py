"""Sentence vectors by one encoder with the same weights: attnkit beside ONNX Runtime and OpenVINO, in turns in one process.

    python3 -m venv venv && venv/bin/pip install -r tests/bench/compare/requirements.txt
    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/encoder.py [--batch 1,16] [--threads 1,2] [--length 16,128,512] [--idle 0,50]

An encoder of MiniLM's shape (6 layers, d 384, 12 heads, GELU) with random weights.  ONNX Runtime gets the fused operators that its own
optimiser would put there (Attention, SkipLayerNormalization, BiasGelu), and for int8 its own quantize_dynamic.  OpenVINO reads the same
graph; its int8 is that of NNCF, of the weights alone or of inputs as well, whose ranges are those of 512 random sentences.  Before anything
is timed the f32 vectors of all must be equal to 1e-4.  Prints sentences a second: the median over the rounds with quartiles, and the ratio to ONNX
Runtime with weights of the same type, paired by round.
"""

import contextlib
import logging
import sys
import tempfile
from pathlib import Path

import numpy
from common import Lines, in_turns, open_model, options_of, seconds_of, tensors

D, HEADS, FFN, LAYERS, VOCABULARY, LONGEST = 384, 12, 1536, 6, 30522, 512
TOKENS = ["<pad>", "<s>", "</s>", "<unk>"] + [f"t{i}" for i in range(VOCABULARY - 4)]


def manifest(vocabulary, weight_type, mechanism):
    return f"""schema = "attnkit.model/1"
[model]
name = "minilm-shape"
kind = "encoder"
d_model = {D}
heads = {HEADS}
ffn = {FFN}
norm = "post"
activation = "gelu"
positions = "learned"
embed_norm = true
max_length = {LONGEST}
encoder = {{ layers = {LAYERS}, vocab = "{vocabulary}" }}
head = {{ type = "embedding", normalise = true }}
[weights]
seed = 1
type = "{weight_type}"
[attention]
default = "{mechanism}"
"""


def graph(w, path, epsilon=1e-5):
    """The encoder as ONNX; every sentence of a batch has the same length."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, given = [], []

    def constant(name, value):
        given.append(numpy_helper.from_array(numpy.ascontiguousarray(value), name))
        return name

    def node(op, inputs, output, domain="", **attributes):
        nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attributes))
        return output

    def linear(name, x):
        return node("MatMul", [x, constant(name + ".w", w[name + ".weight"].T)], name + ".product")

    def norm(name, x, skip=None, bias=None):
        scale, shift = constant(name + ".scale", w[name + ".weight"]), constant(name + ".shift", w[name + ".bias"])
        if skip is None:
            return node("LayerNormalization", [x, scale, shift], name, axis=-1, epsilon=epsilon)
        return node("SkipLayerNormalization", [x, skip, scale, shift, bias], name, "com.microsoft", epsilon=epsilon)

    x = node("Gather", [constant("embed", w["encoder.embed.weight"]), "ids"], "embedded")
    n = node("Shape", ["ids"], "length", start=1, end=2)
    at = node("Slice", [constant("positions", w["encoder.positions.weight"]), constant("zero", numpy.zeros(1, numpy.int64)), n],
              "at")
    x = norm("encoder.embed.norm", node("Add", [x, at], "placed"))
    for i in range(1, LAYERS + 1):
        name = f"encoder.self.{i}"
        packed = constant(name + ".qkv", numpy.concatenate([w[f"{name}.{p}.weight"] for p in "qkv"]).T)
        biases = constant(name + ".qkv.bias", numpy.concatenate([w[f"{name}.{p}.bias"] for p in "qkv"]))
        y = node("Attention", [x, packed, biases], name + ".attention", "com.microsoft", num_heads=HEADS)
        x = norm(name + ".norm", linear(name + ".o", y), x, constant(name + ".o.bias", w[name + ".o.bias"]))
        name = f"encoder.ffn.{i}"
        y = node("BiasGelu", [linear(name + ".in", x), constant(name + ".in.bias", w[name + ".in.bias"])], name + ".gelu",
                 "com.microsoft")
        x = norm(name + ".norm", linear(name + ".out", y), x, constant(name + ".out.bias", w[name + ".out.bias"]))
    mean = node("ReduceMean", [x, constant("axis", numpy.array([1], numpy.int64))], "mean", keepdims=0)
    node("LpNormalization", [mean], "vectors", axis=1, p=2)
    made = helper.make_graph(nodes, "encoder", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
                             [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", D])], given)
    onnx.save(helper.make_model(made, ir_version=10, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]),
              str(path))


class OnnxRuntime:
    def __init__(self, path, threads):
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def vectors(self, ids):
        return self.session.run(None, {"ids": ids})[0]


class OpenVino:
    def __init__(self, path, threads):
        import openvino
        self.request = openvino.Core().compile_model(path, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}).create_infer_request()

    def vectors(self, ids):
        return next(iter(self.request.infer([ids]).values()))

    @staticmethod
    def quantise(path, folder):
        """Writes the f32 graph as OpenVINO's own, and its two forms in int8."""
        import nncf
        import openvino
        nncf.set_log_level(logging.ERROR)

        def model():
            return openvino.Core().read_model(folder / "openvino-f32.xml")

        read = openvino.Core().read_model(path)
        for i, op in enumerate(read.get_ordered_ops()):
            op.set_friendly_name(f"op{i}")  # NNCF knows operators by their names, which come twice from ONNX
        openvino.save_model(read, folder / "openvino-f32.xml", compress_to_fp16=False)
        random = numpy.random.default_rng(2)
        some = [random.integers(4, VOCABULARY, (16, length)) for length in [16, 128] * 16]
        openvino.save_model(nncf.quantize(model(), nncf.Dataset(some, lambda ids: {"ids": ids}), subset_size=len(some),
                                          model_type=nncf.ModelType.TRANSFORMER), folder / "openvino-int8.xml")
        openvino.save_model(nncf.compress_weights(model(), mode=nncf.CompressWeightsMode.INT8_SYM), folder / "openvino-weights.xml")


class Attnkit:
    def __init__(self, text, threads):
        self.model = open_model(text, threads)

    def vectors(self, ids):
        return numpy.asarray(self.model.forward(ids.tolist()))


def main():
    options = options_of(__doc__, 9, batch=[1, 16], length=[16, 128, 512])
    lines = Lines(options.results)
    cases = [{"threads": threads, "tokens": length, "batch": batch, "idle, ms": idle} for threads in options.threads
             for length in options.length for batch in options.batch for idle in options.idle]
    cases = [case for case in cases if {**case, "weights": "int8"} not in lines]

    with tempfile.TemporaryDirectory() as folder:
        from onnx import TensorProto
        from onnxruntime.quantization import quantize_dynamic
        folder = Path(folder)
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("\n".join(TOKENS) + "\n")
        graph(tensors(open_model(manifest(vocabulary, "f32", "softmax"), 1)), folder / "f32.onnx")
        quantize_dynamic(folder / "f32.onnx", folder / "int8.onnx", per_channel=True,
                         extra_options={"DefaultTensorType": TensorProto.FLOAT})
        with contextlib.redirect_stdout(sys.stderr):  # NNCF shows its progress
            OpenVino.quantise(folder / "f32.onnx", folder)
        random = numpy.random.default_rng(1)

        for threads in sorted({case["threads"] for case in cases}):
            who = {}
            for t in ("f32", "int8"):
                for mechanism in ("softmax", "relu"):
                    who[t, f"attnkit, {mechanism}"] = Attnkit(manifest(vocabulary, t, mechanism), threads)
                who[t, "ONNX Runtime"] = OnnxRuntime(folder / f"{t}.onnx", threads)
                who[t, "OpenVINO"] = OpenVino(folder / f"openvino-{t}.xml", threads)
            who["int8", "OpenVINO, weights alone"] = OpenVino(folder / "openvino-weights.xml", threads)
            for case in (case for case in cases if case["threads"] == threads):
                length, batch, idle = case["tokens"], case["batch"], case["idle, ms"]
                ids = random.integers(4, VOCABULARY, (batch, length))
                first = {k: v.vectors(ids) for k, v in who.items()}
                for other in ("ONNX Runtime", "OpenVINO"):
                    apart = numpy.abs(first["f32", "attnkit, softmax"] - first["f32", other]).max()
                    if not apart < 1e-4:
                        raise SystemExit(f"{length} tokens, batch {batch}: vectors of {other} from the same f32 weights are {apart} apart")
                times = max(1, (256 if idle else 4096) // (batch * length))
                speeds = in_turns(who, lambda v: batch / seconds_of(lambda: v.vectors(ids), idle, times), options.rounds)
                for t in ("f32", "int8"):
                    lines.add({**case, "weights": t}, "sentences a second", "ONNX Runtime",
                              {name: values for (of, name), values in speeds.items() if of == t})


if __name__ == "__main__":
    main()
