"""One block of attention: attnkit beside PyTorch, ONNX Runtime and OpenVINO, in turns in one process.

    PYTHONPATH=build/lib/attnkit/python venv/bin/python tests/bench/compare/ops.py [--length 128,1024,4096] [--threads 1,2] [--form causal,full,decode]
        [--shape 1x8x64,4x4x32,1x32x128,1x1x64] [--batch 1,8,64] [--type f32,bf16] [--idle 0,50]

causal, full: whole sequences; a shape is batch x heads x width.  decode: one more token behind `length` others, for each of --batch.
softmax: PyTorch's scaled_dot_product_attention, MultiHeadAttention of ONNX Runtime, ScaledDotProductAttention of OpenVINO; behind other
tokens all but attnkit find the new key in its place.  Linear attention with ReLU features: PyTorch by whole products, causal in chunks, the
fastest of 64, 128 and 256 tokens, one token by its state; LinearAttention of ONNX Runtime, which is causal alone and is not timed for
one token.  q, k and v lie as each library wants them, features and denominators are part of what is timed.  bf16: the others in bf16, ONNX Runtime
without; attnkit, which computes whole sequences in f32 alone, in f32, its cache of decode softmax in bf16.  Before anything is timed all
outputs must be equal to 1e-5 of their size, 3e-2 in bf16.  Prints milliseconds: the median over the rounds with quartiles, and how many
times as long as attnkit the others take, paired by round.  Before each sample nothing runs for 0.1 s, since threads of the one before spin, and calls that are
not timed wake its own for 20 ms.
"""

import ctypes
import math
import time

import numpy
from common import Lines, in_turns, options_of, seconds_of

import attnkit
from attnkit import _abi

EPS = 1e-6
RESTS, WARMS = 0.1, 0.02  # seconds before a sample of each: of no work, of calls that are not timed


class Attnkit:
    """A run that is made once and called again, as a program over attnkit.h does.  past: tokens in its state, in front of q, k and v."""

    def __init__(self, mechanism, q, k, v, causal, threads, past=None, options=""):
        batch, heads, n, width = q.shape
        options = f'guard = "clamp", eps = {EPS}' if mechanism == "relu" else options
        self.block = attnkit.Block(attnkit.Runtime(threads=threads), mechanism, "decoder.self" if causal else "encoder.self",
                                   heads * width, heads, options=options)
        more, keys = {}, 0
        if past is not None:
            keys = past[0].shape[2]
            read = self.block.request(batch, keys, keys, 0, _abi.ATTN_STREAM)
            request = self.block.request(batch, n, n, keys, _abi.ATTN_STREAM)
            self.state = attnkit.aligned(max(self.block.plan(r).state_bytes for r in (read, request)), batch)
            self.block.run(read, {"q": past[0], "k": past[0], "v": past[1]}, q_pos=[0] * batch, k_pos=[0] * batch, state=self.state)
            more = {"q_pos": [keys] * batch, "k_pos": [keys] * batch, "state": self.state}
        else:
            request = self.block.request(batch, n, n)
        self.tensors = {"q": q, "k": k, "v": v, "o": numpy.zeros_like(q)}
        self.run = self.block.run(request, self.tensors, **more)
        self.first = self.tensors["o"].copy()
        self.call = self.block._library.attnkit_block_run
        self.arguments = self.block.pointer, ctypes.byref(self.run._request), ctypes.byref(self.run._struct), None

    def __call__(self):
        if self.call(*self.arguments):
            raise SystemExit("attnkit: a run failed")
        return self.tensors["o"]


class Torch:
    """chunk: tokens of which linear attention makes scores when it is causal; None: softmax."""

    def __init__(self, q, k, v, causal, chunk=None, bf16=False):
        import torch
        self.torch, self.causal, self.chunk, self.bf16 = torch, causal, chunk, bf16
        self.q, self.k, self.v = (torch.from_numpy(x).to(torch.bfloat16 if bf16 else torch.float32) for x in (q, k, v))

    def __call__(self):
        with self.torch.inference_mode():
            if self.chunk is None:
                made = self.torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)
            else:
                made = self.linear()
            return made.float().numpy() if self.bf16 else made.numpy()

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


class TorchState:
    """One token of linear attention: the sums of the keys before it, made anew with it."""

    def __init__(self, q, k, v, past):
        import torch
        self.torch = torch
        self.q, self.k, self.v = (torch.from_numpy(x) for x in (q, k, v))
        keys, values = (torch.from_numpy(x) for x in past)
        self.s, self.z = keys.relu().transpose(2, 3) @ values, keys.relu().sum(2).unsqueeze(3)
        self.first = self().numpy().copy()

    def __call__(self):
        with self.torch.inference_mode():
            q, k = self.q.relu(), self.k.relu().transpose(2, 3)
            self.s.add_(k @ self.v)
            self.z.add_(k)
            return (q @ self.s) / (q @ self.z).clamp_min(EPS)


class OnnxRuntime:
    """The heads lie beside each other in a row."""

    def __init__(self, mechanism, q, k, v, causal, threads):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper
        from attnkit.onnx._graph import Graph
        from attnkit.onnx._linear import as_linear_attention

        batch, self.heads, n, self.width = q.shape
        rows = [(batch, x.shape[2], self.heads * self.width) for x in (q, k, v)]
        graph = Graph()
        names = [graph.input(name, TensorProto.FLOAT, shape) for name, shape in zip("qkv", rows)]
        if mechanism == "softmax":
            graph.add(helper.make_node("MultiHeadAttention", names, ["o"], domain="com.microsoft", num_heads=self.heads,
                                       unidirectional=int(causal)))
        else:
            options = {"scale": "inverse_sqrt", "guard": "max", "eps": EPS}
            made = as_linear_attention(graph, "relu", options, *names, self.heads, self.heads, self.width)
            graph.add(helper.make_node("Identity", [made], ["o"]))
        graph.output("o", rows[0])
        opsets = [helper.make_opsetid("", 27), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_graph(graph.nodes, "block", graph.inputs, graph.outputs, list(graph.initializers.values()))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(onnx.helper.make_model(made, ir_version=10, opset_imports=opsets).SerializeToString(),
                                                    settings, ["CPUExecutionProvider"])
        # Bound to memory, so that nothing is copied in or out.
        self.bound = self.session.io_binding()
        self.given = [numpy.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(shape)) for x, shape in zip((q, k, v), rows)]
        self.out = numpy.zeros(rows[0], numpy.float32)
        for name, x in zip("qkv", self.given):
            self.bound.bind_input(name, "cpu", 0, numpy.float32, x.shape, x.ctypes.data)
        self.bound.bind_output("o", "cpu", 0, numpy.float32, rows[0], self.out.ctypes.data)

    def __call__(self):
        self.session.run_with_iobinding(self.bound)
        return self.out.reshape(len(self.out), -1, self.heads, self.width).transpose(0, 2, 1, 3)


class OpenVino:
    def __init__(self, q, k, v, causal, threads, bf16=False):
        import openvino
        from openvino import opset13
        ports = [opset13.parameter(x.shape, numpy.float32) for x in (q, k, v)]
        model = openvino.Model([opset13.scaled_dot_product_attention(*ports, causal=causal)], ports)
        made = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32"})
        self.request, self.out = made.create_infer_request(), numpy.zeros_like(q)
        for i, x in enumerate((q, k, v)):
            self.request.set_input_tensor(i, openvino.Tensor(x, shared_memory=True))
        self.request.set_output_tensor(openvino.Tensor(self.out, shared_memory=True))

    def __call__(self):
        self.request.infer()
        return self.out


def contenders(kind, form, q, k, v, past, threads, bf16):
    """Callables by name; those that change what they read say their first output as `first`."""
    if form == "decode":
        if kind == "linear":
            return {"attnkit": Attnkit("relu", q, k, v, True, threads, past), "PyTorch": TorchState(q, k, v, past)}
        keys, values = (numpy.concatenate([x, new], 2) for x, new in zip(past, (k, v)))
        own = Attnkit("softmax", q, k, v, True, threads, past, 'cache = "bf16"' if bf16 else "")
        return {"attnkit": own, **others(q, keys, values, False, threads, bf16)}
    causal = form == "causal"
    if kind == "softmax":
        return {"attnkit": Attnkit("softmax", q, k, v, causal, threads), **others(q, k, v, causal, threads, bf16)}
    who = {"attnkit": Attnkit("relu", q, k, v, causal, threads)}
    for chunk in (64, 128, 256) if causal else (1,):
        if q.shape[2] % chunk == 0:
            who["PyTorch" + (f", chunks of {chunk}" if causal else "")] = Torch(q, k, v, causal, chunk, bf16)
    if causal and not bf16 and q.shape[2] <= 4096:
        who["ONNX Runtime"] = OnnxRuntime("relu", q, k, v, causal, threads)
    return who


def others(q, k, v, causal, threads, bf16):
    who = {"PyTorch": Torch(q, k, v, causal, None, bf16), "OpenVINO": OpenVino(q, k, v, causal, threads, bf16)}
    return who if bf16 else {**who, "ONNX Runtime": OnnxRuntime("softmax", q, k, v, causal, threads)}


def fastest_chunk(who):
    """Of the chunks of PyTorch the fastest of three calls alone."""
    chunks = [name for name in who if name.startswith("PyTorch, ")]
    best = min(chunks, key=lambda name: min(seconds_of(who[name]) for _ in range(3)), default=None)
    return {name: x for name, x in who.items() if name not in chunks or name == best}


def measure(case, rounds):
    """Milliseconds of each by round."""
    kind, form, bf16 = case["block"], case["form"], case["type"] == "bf16"
    batch, heads, width = map(int, case["shape"].split("x"))
    random = numpy.random.default_rng(1)
    of = lambda n: random.standard_normal((batch, heads, n, width), numpy.float32)  # noqa: E731
    rows = 1 if form == "decode" else case["tokens"]
    q, k, v = of(rows), of(rows), of(rows)
    who = contenders(kind, form, q, k, v, (of(case["tokens"]), of(case["tokens"])) if form == "decode" else None, case["threads"], bf16)
    first = {name: numpy.array(getattr(x, "first", None) if hasattr(x, "first") else x()) for name, x in who.items()}
    for name, out in first.items():
        apart = math.sqrt(((out - first["attnkit"])**2).mean() / (first["attnkit"]**2).mean())
        if not apart < (3e-2 if bf16 else 1e-5):
            raise SystemExit(f"{case}: {name} is {apart:.1e} apart")
    who = fastest_chunk(who)
    idle = case["idle, ms"]
    times = 3 if idle else max(1, int(0.02 / seconds_of(who["attnkit"], 0, 2)))

    def sample(call):
        # Threads of who ran before spin for a while; then those of this one wake.
        time.sleep(RESTS)
        start = time.perf_counter()
        while time.perf_counter() - start < WARMS:
            call()
        return 1e3 * seconds_of(call, idle, times)
    return in_turns(who, sample, rounds)


def main():
    options = options_of(__doc__, 7, length=[128, 1024, 4096], form=["causal", "full", "decode"], shape=["1x8x64"], batch=[1], type=["f32"],
                         block=["softmax", "linear"])
    import torch
    lines = Lines(options.results)
    for threads in options.threads:
        torch.set_num_threads(threads)
        for block in options.block:
            for form in options.form:
                shapes = [f"{batch}x{shape.split('x', 1)[1]}" for batch in options.batch for shape in options.shape] if form == "decode" else options.shape
                for shape in shapes:
                    for kind in options.type:
                        for length in options.length:
                            for idle in options.idle:
                                case = {"block": block, "form": form, "shape": shape, "type": kind, "threads": threads, "tokens": length, "idle, ms": idle}
                                if case not in lines:
                                    lines.add(case, "ms", "attnkit", measure(case, options.rounds))


if __name__ == "__main__":
    main()
