"""Session.simulate: Python policies against those of the command, events, exceptions in callbacks."""

import json
import unittest

import attnkit
from support import TEXTS, PackageTest


class Simulate(PackageTest):
    def setUp(self):
        super().setUp()
        self.model = self.tiny(stream=True)
        self.source = self.ids(self.model, TEXTS[-1])

    def simulate(self, decide, *arguments, **options):
        return attnkit.Session(self.model, 1).simulate(self.source, decide, *arguments, **options)

    def test_policies_are_those_of_the_command(self):
        for name in ("wait-k:1", "wait-k:3", "wait-k:2:2", "offline"):
            policy, events = attnkit.policy_named(name), []
            self.assertEqual(str(policy), name)
            made = self.simulate(policy, events.append)
            lines = self.run_ok("stream", self.folder / "model/model.toml", "--policy", name, "--unit", "token", "--text", TEXTS[-1],
                                "--events", "-").lines()
            *said, end = map(json.loads, lines)
            actions = {attnkit.READ: "READ", attnkit.WRITE: "WRITE"}
            self.assertEqual([(actions[e.action], e.read, e.written) for e in events],
                             [(e["action"], e["read"], e["written"]) for e in said])
            self.assertEqual([e.id for e in events if e.id >= 0], made)
            self.assertEqual(self.model.detokenize(attnkit.TARGET, made), end["output"])

    def test_names_of_policies(self):
        for name in ("wait-k", "wait-k:0", "wait-k:1:0", "wait-k:1:2:3", "wait-k:x", "wait-k:-1", "wait-k: 1", "", "online",
                     "wait-k:9999999"):
            self.refused("wait-k", attnkit.policy_named, name)

    def test_units(self):
        seen = []
        self.simulate(lambda view: seen.append(view.read) or attnkit.WaitK(1)(view), ends=[3, len(self.source)])
        self.assertEqual(max(seen), 2)
        self.refused("the last unit ends at 3", self.simulate, attnkit.Offline(), ends=[3])

    def test_what_observe_answers_is_nothing(self):
        whole = self.simulate(attnkit.WaitK(1))
        for answer in ("two", [], None, attnkit.STOP):
            self.assertEqual(self.simulate(attnkit.WaitK(1), lambda event: answer), whole)

    def test_limit_and_stop(self):
        whole = self.simulate(attnkit.Offline())
        self.assertEqual(self.simulate(attnkit.Offline(), limit=2), whole[:2])
        self.assertEqual(self.simulate(lambda view: attnkit.STOP if view.written else attnkit.Offline()(view)), whole[:1])

    def test_policy_that_raises(self):
        class Mine(Exception):
            pass

        def decide(view):
            if view.read == 2:
                raise Mine("two")
            return attnkit.READ
        with self.assertRaisesRegex(Mine, "two"):
            self.simulate(decide)
        for raised in (Mine, KeyboardInterrupt, SystemExit):
            calls = []

            def observe(event):
                calls.append(event)
                raise raised
            with self.assertRaises(raised):
                self.simulate(attnkit.WaitK(1), observe)
            self.assertEqual(len(calls), 1)

    def test_wrong_answers(self):
        self.refused("the policy answered 7", self.simulate, lambda view: 7)
        self.refused("the policy answered 0", self.simulate, lambda view: None)
        self.refused("it must read first", self.simulate, lambda view: attnkit.WRITE)
        with self.assertRaises(ValueError):
            self.simulate(lambda view: "read")

    def test_views_outlive_the_call(self):
        views = []
        self.simulate(lambda view: views.append(view) or attnkit.WaitK(2)(view))
        self.assertEqual([view.read for view in views[:3]], [0, 1, 2])

    def test_the_session_in_its_own_policy(self):
        session = attnkit.Session(self.model, 1)

        def decide(view):
            if view.read == 1:
                self.refused("in use", session.describe)
                session.close()
            return attnkit.WaitK(3)(view)
        self.assertEqual(session.simulate(self.source, decide), self.simulate(attnkit.WaitK(3)))
        self.refused("closed", session.describe)


if __name__ == "__main__":
    unittest.main()
