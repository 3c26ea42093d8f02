"""numpy arrays are read and written where they are, by the buffer protocol and by DLPack."""

import array
import gc
import os
import pathlib
import unittest

import attnkit
import numpy as np
from attnkit import _tensor

MODEL = pathlib.Path(os.environ["ATTNKIT_SAMPLE"]) / "model.toml"
RUNTIME = attnkit.Runtime(threads=2)
RANDOM = np.random.default_rng(1)


class ByDLPack:
    """An array that shows no buffer."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __len__(self):
        return len(self.array)


class Numpy(unittest.TestCase):
    def test_sessions(self):
        model = attnkit.Model(RUNTIME, MODEL)
        source = np.array([*model.tokenize(attnkit.SOURCE, "half past three"), model.info.end_id], np.int32)
        logits, made = np.empty((1, 1, model.info.outputs), np.float32), []
        for values in (source, source[None], ByDLPack(source), source.astype(np.int64), np.repeat(source, 2)[::2]):
            session, tokens = attnkit.Session(model, 1), [model.info.begin_id]
            session.read(values)
            while tokens[-1] != model.info.end_id:
                self.assertIs(session.write(np.array([tokens[-1:]], np.int32), out=logits), logits)
                tokens.append(int(logits.argmax()))
            made.append(tokens)
        self.assertEqual(made, [made[0]] * 5)
        self.assertEqual(model.detokenize(attnkit.TARGET, np.array(made[0], np.int32)), "halb vier")
        view = np.asarray(attnkit.Session.load(model, session.save()).clone().write([[]]))
        self.assertEqual(view.size, 0)

    def test_results_are_arrays_without_a_copy(self):
        model = attnkit.Model(RUNTIME, MODEL)
        view = model.forward(np.array([[5, 2]], np.int32), np.array([[1, 8]], np.int32))
        array = np.asarray(view)
        self.assertEqual((array.shape, array.dtype), ((1, 2, model.info.outputs), np.float32))
        array[0, 0, 0] = 42
        self.assertEqual(view.tolist()[0][0][0], 42)

    def test_results_have_a_buffer(self):
        model = attnkit.Model(RUNTIME, MODEL)
        result = model.forward([[5, 2]], [[1, 8]])
        self.assertIsInstance(result, attnkit.Result)
        self.assertEqual(memoryview(result).shape, (1, 2, model.info.outputs))
        self.assertEqual(bytes(result), result.tobytes())
        copy = array.array("f")
        copy.frombytes(memoryview(result).cast("B"))
        self.assertEqual(copy.tolist(), [x for row in result.tolist()[0] for x in row])
        result[0, 1, 3] = 7.5
        self.assertEqual(np.frombuffer(result, np.float32).reshape(result.shape)[0, 1, 3], 7.5)

    def test_results_live_as_long_as_what_shares_them(self):
        block = attnkit.Block(RUNTIME, "softmax", "encoder.self", 16, 2)
        inputs = {name: RANDOM.standard_normal((1, 2, 300, 8), np.float32) for name in "qkv"}
        result = block.run(block.request(1, 300, 300), inputs).output
        kept, taken, copied = np.array(result), np.from_dlpack(result), np.from_dlpack(result, copy=True)
        self.assertEqual(taken.ctypes.data, np.asarray(result).ctypes.data)
        self.assertNotEqual(taken.ctypes.data, copied.ctypes.data)
        before = len(_tensor._lent_out)
        del result
        gc.collect()
        rest = [block.run(block.request(1, 300, 300), inputs | {"q": np.zeros((1, 2, 300, 8), np.float32)}) for _ in range(20)]
        np.testing.assert_array_equal(taken, kept)
        del taken, copied
        gc.collect()
        self.assertEqual(len(_tensor._lent_out), before - 2)
        rest[0].output.__dlpack__()  # a capsule that nobody takes
        self.assertEqual(len(_tensor._lent_out), before - 2)
        with self.assertRaisesRegex(BufferError, "results are on the CPU"):
            rest[0].output.__dlpack__(dl_device=(2, 0))

    def test_block_of_strided_arrays(self):
        block = attnkit.Block(RUNTIME, "softmax", "encoder.self", 16, 2)
        q, k, v = (RANDOM.standard_normal((3, 5, 2, 8), np.float32).transpose(0, 2, 1, 3) for _ in range(3))
        out = np.zeros((3, 5, 2, 8), np.float32).transpose(0, 2, 1, 3)
        block.run(block.request(3, 5, 5), {"q": q, "k": ByDLPack(k), "v": v, "o": out})
        weights = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(8))
        np.testing.assert_allclose(out, weights / weights.sum(-1, keepdims=True) @ v, atol=1e-5)

    def test_fields_of_packed_records(self):
        model, ids = attnkit.Model(RUNTIME, MODEL), [5, 6, 2]
        packed = np.array([(1, i) for i in ids], np.dtype([("x", "i1"), ("id", "<i4")]))
        with self.assertRaisesRegex(attnkit.Error, r"strides of \(5,\) bytes, no multiples of its items' 4"):
            attnkit.Session(model, 1).read(packed["id"])
        block, zeros = attnkit.Block(RUNTIME, "softmax", "encoder.self", 16, 2), np.zeros((1, 2, 5, 8), np.float32)
        with self.assertRaisesRegex(attnkit.Error, "no multiples"):
            block.run(block.request(1, 5, 5), {"q": np.zeros((1, 2, 5, 8), np.dtype([("x", "i1"), ("q", "<f4")]))["q"], "k": zeros, "v": zeros})

    def test_a_false_of_numpy_ends_a_sample(self):
        model = attnkit.Model(RUNTIME, MODEL)
        made, seen = [], []
        for each in (lambda token: seen.append(token) or np.bool_(False), lambda token: seen.append(token) or np.int64(0)):
            session = attnkit.Session(model, 1)
            session.read([*model.tokenize(attnkit.SOURCE, "half past three"), model.info.end_id])
            made.append(session.sample(each=each))
        self.assertEqual((len(made[0]), made[1][:1]), (1, made[0]))
        self.assertGreater(len(made[1]), 1)

    def test_gradient_in_float64(self):
        block = attnkit.Block(RUNTIME, "relu", "encoder.self", 8, 2)
        request = block.request(1, 4, 4, flags=attnkit.TRAIN, dtype="float64")
        tensors = {name: RANDOM.standard_normal((1, 2, 4, 4)) for name in "qkv"}
        do, dv = RANDOM.standard_normal((1, 2, 4, 4)), np.zeros((1, 2, 4, 4))
        run = block.run(request, tensors)
        block.backward(run, {"o": do, "v": dv})
        step = np.zeros((1, 2, 4, 4))
        step[0, 1, 2, 3] = 1e-6
        more, less = (np.array(block.run(request, {**tensors, "v": tensors["v"] + d}).output) for d in (step, -step))
        self.assertAlmostEqual(((more - less) * do).sum() / 2e-6, dv[0, 1, 2, 3], places=6)

    def test_refused(self):
        block = attnkit.Block(RUNTIME, "softmax", "encoder.self", 16, 2)
        zeros = np.zeros((1, 2, 5, 8), np.float32)
        for wrong in (zeros.astype(np.float16), zeros[..., ::2], np.zeros((1, 1, 1, 1, 1), np.float32)):
            with self.assertRaises(attnkit.Error):
                block.run(block.request(1, 5, 5), {"q": wrong, "k": zeros, "v": zeros})


if __name__ == "__main__":
    unittest.main()
