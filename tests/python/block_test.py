"""attnkit.Block: one mechanism by itself, its runs and its gradients."""

import array
import copy
import os
import pickle
import unittest

import attnkit
from arrays import Lent, shaped
from attnkit._abi import ATTN_KEY, ATTN_LEARNED, ATTN_OUTPUT, ATTN_QUERY, attn_request, sized
from attnkit.block import options_text
from support import RUNTIME, PackageTest


def column(*values):
    """(1 row, 1 head, n, width 1)."""
    return shaped(values, 1, 1, len(values), 1)


def flat(view):
    return view.cast("B").cast("f").tolist()


class Block(PackageTest):
    def test_ports(self):
        with attnkit.Block(RUNTIME, "leap", "decoder.cross", 32, 4, options="factor = 2") as block:
            kinds = {port.name: (port.kind, port.shape) for port in block.ports}
        self.assertEqual(kinds["q"], (ATTN_QUERY, (0, 4, 0, 8)))
        self.assertEqual(kinds["k"], (ATTN_KEY, (0, 4, 0, 8)))
        self.assertEqual(kinds["q_w1"], (ATTN_LEARNED, (4, 8)))
        self.assertEqual([kind for kind, _ in kinds.values()].count(ATTN_OUTPUT), 1)

    def test_keys_of_their_own(self):
        block = attnkit.Block(RUNTIME, "softmax", "decoder.self", 8, 4, kv_heads=2, key_width=3)
        shapes = {port.name: port.shape for port in block.ports}
        self.assertEqual([shapes[name] for name in "qkv"], [(0, 4, 0, 3), (0, 2, 0, 3), (0, 2, 0, 3)])

    def test_fill_and_plan(self):
        block = attnkit.Block(RUNTIME, "leap", "decoder.cross", 32, 4)
        port = next(port for port in block.ports if port.kind == ATTN_LEARNED)
        made, mine = block.fill(port, 7), memoryview(array.array("f", bytes(4 * port.shape[0] * port.shape[1]))).cast("B").cast("f", port.shape)
        self.assertEqual(made.shape, port.shape)
        self.assertIs(block.fill(port, 7, mine), mine)
        self.assertEqual(made.tolist(), mine.tolist())
        self.assertTrue(any(mine.tolist()[0]))
        self.refused("contiguous array of float32 (2, 8), not int32 (3,)", block.fill, port, 7, array.array("i", [1, 2, 3]))
        self.assertGreater(block.plan(block.request(queries=5, keys=6)).flops, 0)

    def test_refusals(self):
        self.refused("5 heads do not divide d_model 32", attnkit.Block, RUNTIME, "relu", "encoder.self", 32, 5)
        self.refused("role 'self'", attnkit.Block, RUNTIME, "relu", "self", 32, 4)
        self.refused("did you mean \"relu\"", attnkit.Block, RUNTIME, "reluu", "encoder.self", 32, 4)
        block = attnkit.Block(RUNTIME, "relu", "encoder.self", 32, 4)
        self.refused("workers", block.plan, sized(attn_request))
        block.close()
        self.refused("closed", block.plan, sized(attn_request))

    def causal(self):
        """relu with one head of width 1, and q, k, v of three tokens: the numbers of samples/c/decode.c."""
        block = attnkit.Block(RUNTIME, "relu", "decoder.self", 1, 1)
        return block, {"q": column(1, 1, 1), "k": column(1, 3, 4), "v": column(10, 20, 40)}

    def test_run(self):
        block, tensors = self.causal()
        request = block.request(queries=3, keys=3)
        self.assertEqual(flat(block.run(request, tensors).output), [10, 17.5, 28.75])
        out = column(0, 0, 0)
        self.assertIs(block.run(request, {**tensors, "o": out}).output, out)
        self.assertEqual(flat(out), [10, 17.5, 28.75])
        self.assertEqual(flat(block.run(request, tensors, k_len=[0], q_len=[1]).output), [0, 0, 0])

    def test_run_with_a_state(self):
        block, tensors = self.causal()
        request = block.request(past=2, flags=attnkit.STREAM)
        state, given = attnkit.aligned(block.plan(request).state_bytes), []
        for t in range(3):
            one = {name: column(flat(values)[t]) for name, values in tensors.items()}
            given += flat(block.run(request, one, q_pos=[t], k_pos=[t], state=state).output)
        self.assertEqual(given, [10, 17.5, 28.75])
        self.assertEqual(state.cast("B").cast("f").tolist()[:2], [230, 8])

    def test_strides_are_used_as_they_are(self):
        # (1, 3, 2, 4) as (1, 2, 3, 4): heads side by side in a row, as projections make them.
        block = attnkit.Block(RUNTIME, "softmax", "encoder.self", 8, 2)
        request, rows = block.request(queries=3, keys=3), [[i * 0.1 + j * 0.01 for j in range(8)] for i in range(3)]
        sideways = Lent(sum(rows, []), (1, 2, 3, 4), (24, 4, 8, 1))
        upright = shaped([x for h in range(2) for row in rows for x in row[4 * h:4 * h + 4]], 1, 2, 3, 4)
        expected = block.run(request, dict.fromkeys("qkv", upright)).output
        self.assertEqual(block.run(request, dict.fromkeys("qkv", sideways)).output.tolist(), expected.tolist())

    def test_backward(self):
        block, tensors = self.causal()
        run = block.run(block.request(queries=3, keys=3, flags=attnkit.TRAIN), tensors)
        dv = column(0, 0, 0)
        block.backward(run, {"o": column(0, 0, 1), "v": dv})
        self.assertEqual(flat(dv), [0.125, 0.375, 0.5])  # the weights of the last query: k / (1 + 3 + 4)
        block.backward(run, {"o": column(0, 0, 1).toreadonly(), "v": dv})
        self.refused('port "v" is written to: it must not be read-only', block.backward, run, {"o": column(0, 0, 1), "v": dv.toreadonly()})

    def test_a_request_changed_after_its_run(self):
        block, tensors = self.causal()
        request = block.request(queries=3, keys=3, flags=attnkit.TRAIN)
        run, dv = block.run(request, tensors), column(0, 0, 0)
        request.queries = request.keys = 3000
        block.backward(run, {"o": column(0, 0, 1), "v": dv})
        self.assertEqual(flat(dv), [0.125, 0.375, 0.5])

    def test_refused_runs(self):
        block, tensors = self.causal()
        request = block.request(queries=3, keys=3)
        self.refused('no port "x"'.replace('"', "'"), block.run, request, {"x": column(1)})
        self.refused('port "v" of relu needs a tensor', block.run, request, {"q": tensors["q"], "k": tensors["k"]})
        self.refused("q_pos has 2 entries for a batch of 1", block.run, request, tensors, q_pos=[0, 0])
        self.refused("not list", block.run, request, {**tensors, "v": [1, 2, 3]})
        self.refused("read-only", block.run, request, {**tensors, "o": tensors["v"].toreadonly()})
        self.refused("slots are places in a state, and this run has none", block.run, request, tensors, slots=[0])
        self.refused('no mechanism "zzz"; found: ', attnkit.Block, RUNTIME, "zzz", "decoder.self", 1, 1)
        self.refused("state must be bytes", block.run, request, tensors, state=column(1))
        step, one = block.request(past=2, flags=attnkit.STREAM), {name: column(1) for name in "qkv"}
        two = attnkit.aligned(block.plan(step).state_bytes, 2)
        gaps = Lent([0] * 128, (1, 64), (128, 2), "B")
        gaps.tensor.code, gaps.tensor.bits = 1, 8
        self.refused("state (1, 64) has gaps", block.run, step, one, state=gaps)
        for slot in (2, -1):
            self.refused(f"slot {slot} of a state with 2 rows", block.run, step, one, state=two, slots=[slot])
        pair = {name: shaped((1, 1), 2, 1, 1, 1) for name in "qkv"}
        wide = block.request(batch=2, past=2, flags=attnkit.STREAM)
        self.refused("slot 1 of a state with 1 rows", block.run, wide, pair, state=attnkit.aligned(64))
        self.refused("slots [0, 0]", block.run, wide, pair, state=two, slots=[0, 0])
        self.refused("both must be at least 1", attnkit.aligned, 0)
        self.refused("float32 or float64", block.request, dtype="half")
        other, train = attnkit.Block(RUNTIME, "linear", "decoder.self", 1, 1), block.request(queries=3, keys=3, flags=attnkit.TRAIN)
        self.refused("this run is one of another block, of linear", block.backward, other.run(train, tensors), {"o": column(0, 0, 1)})
        self.assertRaisesRegex(TypeError, "run must be an attnkit.Run, not dict", block.backward, tensors, {})
        error = self.refused('port "v" has size 3', block.run, request, {**tensors, "k": column(1, 3)})
        self.assertEqual((error.where, block.ports[error.where].name), (2, "v"))

    def test_integers_that_c_would_wrap(self):
        make = lambda **more: attnkit.Block(RUNTIME, "relu", "decoder.self", **{"d_model": 8, "heads": 1, **more})
        for name, value in (("heads", 2**32 + 1), ("d_model", 2**32 + 8), ("key_width", 2**32 + 8), ("head_width", -2**31 - 1)):
            self.refused(f"{name} {value}: it must be -2147483648 to 2147483647", make, **{name: value})
        self.refused(f"kv_heads {2**32 + 1}: it must be 0 to 4294967295", make, kv_heads=2**32 + 1)
        block, tensors = self.causal()
        self.refused(f"queries {2**64 + 3}: it must be -9223372036854775808 to 9223372036854775807", block.request, queries=2**64 + 3)
        request = block.request(queries=3, keys=3)
        self.refused(f"q_len[0] {2**32 + 1}: it must be -2147483648 to 2147483647", block.run, request, tensors, q_len=[2**32 + 1])
        port = attnkit.Block(RUNTIME, "leap", "decoder.cross", 32, 4).ports[-1]
        for seed in (-1, 2**64):
            self.refused(f"seed {seed}: it must be 0 to 18446744073709551615", block.fill, port, seed)

    def test_wrong_types(self):
        block = attnkit.Block(RUNTIME, "relu", "decoder.self", 8, 1)
        for said, function, arguments in (
                ("runtime must be an attnkit.Runtime, not NoneType", attnkit.Block, (None, "relu", "decoder.self", 8, 1)),
                ("mechanism must be a str, not bytes", attnkit.Block, (RUNTIME, b"relu", "decoder.self", 8, 1)),
                ("d_model must be an int, not str", attnkit.Block, (RUNTIME, "relu", "decoder.self", "8", 1)),
                ("batch must be an int, not float", block.request, (1.0,)),
                ("request must be an attnkit.attn_request, not NoneType", block.run, (None, {})),
                ("NoneType", block.run, (block.request(), None)),
                ("port must be an attnkit.Port, not str", block.fill, ("q", 1))):
            with self.subTest(said):
                self.assertRaisesRegex(TypeError, said, function, *arguments)

    def test_options_as_toml(self):
        self.assertEqual(options_text({"a": 1, "b": 1e-7, "c": True, "d": "ß\"\n"}), 'a = 1, b = 1e-07, c = true, d = "ß\\"\\n"')


class Errors(PackageTest):
    """Every class of error, of the plugin tests/abi/failing/fails.c."""

    def fail(self, options):
        with attnkit.Runtime(threads=1, plugin_path=os.environ["ATTNKIT_TEST_FAILING"]) as runtime:
            block = attnkit.Block(runtime, "fails", "encoder.self", 1, 1, options=options)
            request = block.request(queries=1, keys=1)
            block.plan(request)
            block.run(request, {"v": column(1)})

    def test_classes(self):
        codes = {1: attnkit.INVALID, 2: attnkit.UNSUPPORTED, 3: attnkit.NO_MEMORY, 4: attnkit.DEVICE, 5: attnkit.INTERNAL}
        for place in ("create", "plan", "run"):
            for number, code in codes.items():
                self.refused(f"fails: told to fail in {place}", self.fail, f"code = {number}, in = '{place}'", code=code)
            self.refused("returned code 77", self.fail, f"code = 77, in = '{place}'", code=attnkit.INTERNAL)

    def test_errors_of_other_processes(self):
        said = attnkit.Diagnostic("error", 1, 2, 3, 4, "wrong", "")
        error = attnkit.Error(attnkit.INVALID, "a message", 2, [said])
        for made in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            self.assertEqual((type(made), str(made), made.code, made.message, made.where, made.diagnostics),
                             (attnkit.Error, "a message", attnkit.INVALID, "a message", 2, (said,)))

    def test_memory_that_there_is_not(self):
        self.refused("2305843009213693952 bytes of scratch", self.fail, "in = 'scratch'", code=attnkit.NO_MEMORY)


if __name__ == "__main__":
    unittest.main()
