"""Threads: many sessions at once, one session twice at once, a session closed while it runs; memory."""

import array
import os
import signal
import sys
import threading
import unittest

import attnkit
from support import RUNTIME, SAMPLE, TEXTS, PackageTest


def resident():
    """Bytes of memory that the process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Threads(PackageTest):
    def test_many_sessions(self):
        model = self.tiny()
        expected = [model.translate(text) for text in TEXTS]
        got, threads = [None] * 8, []
        for i in range(8):
            def work(i=i):
                got[i] = [model.translate(text) for _ in range(5) for text in TEXTS]
            threads.append(threading.Thread(target=work))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, [expected * 5] * 8)

    def test_a_call_lets_other_threads_run(self):
        # No thread is made to give up the interpreter: this one runs again before the call has ended only where the call gives it up.
        model, rows = attnkit.Model(RUNTIME, SAMPLE), 256
        source, target = [self.ids(model, "two hundred and forty-one euros")] * rows, [[model.info.begin_id] * 40] * rows
        begun, ended = threading.Event(), []

        def work():
            begun.set()
            model.forward(source, target)
            ended.append(True)
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1000)
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        early = not ended
        thread.join()
        self.assertTrue(early)

    def paused(self, use):
        """use(session) in this thread while another is inside of the session's simulate; what that then gave."""
        model = self.tiny(stream=True)
        session, inside, go_on, made = attnkit.Session(model, 1), threading.Event(), threading.Event(), []
        source = self.ids(model, TEXTS[0])

        def decide(view):
            inside.set()
            self.assertTrue(go_on.wait(60))
            return attnkit.WaitK(1)(view)
        thread = threading.Thread(target=lambda: made.extend(session.simulate(source, decide)))
        thread.start()
        try:
            self.assertTrue(inside.wait(60))
            use(session)
        finally:
            go_on.set()
            thread.join()
        self.assertEqual(made, attnkit.Session(model, 1).simulate(source, attnkit.WaitK(1)))

    def test_a_session_is_busy(self):
        def use(session):
            for call in (session.describe, session.save, session.clone, session.generate, lambda: session.write([[1]]),
                         lambda: session.read([3])):
                self.refused("in use", call)
        self.paused(use)

    def test_a_step_in_a_step(self):
        # As one of another thread comes before the library has read what this one writes.
        model = self.tiny()
        session, other = attnkit.Session(model, 1), attnkit.Session(model, 1)
        outs = [array.array("f", bytes(4 * model.info.outputs)) for _ in range(4)]
        for one in (session, other):
            one.read(self.ids(model, TEXTS[0]))
            one.step(model.info.begin_id)
        made = session._step
        write = made.function

        def meanwhile(*arguments):
            made.function = write
            session.step(10, outs[0])
            return write(*arguments)
        made.function = meanwhile
        session.step(11, outs[1])
        for token, out in ((10, outs[2]), (11, outs[3])):
            other.step(token, out)
        self.assertEqual(outs[:2], outs[2:])
        self.assertEqual(session.save(), other.save())

    def test_closing_waits_for_the_call(self):
        def use(session):
            session.close()
            self.refused("closed", session.describe)
        self.paused(use)

    def test_children_of_fork(self):
        # As gunicorn --preload and multiprocessing's "fork" do it: nothing waits for threads that the child does not have.
        with self.tiny(), attnkit.Runtime(threads=3) as runtime, attnkit.Model(runtime, self.folder / "model" / "model.toml") as model:
            expected = [model.translate(text) for text in TEXTS]
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                same = False
                try:
                    same = [model.translate(text) for text in TEXTS] == expected
                finally:
                    os._exit(0 if same else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


class Memory(PackageTest):
    def test_sessions_are_given_back(self):
        model = self.tiny()
        source = self.ids(model, TEXTS[0])

        def session():
            made = attnkit.Session(model, 8)
            made.read(source)
            made.write([[1] * 60] * 8)
            return made

        for _ in range(100):
            session()
        before = resident()
        for _ in range(1000):
            session().close()
        grown = resident() - before
        kept = [session() for _ in range(1000)]
        held = resident() - before
        self.assertEqual(len(kept), 1000)
        self.assertLess(grown, held / 20, "what 1,000 sessions take that are kept")
        self.assertGreater(held, 1000 * 1024)


if __name__ == "__main__":
    unittest.main()
