"""One block of attention on whole sequences: attnkit beside PyTorch, ONNX Runtime and OpenVINO, in turns in one process.

    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/ops.py [--length 128,1024,4096] [--threads 1,2] [--heads 8] [--width 64]

softmax: PyTorch's scaled_dot_product_attention, MultiHeadAttention of ONNX Runtime, ScaledDotProductAttention of OpenVINO.
linear attention with ReLU features: PyTorch by whole products, causal in chunks, the fastest of 64, 128 and 256 tokens;
LinearAttention of ONNX Runtime, which is causal alone.  f32, one sequence; q, k and v lie as each library wants them, features and
denominators are part of what is timed.  Before anything is timed all outputs must be equal to 1e-5 of their size.  Prints milliseconds:
the median over the rounds with quartiles, and how many times as long as attnkit the others take, paired by round; the order of a
round is turned around from one to the next.
"""

import argparse
import math
import time

import numpy
from common import cells, numbers

import attnkit

EPS = 1e-6


class Attnkit:
    def __init__(self, mechanism, q, k, v, causal, threads):
        heads, width = q.shape[1], q.shape[3]
        options = f'guard = "clamp", eps = {EPS}' if mechanism == "relu" else ""
        self.block = attnkit.Block(attnkit.Runtime(threads=threads), mechanism, "decoder.self" if causal else "encoder.self",
                                   heads * width, heads, options=options)
        self.request = self.block.request(1, q.shape[2], q.shape[2])
        self.tensors = {"q": q, "k": k, "v": v, "o": numpy.zeros_like(q)}

    def __call__(self):
        self.block.run(self.request, self.tensors)
        return self.tensors["o"]


class Torch:
    """chunk: tokens of which linear attention makes scores when it is causal; None: softmax."""

    def __init__(self, q, k, v, causal, chunk=None):
        import torch
        self.torch, self.causal, self.chunk = torch, causal, chunk
        self.q, self.k, self.v = (torch.from_numpy(x) for x in (q, k, v))

    def __call__(self):
        with self.torch.inference_mode():
            if self.chunk is None:
                return self.torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal).numpy()
            return self.linear().numpy()

    def linear(self):
        torch, q, k, v = self.torch, self.q.relu(), self.k.relu(), self.v
        q = q / math.sqrt(q.shape[3])
        if not self.causal:
            sums = q @ k.sum(2).unsqueeze(3)
            return q @ (k.transpose(2, 3) @ v) / sums.clamp_min(EPS)
        b, h, n, d = q.shape
        q, k, v = (x.reshape(b, h, n // self.chunk, self.chunk, d) for x in (q, k, v))
        states, sums = k.transpose(3, 4) @ v, k.sum(3).unsqueeze(4)
        states, sums = states.cumsum(2) - states, sums.cumsum(2) - sums
        scores = (q @ k.transpose(3, 4)).tril()
        weighted = torch.baddbmm((q @ states).reshape(-1, self.chunk, d), scores.reshape(-1, self.chunk, self.chunk),
                                 v.reshape(-1, self.chunk, d)).reshape(q.shape)
        return (weighted / (q @ sums + scores.sum(4, keepdim=True)).clamp_min(EPS)).reshape(b, h, n, d)


class OnnxRuntime:
    """What lies beside each other in a row are the heads."""

    def __init__(self, mechanism, q, k, v, causal, threads):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper
        from attnkit.onnx._graph import Graph
        from attnkit.onnx._linear import as_linear_attention

        _, self.heads, n, self.width = q.shape
        rows = (1, n, self.heads * self.width)
        graph = Graph()
        names = [graph.input(name, TensorProto.FLOAT, rows) for name in "qkv"]
        if mechanism == "softmax":
            graph.add(helper.make_node("MultiHeadAttention", names, ["o"], domain="com.microsoft", num_heads=self.heads,
                                       unidirectional=int(causal)))
        else:
            options = {"scale": "inverse_sqrt", "guard": "max", "eps": EPS}
            made = as_linear_attention(graph, "relu", options, *names, self.heads, self.heads, self.width)
            graph.add(helper.make_node("Identity", [made], ["o"]))
        graph.output("o", rows)
        opsets = [helper.make_opsetid("", 27), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_graph(graph.nodes, "block", graph.inputs, graph.outputs, list(graph.initializers.values()))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(onnx.helper.make_model(made, ir_version=10, opset_imports=opsets).SerializeToString(),
                                                    settings, ["CPUExecutionProvider"])
        # Bound to memory, so that nothing is copied in or out.
        self.bound = self.session.io_binding()
        beside = lambda x: numpy.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(rows))  # noqa: E731
        self.given = [beside(x) for x in (q, k, v)]
        self.out = numpy.zeros(rows, numpy.float32)
        for name, x in zip("qkv", self.given):
            self.bound.bind_input(name, "cpu", 0, numpy.float32, rows, x.ctypes.data)
        self.bound.bind_output("o", "cpu", 0, numpy.float32, rows, self.out.ctypes.data)

    def __call__(self):
        self.session.run_with_iobinding(self.bound)
        return self.out.reshape(1, -1, self.heads, self.width).transpose(0, 2, 1, 3)


class OpenVino:
    def __init__(self, q, k, v, causal, threads):
        import openvino
        from openvino import opset13
        ports = [opset13.parameter(x.shape, numpy.float32) for x in (q, k, v)]
        model = openvino.Model([opset13.scaled_dot_product_attention(*ports, causal=causal)], ports)
        made = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
        self.request, self.out = made.create_infer_request(), numpy.zeros_like(q)
        for i, x in enumerate((q, k, v)):
            self.request.set_input_tensor(i, openvino.Tensor(x, shared_memory=True))
        self.request.set_output_tensor(openvino.Tensor(self.out, shared_memory=True))

    def __call__(self):
        self.request.infer()
        return self.out


def contenders(kind, q, k, v, causal, threads):
    if kind == "softmax":
        return {"attnkit": Attnkit("softmax", q, k, v, causal, threads), "PyTorch": Torch(q, k, v, causal),
                "ONNX Runtime": OnnxRuntime("softmax", q, k, v, causal, threads), "OpenVINO": OpenVino(q, k, v, causal, threads)}
    who = {"attnkit": Attnkit("relu", q, k, v, causal, threads)}
    for chunk in (64, 128, 256) if causal else (1,):
        if q.shape[2] % chunk == 0:
            who["PyTorch" + (f", chunks of {chunk}" if causal else "")] = Torch(q, k, v, causal, chunk)
    if causal:
        who["ONNX Runtime"] = OnnxRuntime("relu", q, k, v, causal, threads)
    return who


def fastest_chunk(who):
    """Of the chunks of PyTorch the fastest of three calls alone."""
    chunks = [name for name in who if name.startswith("PyTorch, ")]
    best = {}
    for name in chunks:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            who[name]()
            times.append(time.perf_counter() - start)
        best[name] = min(times)
    return {name: x for name, x in who.items() if name not in chunks or name == min(best, key=best.get)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=numbers, default=[128, 1024, 4096])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    import torch
    random = numpy.random.default_rng(1)

    print("| block | threads | tokens | who | ms (quartiles) | to attnkit (quartiles) |")
    print("|---|---|---|---|---|---|")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for kind in ("softmax", "linear"):
            for causal in (True, False):
                for length in options.length:
                    q, k, v = (random.standard_normal((1, options.heads, length, options.width), numpy.float32) for _ in "qkv")
                    who = contenders(kind, q, k, v, causal, threads)
                    expected = who["attnkit"]().copy()
                    for name, x in who.items():
                        apart = numpy.sqrt(((x() - expected)**2).mean() / (expected**2).mean())
                        if not apart < 1e-5:
                            raise SystemExit(f"{kind}, {length} tokens: {name} is {apart:.1e} apart")
                    who = fastest_chunk(who)
                    times = {name: [] for name in who}
                    start = time.perf_counter()
                    who["attnkit"]()
                    repeats = max(1, int(0.02 / (time.perf_counter() - start)))
                    for i in range(options.rounds):
                        for name, x in (list(who.items()) if i % 2 else reversed(who.items())):
                            x()
                            start = time.perf_counter()
                            for _ in range(repeats):
                                x()
                            times[name].append((time.perf_counter() - start) / repeats * 1e3)
                    block = f"{kind}, {'causal' if causal else 'full'}"
                    for name in who:
                        print(f"| {block} | {threads} | {length} | {name} | {cells(times[name], times['attnkit'])} |", flush=True)


main()
