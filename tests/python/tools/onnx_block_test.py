"""The operator attnkit.Block in ONNX Runtime: the bits of attnkit_block_run, states, errors."""

import concurrent.futures
import ctypes
import itertools
import unittest

import attnkit
import attnkit.onnx
import numpy as np
import onnxruntime
from attnkit._abi import (ATTN_AUX_IN, ATTN_AUX_OUT, ATTN_KEY, ATTN_KNOWS_K_TOTAL, ATTN_KNOWS_Q_TOTAL, ATTN_LEARNED, ATTN_OUTPUT, ATTN_PREFIX,
                          ATTN_QUERY, ATTN_STREAM, ATTN_TABLE)
from onnx import TensorProto, helper

RUNTIME = attnkit.Runtime(threads=2)
MECHANISMS = sorted({plugin["name"] for plugin in RUNTIME.list()["plugins"] if plugin["device"] == "cpu"})
PLACES = [("encoder.self", False), ("encoder.self", True), ("decoder.self", True), ("decoder.cross", False)]
B, HEADS, WIDTH, ROWS = 2, 4, 16, 24
TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64, "float64": TensorProto.DOUBLE,
         "uint8": TensorProto.UINT8, "float16": TensorProto.FLOAT16}


def session(nodes, inputs, outputs, threads=2):
    """inputs: arrays by name, whose sizes stay open; outputs: names, or pairs with a type of numpy."""
    described = [helper.make_tensor_value_info(name, TYPES[str(x.dtype)], [None] * x.ndim) for name, x in inputs.items()]
    made = [helper.make_tensor_value_info(name, TYPES[kind], None) for name, kind in
            (o if isinstance(o, tuple) else (o, "float32") for o in outputs)]
    graph = helper.make_graph(nodes, "test", described, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("attnkit", 1)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    options.register_custom_ops_library(attnkit.onnx.library())
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run(node, inputs, outputs=("o",), **options):
    return session([node], inputs, outputs, **options).run(None, inputs)


class Case:
    """A mechanism in a place with random inputs; LookupError where it cannot sit there."""

    def __init__(self, mechanism, role, causal, options="", rows=ROWS, flags=0):
        self.mechanism, self.role, self.causal, self.options = mechanism, role, causal, options
        try:
            self.block = attnkit.Block(RUNTIME, mechanism, role, HEADS * WIDTH, HEADS, causal, options=options)
            self.flags = flags | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL
            self.block.plan(self.block.request(B, rows, rows, flags=self.flags))
        except attnkit.Error as e:
            if e.code != attnkit.UNSUPPORTED:
                raise
            raise LookupError(str(e)) from None
        random = np.random.default_rng(len(mechanism))
        self.ports, self.stored, self.outputs = {}, {}, []
        for port in self.block.ports:
            if port.kind in (ATTN_QUERY, ATTN_KEY):
                self.ports[port.name] = random.standard_normal((B, port.shape[1], rows, port.shape[3])).astype(np.float32)
            elif port.kind in (ATTN_LEARNED, ATTN_TABLE):
                self.stored[port.name] = np.zeros(port.shape, f"{'int' if port.code == 0 else 'float'}{port.bits}")
                self.block.fill(port, 1, self.stored[port.name])
            elif port.kind == ATTN_AUX_OUT:
                self.outputs.append(port)
        self.attributes = dict(role=role, causal=int(causal), heads=HEADS, d_model=HEADS * WIDTH, options=options)

    def node(self, inputs, outputs, **more):
        return attnkit.onnx.block(self.mechanism, {name: name for name in inputs}, outputs, **self.attributes, **more)

    def direct(self, rows, queries, keys, **run):
        """o and the AUX_OUT of attnkit_block_run."""
        extra = {p.index: np.empty((B, *p.shape[1:]), np.float32) for p in self.outputs}
        made = np.empty((B, self.output.shape[1], queries, self.output.shape[3]), np.float32)
        request = self.block.request(B, queries, keys, flags=self.flags, past=run.pop("past", 0))
        self.block.run(request, {**rows, **self.stored, self.output.name: made, **extra}, queries=queries, keys=keys, **run)
        return [made, *extra.values()]

    @property
    def output(self):
        return next(p for p in self.block.ports if p.kind == ATTN_OUTPUT)


def cases(flags=0, **options):
    for mechanism, (role, causal) in itertools.product(MECHANISMS, PLACES):
        try:
            yield Case(mechanism, role, causal, flags=flags, **options)
        except LookupError:
            pass


class Block(unittest.TestCase):
    def equal(self, ours, theirs):
        for a, b in zip(ours, theirs, strict=True):
            self.assertEqual((a.shape, a.tobytes()), (b.shape, b.tobytes()))

    def test_every_mechanism_has_the_bits_of_attnkit_block_run(self):
        seen = set()
        lengths, totals = np.array([ROWS, ROWS - 7]), np.array([ROWS, ROWS - 6.5])
        for case in cases():
            with self.subTest(mechanism=case.mechanism, role=case.role, causal=case.causal):
                inputs = {**case.ports, **case.stored, "q_len": lengths, "k_len": lengths.astype(np.int32), "q_total": totals,
                          "k_total": totals.astype(np.float32)}
                names = ["o", *(p.name + "_out" for p in case.outputs)]
                node = case.node(inputs, [names[0], *([""] if case.outputs else []), *names[1:]])
                expected = case.direct(case.ports, ROWS, ROWS, q_len=lengths, k_len=lengths, q_total=totals, k_total=totals)
                self.equal(run(node, inputs, names), expected)
                seen.add(case.mechanism)
        self.assertEqual(sorted(seen), MECHANISMS)
        self.assertGreater(len(seen), 15)

    def test_rows_of_all_heads_beside_each_other_are_taken_and_given(self):
        case = Case("softmax", "decoder.cross", False)
        packed = {name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(B, ROWS, -1) for name, x in case.ports.items()}
        whole, = case.direct(case.ports, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)
        o, = run(attnkit.onnx.block("softmax", ["q", "k", "v"], ["o"], **case.attributes), packed)
        self.assertEqual(o.shape, (B, ROWS, HEADS * WIDTH))
        self.assertEqual(o.reshape(B, ROWS, HEADS, WIDTH).transpose(0, 2, 1, 3).tobytes(), whole.tobytes())
        mixed = {**case.ports, "k": packed["k"]}
        self.equal(run(attnkit.onnx.block("softmax", ["q", "k", "v"], ["o"], **case.attributes), mixed), [whole])

    def test_options_heads_of_keys_and_widths(self):
        random = np.random.default_rng(1)
        q, k, v = (random.standard_normal((1, h, 5, w)).astype(np.float32) for h, w in ((4, 8), (2, 8), (2, 12)))
        at = attnkit.Block(RUNTIME, "relu", "decoder.self", 40, 4, True, 12, "guard = 'add', eps = 0.5", 2, 8)
        expected = np.asarray(at.run(at.request(1, 5, 5), {"q": q, "k": k, "v": v}).output)
        node = attnkit.onnx.block("relu", ["q", "k", "v"], ["o"], role="decoder.self", heads=4, kv_heads=2, d_model=40, key_width=8,
                                  head_width=12, options="guard = 'add', eps = 0.5")
        self.equal(run(node, {"q": q, "k": k, "v": v}), [expected])

    def test_self_attention_needs_one_of_two_lengths(self):
        case = Case("softmax", "encoder.self", False)
        one, both = ({**case.ports, **{name: np.array([3, ROWS]) for name in names}} for names in (["q_len"], ["q_len", "k_len"]))
        self.equal(run(case.node(one, ["o"]), one), run(case.node(both, ["o"]), both))

    def test_visible_keys(self):
        case = Case("softmax", "decoder.cross", False, flags=ATTN_PREFIX)
        visible = np.minimum(np.arange(ROWS) + 3, ROWS)[None].repeat(B, 0)
        expected = case.direct(case.ports, ROWS, ROWS, visible=visible.astype(np.int32), q_total=[ROWS] * B, k_total=[ROWS] * B)
        inputs = {**case.ports, "visible": visible}
        self.equal(run(case.node(inputs, ["o"]), inputs), expected)

    def test_a_carried_sequence_goes_from_node_to_node(self):
        first = Case("luna", "encoder.self", False)
        p, = first.outputs
        inputs = {**first.ports, **first.stored}
        one = first.node(inputs, ["o1", "", "p1"], name="one")
        two = attnkit.onnx.block("luna", {**{n: n for n in inputs}, p.name: "p1"}, ["o2"], name="two", **first.attributes)
        both = session([one, two], inputs, ["o1", "p1", "o2"]).run(None, inputs)
        o1, p1 = first.direct(first.ports, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)
        carried = next(q for q in first.block.ports if q.kind == ATTN_AUX_IN)
        o2, _ = first.direct({**first.ports, carried.index: p1}, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)
        self.equal(both, [o1, p1, o2])

    def test_many_shapes_and_threads_in_one_session(self):
        case = Case("softmax", "encoder.self", False)
        on = session([case.node(case.ports, ["o"])], case.ports, ["o"])
        shapes = [(b, n) for b in (1, 2) for n in range(1, 25)]

        def both(shape):
            b, n = shape
            rows = {name: np.ascontiguousarray(x[:b, :, :n]) for name, x in case.ports.items()}
            direct = np.asarray(case.block.run(case.block.request(b, n, n), rows).output)
            return on.run(None, rows)[0].tobytes() == direct.tobytes()

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            self.assertEqual(set(threads.map(both, shapes * 3)), {True})

    def test_the_bits_depend_on_no_number_of_threads(self):
        for case in (Case("softmax", "decoder.self", True, rows=600), Case("leap", "encoder.self", False, rows=600)):
            inputs, known = {**case.ports, **case.stored}, [600] * B
            expected = case.direct(case.ports, 600, 600, q_total=known, k_total=known)
            for threads in (1, 2, 5):
                self.equal(run(case.node(inputs, ["o"]), inputs, threads=threads), expected)

    def test_empty_batches_and_no_rows(self):
        case = Case("relu", "decoder.cross", False)
        on = session([case.node(case.ports, ["o"])], case.ports, ["o"])
        for b, n, m in ((0, 3, 3), (2, 0, 3), (2, 3, 0)):
            rows = {name: x[:b, :, :n if name == "q" else m] for name, x in case.ports.items()}
            o, = on.run(None, rows)
            self.assertEqual((o.shape, np.abs(o).sum() > 0), ((b, HEADS, n, WIDTH), False))


class State(unittest.TestCase):
    CAPACITY = ROWS + 3

    def test_chunks_are_the_whole(self):
        seen = set()
        for case in cases(ATTN_STREAM):
            if case.role == "decoder.cross":
                continue
            with self.subTest(mechanism=case.mechanism, role=case.role):
                totals = {"q_total": np.array([ROWS + 0.0] * B)}
                first = {**case.ports, **case.stored, **totals}
                later = {**first, "k_pos": np.array([0]), "state": np.zeros((B, 1), np.uint8)}
                names = ["o", ("state_out", "uint8"), *(f"aux{i}" for i, _ in enumerate(case.outputs))]
                outputs = [n if isinstance(n, str) else n[0] for n in names]
                begin = session([case.node(first, outputs, capacity=self.CAPACITY)], first, names)
                step = session([case.node(later, outputs, capacity=self.CAPACITY)], later, names)
                state, pos, got, bits = None, 0, [], []
                info = case.block.plan(case.block.request(B, 9, 9, past=self.CAPACITY - 9, flags=case.flags))
                memory = attnkit.aligned(info.state_bytes, B)
                for rows in (9, 1, 1, 4, 1, ROWS - 16):
                    chunk = {name: np.ascontiguousarray(x[:, :, pos:pos + rows]) for name, x in case.ports.items()}
                    given = {**chunk, **case.stored, **totals}
                    o, state, *_ = begin.run(None, given) if state is None else step.run(
                        None, {**given, "k_pos": np.array([pos]), "state": state})
                    bits.append(case.direct(chunk, rows, rows, past=self.CAPACITY - rows, q_pos=[pos] * B, k_pos=[pos] * B, state=memory,
                                            q_total=[ROWS] * B, k_total=[ROWS] * B)[0].tobytes() == o.tobytes())
                    pos += rows
                    got.append(o)
                self.assertEqual(set(bits), {True})
                self.assertEqual(state[:, :info.state_bytes].tobytes(), np.asarray(memory)[:, :info.state_bytes].tobytes())
                case.flags &= ~ATTN_STREAM
                whole = case.direct(case.ports, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)[0]
                np.testing.assert_allclose(np.concatenate(got, 2), whole, rtol=0, atol=2e-5 * np.abs(whole).max())
                seen.add(case.mechanism)
        self.assertLessEqual({"softmax", "relu", "cosformer", "leap", "linear", "performer", "local", "s4d", "ssru"}, seen)

    def test_a_loop_of_the_graph_decodes_token_by_token(self):
        case = Case("relu", "decoder.self", True)
        shape = helper.make_tensor("shape", TensorProto.INT64, [2], [B, 0])
        zero = helper.make_tensor("zero", TensorProto.UINT8, [1], [0])
        names = ["q", "k", "v"]
        body = helper.make_graph(
            [helper.make_node("Unsqueeze", ["i", "axis0"], ["at"]),
             *(helper.make_node("Gather", [n, "at"], [f"{n}_row"], axis=2) for n in names),
             attnkit.onnx.block("relu", {**{n: f"{n}_row" for n in names}, "k_pos": "i", "state": "state_in"}, ["o_row", "state_next"],
                                capacity=ROWS, **case.attributes),
             helper.make_node("Identity", ["go"], ["go_on"])],
            "body", [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                     helper.make_tensor_value_info("state_in", TensorProto.UINT8, [None, None])],
            [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
             helper.make_tensor_value_info("state_next", TensorProto.UINT8, [None, None]),
             helper.make_tensor_value_info("o_row", TensorProto.FLOAT, [None] * 4)])
        nodes = [helper.make_node("Constant", [], ["axis0"], value=helper.make_tensor("", TensorProto.INT64, [1], [0])),
                 helper.make_node("Constant", [], ["size"], value=shape),
                 helper.make_node("ConstantOfShape", ["size"], ["empty"], value=zero),
                 helper.make_node("Constant", [], ["n"], value=helper.make_tensor("", TensorProto.INT64, [], [ROWS])),
                 helper.make_node("Loop", ["n", "", "empty"], ["last", "rows"], body=body)]
        rows, = session(nodes, case.ports, ["rows"]).run(["rows"], case.ports)
        whole = case.direct(case.ports, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)[0]
        np.testing.assert_allclose(np.concatenate(rows, 2), whole, rtol=0, atol=1e-5)

    def test_a_state_that_stays_in_its_buffer(self):
        case = Case("softmax", "decoder.self", True, flags=ATTN_STREAM)
        inputs = {**case.ports, "k_pos": np.array([0]), "state": np.zeros((B, 1), np.uint8)}
        step = session([case.node(inputs, ["o", "state_out"], capacity=ROWS)], inputs, ["o", ("state_out", "uint8")])
        info = case.block.plan(case.block.request(B, 1, 1, past=ROWS - 1, flags=ATTN_STREAM))
        state = onnxruntime.OrtValue.ortvalue_from_shape_and_type((B, info.state_bytes), np.uint8)
        state.update_inplace(np.zeros((B, info.state_bytes), np.uint8))
        got = []
        for pos in range(ROWS):
            bound = step.io_binding()
            for name, x in case.ports.items():
                bound.bind_cpu_input(name, np.ascontiguousarray(x[:, :, pos:pos + 1]))
            bound.bind_cpu_input("k_pos", np.array([pos]))
            bound.bind_ortvalue_input("state", state)
            bound.bind_ortvalue_output("state_out", state)
            bound.bind_output("o")
            step.run_with_iobinding(bound)
            got.append(bound.copy_outputs_to_cpu()[1])
        case.flags &= ~ATTN_STREAM
        whole = case.direct(case.ports, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)[0]
        np.testing.assert_allclose(np.concatenate(got, 2), whole, rtol=0, atol=1e-5)

    def test_keys_of_a_source_are_appended_once_and_read_often(self):
        case = Case("relu", "decoder.cross", False, flags=ATTN_STREAM)
        inputs = {**case.ports, "k_pos": np.array([0]), "state": np.zeros((B, 1), np.uint8)}
        filled, = session([case.node(case.ports, ["o", "state_out"], capacity=ROWS)], case.ports, [("state_out", "uint8")]).run(
            None, {**case.ports, "q": case.ports["q"][:, :, :0]})
        nothing = {name: case.ports[name][:, :, :0] for name in ("k", "v")}
        o, = run(case.node(inputs, ["o"], capacity=ROWS), {**case.ports, **nothing, "k_pos": np.array([ROWS]), "state": filled})
        case.flags &= ~ATTN_STREAM
        whole = case.direct(case.ports, ROWS, ROWS, q_total=[ROWS] * B, k_total=[ROWS] * B)[0]
        np.testing.assert_allclose(o, whole, rtol=0, atol=1e-5)


class Errors(unittest.TestCase):
    def setUp(self):
        self.rows = Case("softmax", "decoder.cross", False).ports

    def refused(self, pattern, inputs=None, outputs=("o",), names=("q", "k", "v"), mechanism="softmax", given=None, **attributes):
        inputs = self.rows if inputs is None else inputs
        attributes = {"heads": HEADS, "d_model": HEADS * WIDTH, "role": "decoder.cross", **attributes}
        named = attnkit.onnx.block(mechanism, {n: n for n in names}, [o if isinstance(o, str) else o[0] for o in outputs], "here",
                                   **{k: v for k, v in attributes.items() if v is not None})
        with self.assertRaisesRegex(Exception, pattern) as caught:
            run(named, inputs if given is None else given, outputs)
        self.assertNotIn("\n", str(caught.exception).strip())

    def test_attributes(self):
        self.refused('attnkit.Block "here": no mechanism "softmix".*softmax', mechanism="softmix")
        self.refused('role "encoder": one of encoder.self', role="encoder")
        self.refused('attribute "heads" is 0', heads=None)
        self.refused('attribute "heads" must be an integer', heads="four")
        self.refused('attribute "mechanism" must be a string', mechanism=3)
        self.refused('attribute "role" must be a string', role=1.5)
        for values in ([2], [0.5], ["2"], helper.make_tensor("", TensorProto.INT64, [], [2])):
            self.refused('attribute "kv_heads" must be an integer', kv_heads=values)
            self.refused('attribute "options" must be a string', options=values)
        self.refused('"d_model" and "key_width"', d_model=None)
        self.refused("3 heads do not divide d_model 64", heads=3)
        self.refused("bias", options="bias = 1")
        self.refused('"d_model" is 46', heads=2**31 - 1, key_width=2**31 - 1, d_model=None)
        self.refused('"heads" is 4294967296, possible are', heads=2**32)
        self.refused('"capacity" is -1', capacity=-1)
        self.refused("causal 2", role="decoder.self", causal=2)
        self.assertRaisesRegex(TypeError, "no attribute 'rolle': it has capacity", attnkit.onnx.block, "softmax", ["q", "k", "v"], ["o"], rolle="a")

    def test_what_a_mechanism_refuses(self):
        self.refused("bigbird", mechanism="bigbird", role="decoder.self")

    def test_names_of_inputs(self):
        self.refused('softmax has no input "x": q k v q_len', names=("q", "k", "x"), given={**self.rows, "x": self.rows["q"]})
        self.refused('port "v" of softmax has no input: "q k" are named', names=("q", "k"), inputs={n: self.rows[n] for n in ("q", "k")})
        self.refused('"state" needs the attribute "capacity"', names=("q", "k", "v", "state"),
                     given={**self.rows, "state": np.zeros((B, 64), np.uint8)})
        for more in ((), ("q_pos",)):  # that of the queries of a target says nothing of the keys of a source
            self.refused('"state" needs "k_pos"', names=("q", "k", "v", *more, "state"), capacity=ROWS,
                         given={**self.rows, **{name: np.array([0]) for name in more}, "state": np.zeros((B, 64), np.uint8)})

    def test_names_that_do_not_count(self):
        node = helper.make_node("Block", ["q", "k", "v"], ["o"], domain="attnkit", mechanism="softmax", heads=HEADS, key_width=WIDTH, names="q k")
        with self.assertRaisesRegex(Exception, 'the node has 3 inputs, and 2 are named: "q k"'):
            run(node, self.rows)
        node = helper.make_node("Block", ["q", "k", "v"], ["o"], domain="attnkit", mechanism="softmax", heads=HEADS, key_width=WIDTH,
                                names="q k k")
        with self.assertRaisesRegex(Exception, '"k" is named twice'):
            run(node, self.rows)

    def test_outputs_that_no_one_makes(self):
        self.refused("the node has 3 outputs, and softmax gives at most 2, of which the second is the state",
                     outputs=("o", ("state_out", "uint8"), "x"))

    def test_tensors(self):
        q = self.rows["q"]
        half = {n: x.astype(np.float16) for n, x in self.rows.items()}
        self.refused('input "q" is float16: attnkit.Block computes in float32; put a Cast before it', inputs=half)
        self.refused('input "q" is float64', inputs={**self.rows, "q": q.astype(np.float64)})
        wanted = r'\(batch, 4, rows, 16\) or \(batch, rows, 64\) is needed'
        self.refused(rf'input "q" has shape \(2, 24, 64, 1, 1\): {wanted}', inputs={**self.rows, "q": q.reshape(2, 24, 64, 1, 1)})
        self.refused(rf'input "q" has shape \(2, 24, 32\): {wanted}', inputs={**self.rows, "q": np.zeros((2, 24, 32), np.float32)})
        self.refused(rf'input "k" has shape \(2, 2, 24, 16\): {wanted}', inputs={**self.rows, "k": self.rows["k"][:, :2]})
        self.refused(rf'input "v" has shape \(2, 4, 24, 15\): {wanted}', inputs={**self.rows, "v": self.rows["v"][..., :15]})
        self.refused('port "k" has size 3 in dimension 0, not 2', inputs={**self.rows, "k": np.zeros((3, HEADS, ROWS, WIDTH), np.float32)})
        self.refused('port "v" has size 5 in dimension 2, not 24', inputs={**self.rows, "v": self.rows["v"][:, :, :5]})

    def test_numbers(self):
        names = ("q", "k", "v", "k_len")
        self.refused(r"k_len\[0\] is 25, possible are 0 to 24", names=names, given={**self.rows, "k_len": np.array([25, 1])})
        self.refused(r'"k_len" has shape \(3\): \(2\) is needed, or one number for all', names=names, given={**self.rows, "k_len": np.array([1, 1, 1])})
        self.refused('"k_len" is float32: int32 or int64', names=names, given={**self.rows, "k_len": np.ones(2, np.float32)})
        self.refused('"k_len" has 1e', names=names, given={**self.rows, "k_len": np.array([10**12, 1])})
        for shape in ((ROWS, B), (B * ROWS,)):
            self.refused(r'"visible" has shape \(.*\): \(2, 24\) is needed', names=("q", "k", "v", "visible"),
                         given={**self.rows, "visible": np.full(shape, ROWS)})

    def test_states(self):
        names, k_pos = ("q", "k", "v", "k_pos", "state"), np.array([0])
        self.refused(r'input "state" is uint8 \(2, 64\): uint8 \(2, 12288\) is needed.*or \(2, 0\)', names=names, capacity=ROWS,
                     given={**self.rows, "k_pos": k_pos, "state": np.zeros((B, 64), np.uint8)})
        self.refused('"k_pos" says that the state holds 3 keys, and it is empty', names=names, capacity=ROWS + 3,
                     given={**self.rows, "k_pos": k_pos + 3, "state": np.zeros((B, 0), np.uint8)})
        self.refused("24 keys are more than the capacity 5", capacity=5)
        self.refused("exceed the capacity 24", names=names, capacity=ROWS,
                     given={**self.rows, "k_pos": k_pos + 1, "state": np.zeros((B, 12288), np.uint8)})
        self.refused('output 1 is the state, which needs the attribute "capacity"', outputs=("o", ("state_out", "uint8")))

    def test_a_failed_run_does_not_end_the_session(self):
        case = Case("softmax", "decoder.cross", False)
        on = session([case.node(self.rows, ["o"])], self.rows, ["o"])
        good = on.run(None, self.rows)[0]
        for _ in range(3):
            with self.assertRaises(Exception):
                on.run(None, {**self.rows, "v": self.rows["v"][:1]})
            self.assertEqual(on.run(None, self.rows)[0].tobytes(), good.tobytes())

    def test_a_runtime_that_is_too_old_is_refused(self):
        said = []
        status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(lambda code, text: said.append((code, text.decode())) or 1)
        table = (ctypes.c_void_p * 102)(ctypes.cast(status, ctypes.c_void_p))
        api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda version: ctypes.addressof(table) if version <= 16 else None)
        version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(name))
        name = ctypes.create_string_buffer(b"1.16.3")
        base = (ctypes.c_void_p * 2)(ctypes.cast(api, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p))
        register = ctypes.CDLL(attnkit.onnx.library()).RegisterCustomOps
        register.argtypes, register.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_void_p
        self.assertEqual(register(None, ctypes.addressof(base)), 1)
        self.assertEqual(said, [(9, "onnxruntime 1.16.3 is too old: attnkit.Block needs 1.17 or later")])


if __name__ == "__main__":
    unittest.main()
