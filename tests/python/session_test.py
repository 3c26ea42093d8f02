"""Session: greedy decoding by hand against generate, copies, rows, saved bytes, growing sources, policies, refusals."""

import array
import unittest

import attnkit
from attnkit.incremental import best
from support import RUNTIME, SAMPLE, TEXTS, PackageTest


class Session(PackageTest):
    def setUp(self):
        super().setUp()
        self.model = self.tiny()
        self.source = self.ids(self.model, TEXTS[-1])

    def begun(self, rows=1, model=None):
        session = attnkit.Session(model or self.model, rows)
        session.read(self.source)
        return session

    def greedy(self, session, token):
        """write and argmax, as generate does it."""
        made = []
        while not made or made[-1] != self.model.info.end_id and len(made) < len(self.source) * 3 // 2 + 20:
            made.append(best(session.write([[made[-1] if made else token]])))
        return made

    def test_write_is_generate(self):
        expected = self.begun().generate()
        self.assertGreater(len(expected), 2)
        self.assertEqual(self.greedy(self.begun(), self.model.info.begin_id), expected)
        self.assertEqual(self.begun().generate(2), expected[:2])
        self.assertEqual(self.begun().generate(1 << 40), self.begun().generate(self.model.info.max_length))

    def test_sample(self):
        expected, seen = self.begun().generate(), []
        self.assertEqual(self.begun().sample(), expected)
        self.assertEqual(self.begun().sample(each=lambda token: seen.append(token) or len(seen) < 2), expected[:2])
        self.assertEqual(seen, expected[:2])
        text = lambda ids: self.model.detokenize(attnkit.TARGET, ids)
        self.assertEqual(self.begun().sample(stops=["nowhere", text(expected[1:2]).strip()]), expected[:2])
        self.refused("empty", self.begun().sample, stops=[""])
        self.assertRaisesRegex(TypeError, "stops must be a sequence of str", self.begun().sample, stops="halb")
        self.refused("NUL", self.begun().sample, stops=["a\0"])
        hot = [self.begun().sample(temperature=1000, seed=seed, limit=8) for seed in (1, 1, 2)]
        self.assertEqual(hot[0], hot[1])
        self.assertNotEqual(hot[0], hot[2])
        with self.assertRaises(ZeroDivisionError):
            self.begun().sample(each=lambda token: 1 // 0)

    def test_integers_that_c_would_wrap(self):
        for rows in (-1, 1025, 2**32 + 1):
            self.refused(f"rows {rows}: it must be 0 to 1024", attnkit.Session, self.model, rows)
            self.refused(f"beams {rows}: it must be 0 to 1024", self.model.translate, TEXTS[0], rows)
        session = self.begun()
        self.refused(f"parents[0] {2**32}: it must be 0 to 4294967295", session.reorder, [2**32])
        for name in ("top_k", "seed", "stream"):
            self.refused(f"{name} -1: it must be 0 to 18446744073709551615", session.sample, **{name: -1})
        self.refused(f"ends[0] {2**64 + 1}: it must be", attnkit.Session(self.model, 1).simulate, self.source, lambda view: 0, ends=[2**64 + 1])
        self.assertEqual(session.generate(), self.begun().generate())

    def test_wrong_types(self):
        session = self.begun()
        for said, function, arguments in (
                ("model must be an attnkit.Model, not NoneType", attnkit.Session, (None,)),
                ("model must be an attnkit.Model, not Session", attnkit.Session, (session,)),
                ("model must be an attnkit.Model, not NoneType", attnkit.Session.load, (None, session.save())),
                ("rows must be an int, not float", attnkit.Session, (self.model, 1.0)),
                ("limit must be an int, not str", session.generate, ("8",)),
                (r"parents\[0\] must be an int, not str", session.reorder, ("0",)),
                ("target_length must be a number, not str", session.set_length, ("8",)),
                (r"sessions\[0\] must be an attnkit.Session, not int", attnkit.read_all, ([3], [[5, 2]])),
                (r"sessions\[1\] must be an attnkit.Session, not NoneType", attnkit.write_all, ([session, None], [[1], [1]])),
                (r"sessions\[0\] must be an attnkit.Session, not str", attnkit.generate_all, ("one",)),
                ("policy must be a str, not int", attnkit.policy_named, (3,)),
                ("policy must be a function of a View, .* not str", attnkit.open_streaming, (RUNTIME, SAMPLE, "wait-k:3"))):
            with self.subTest(said):
                self.assertRaisesRegex(TypeError, said, function, *arguments)

    def test_buffers_are_ids(self):
        ids = array.array("i", self.source)
        for source in (ids, memoryview(ids), memoryview(ids).cast("B").cast("i", (1, len(ids))), tuple(ids), array.array("q", ids)):
            session = attnkit.Session(self.model, 1)
            session.read(source)
            self.assertEqual(session.generate(), self.begun().generate())

    def test_speech_reaches_the_library_as_float32(self):
        # This model takes ids, and says so: what was handed over was a tensor of another type.
        frames = memoryview(array.array("f", range(6))).cast("B").cast("f", (1, 3, 2))
        for speech in (array.array("f", [0.5, 1]), memoryview(array.array("f", [0.5])).cast("B").cast("f", (1, 1)), frames):
            self.refused("int32", attnkit.Session(self.model).read, speech)
        self.refused("samples are (S) or (1, S)", attnkit.Session(self.model).read, frames.cast("B").cast("f", (3, 2)))

    def test_logits(self):
        session = self.begun(2)
        logits = session.write([[1], [1, 10]])
        self.assertEqual(logits.shape, (2, 2, self.model.info.outputs))
        self.assertEqual(logits.tolist()[0][0], logits.tolist()[1][0])
        self.assertIsNone(session.write([[10], [10]], logits=False))
        out = memoryview(array.array("f", bytes(8 * self.model.info.outputs))).cast("B").cast("f", (2, 1, self.model.info.outputs))
        self.assertIs(session.clone().write(memoryview(array.array("i", [1, 1])).cast("B").cast("i", (2, 1)), out=out), out)
        self.assertEqual(out.tolist(), session.clone().write([[1], [1]]).tolist())
        self.assertEqual(session.write([[], []]).nbytes, 0)
        self.assertEqual(session.describe()["position"], 2)

    def test_step(self):
        outputs = self.model.info.outputs
        one, other, outs = self.begun(), self.begun(), [array.array("f", bytes(4 * outputs)) for _ in range(2)]
        for i, token in enumerate([self.model.info.begin_id, 10, 11, 12]):
            wanted = one.write([[token]]).tolist()[0][0]
            fork = other.clone()
            for session in (other, fork):  # what a session keeps for its steps is its own
                session.step(token, outs[i % 2])
                self.assertEqual(outs[i % 2].tolist(), wanted)
            fork.step(13)
        self.assertEqual(other.save(), one.save())
        self.refused("vocabulary", other.step, 1 << 20)
        self.refused("32 bits", other.step, 1 << 40)
        self.refused("contiguous array of float32", other.step, 10, array.array("d", bytes(8 * outputs)))
        self.refused("read-only", other.step, 10, memoryview(bytes(4 * outputs)).cast("f"))
        self.refused("rows", self.begun(2).step, 10)
        self.assertEqual(other.save(), one.save())
        other.close()
        self.refused("closed", other.step, 10)

    def test_several_at_once(self):
        together, alone = [self.begun(), self.begun(2)], [self.begun(), self.begun(2)]
        tokens = [[1, 10], [1, 11], [1, 12]]
        logits = attnkit.write_all(together, tokens).tolist()
        self.assertEqual(logits, alone[0].write(tokens[:1]).tolist() + alone[1].write(tokens[1:]).tolist())
        read = [attnkit.Session(self.model, rows) for rows in (1, 2)]
        self.refused("2 sources and 0 of last for 1 sessions", attnkit.read_all, read[:1], [self.source, self.source])
        self.refused("session 1: a source that grows", attnkit.read_all, read, [self.source, self.source], [True, False])
        attnkit.read_all(read, [self.source, self.source])
        ended = {}
        going = [session.clone() for session in read]
        alone = [session.clone().generate() for session in read]
        while going:
            made = attnkit.generate_all(going, steps=2)
            ended |= {session.rows: ids for session, ids in zip(going, made) if ids}
            going = [session for session, ids in zip(going, made) if not ids]
        self.assertEqual([ended[1], ended[2]], alone)
        self.refused("no sessions: give at least one", attnkit.generate_all, [])
        self.refused("steps", attnkit.generate_all, read, 0, -1)
        self.assertEqual(logits, attnkit.write_all(read, tokens).tolist())
        self.refused("no sessions: give at least one", attnkit.write_all, [], [])
        self.refused("twice", attnkit.write_all, [together[0], together[0]], [[1], [1]])

    def test_a_refused_generate_leaves_no_limit(self):
        session = attnkit.Session(self.model)
        self.refused("no source", attnkit.generate_all, [session], 2)
        session.read(self.source)
        self.assertEqual(attnkit.generate_all([session]), [self.begun().generate()])

    def test_beams_look_back_at_what_they_wrote(self):
        keep = {self.model.info.begin_id, 5, 6}
        others = [i for i in range(self.model.info.outputs) if i not in keep]
        model = self.tiny("beams", extra=f"[decode]\nno_repeat = 1\nsuppress = {others}\n")
        for rows in (1, 2):
            session = self.begun(rows, model)
            session.write([[5]] * rows, logits=False)
            self.assertEqual(sorted(session.generate(3)), sorted(keep), rows)

    def test_states_of_rows_at_their_own_places(self):
        session = self.begun(2)
        session.write([[1], [1, 4, 5, 6]], logits=False)
        before = session.describe()["state_bytes"]
        session.reorder([1, 0])
        self.assertEqual(session.describe()["state_bytes"], before)

    def test_clone(self):
        session = self.begun()
        session.write([[1]])
        copy, expected = session.clone(), session.generate()
        self.assertEqual(copy.rows, 1)
        session.close()
        self.assertEqual(copy.generate(), expected)

    def test_reorder(self):
        session = self.begun(2)
        session.write([[1, 10], [1, 11]])
        swapped = session.clone()
        swapped.reorder([1, 0])
        self.assertEqual(swapped.write([[12], [13]]).tolist(), session.write([[13], [12]]).tolist()[::-1])
        self.refused("1 parents for 2 rows", session.reorder, [0])
        self.refused("2", session.reorder, [0, 2])

    def test_save_and_load(self):
        session = self.begun(2)
        session.write([[1, 10], [1, 11]])
        blob = session.save()
        loaded = attnkit.Session.load(self.model, memoryview(bytearray(blob)))
        self.assertEqual(loaded.rows, 2)
        self.assertEqual(loaded.write([[12], [13]]).tolist(), session.write([[12], [13]]).tolist())
        for bad in (b"", b"x" * 100, blob[:-1], blob[:200] + bytes([blob[200] ^ 1]) + blob[201:]):
            self.assertEqual(self.refused("", attnkit.Session.load, self.model, bad).code, attnkit.INVALID)
        other = self.tiny("other", seed=2)
        self.refused("weights", attnkit.Session.load, other, blob)

    def test_set_length(self):
        model = self.tiny("told", attention='default = "cosformer"', extra='[length]\npredict = "reference"\n')
        session = self.begun(model=model)
        self.refused("set the target length", session.write, [[1]])
        session.set_length(12.5)
        self.assertEqual(session.describe()["target_length"], 12.5)
        session.write([[1]])
        self.refused("before the first token", session.set_length, 3)

    def test_growing_source(self):
        model = self.tiny("stream", stream=True)
        session = attnkit.Session(model)
        session.read(self.source[:2], last=False)
        session.write([[1]])
        session.read(self.source[2:])
        described = session.describe()
        self.assertEqual((described["source_length"], described["reads"], described["source_complete"]), (len(self.source), 2, True))
        self.refused("complete", session.read, [3])
        self.refused("[stream]", attnkit.Session(self.model).read, [3], last=False)

    def test_wrong_values(self):
        session = self.begun()
        before = session.save()
        self.refused("id 99", session.write, [[99]])
        self.refused("id -1", session.write, [[-1]])
        self.refused("32 bits", session.write, [[1 << 40]])
        self.refused("2 rows", session.write, [[1], [1]])
        self.refused("max_length", session.write, [[10] * 65])
        self.refused("limit -1", session.generate, -1)
        for wrong in ("one", b"one"):
            self.refused("numbers are needed", session.read, wrong)
        for wrong in ([1.5], ["one"], None, 3, [[3]], array.array("d", [1])):
            self.assertRaises(TypeError, attnkit.Session(self.model).read, wrong)
        self.refused("at least one id", attnkit.Session(self.model).read, [])
        self.assertEqual(session.save(), before)
        classifier = self.tiny("classifier", kind="encoder", head="classifier")
        self.refused("no decoder", attnkit.Session, classifier, code=attnkit.UNSUPPORTED)

    def test_closed(self):
        with self.begun() as session:
            blob = session.save()
        session.close()
        for use in (session.generate, session.save, session.describe, session.clone, lambda: session.read([3]),
                    lambda: session.write([[1]]), lambda: session.reorder([0]), lambda: session.set_length(3),
                    lambda: attnkit.write_all([self.begun(), session], [[1], [1]]), lambda: session.simulate([3], print)):
            self.refused("this Session is closed", use)
        session = attnkit.Session.load(self.model, blob)
        self.model.close()
        self.assertTrue(session.generate())


if __name__ == "__main__":
    unittest.main()
