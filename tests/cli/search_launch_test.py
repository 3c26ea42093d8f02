"""attnkit search --launch: machines that are this one, each with a folder, some with a network of its own."""

import ctypes
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unittest

from command import COMMAND, main
from search_support import SPACE, SearchTest, in_shards, search_table

FAR_HOST = pathlib.Path(__file__).with_name("far_host.py")
NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class LaunchTest(SearchTest):
    def worker(self, name):
        """The command of a worker on a machine that has the model's files in a folder of that name."""
        folder = self.folder / name
        shutil.copytree(self.model.parent, folder)
        (folder / "model.toml").unlink()
        return f"{shlex.quote(COMMAND)} search-worker - --dir {shlex.quote(str(folder))}"

    def options(self, *launchers):
        return ["--strategy", "grid", "--trial-timeout", "60", *(word for text in launchers for word in ("--launch", text))]

    def launch(self, *launchers, more=(), **rest):
        return self.search(*self.options(*launchers), *more, **rest)

    def hosts(self):
        return {host["launch"]: host for host in self.result()["machine"]["hosts"]}

    def check_same_qualities(self):
        """As a search of this machine alone finds them, where both measured as many examples: timings decide that."""
        self.check_result(self.result())
        self.search("--strategy", "grid", out=self.folder / "here")
        here, there = ({p["id"]: p["quality"] for p in self.result(out)["placements"]} for out in (self.folder / "here", self.out))
        self.assertEqual(here.keys(), there.keys())
        same = [name for name in here if here[name]["lists"] == there[name]["lists"]]
        self.assertGreater(len(same), 2)  # softmax and relu everywhere are measured on all examples
        for name in same:
            self.assertEqual(here[name]["value"], there[name]["value"], name)

    def check_timings(self, *names):
        """Every block names its host, and only those have timed."""
        for placement in self.result()["placements"]:
            timed = placement["throughput"]["hosts"]
            self.assertLessEqual(set(timed), set(names))
            self.assertEqual(sum(timed.values()), placement["throughput"]["blocks"])


class Launch(LaunchTest):
    def test_hosts_find_what_this_machine_finds(self):
        first, second = self.worker("first"), "env -i " + self.worker("second")
        said = self.launch(first, second, "env")
        self.assertNotIn("left out", said.err)
        self.check_same_qualities()
        self.assertEqual(list(self.hosts()), [first, second, "env"])
        self.assertTrue(all(host["trials"] for host in self.hosts().values()), self.hosts())
        self.assertTrue(all(host["left_out"] is None and host["run_elsewhere"] == 0 for host in self.hosts().values()))
        self.check_timings(first, second, "env")
        here = self.result(self.folder / "here")
        self.assertEqual(self.result()["machine"]["cpu"], here["machine"]["cpu"])
        self.assertNotIn("hosts", here["machine"])
        page = (self.out / "report.html").read_text()
        self.assertIn("<h2>Hosts</h2>", page)
        self.assertIn("second", page[page.index("<h2>Hosts</h2>"):])
        self.assertNotIn("<h2>Hosts</h2>", (self.folder / "here" / "report.html").read_text())
        before = len(self.journal())
        self.launch(second, more=["--resume"])  # a journal serves other hosts of the same kind, and none
        self.search("--strategy", "grid", "--resume")
        self.assertEqual(len(self.journal()), before)

    def other_plugin(self):
        """A folder with a relu of other bytes."""
        listed = self.run_ok("plugins", "--json").json()["plugins"]
        folder = self.folder / "plugins"
        folder.mkdir()
        (folder / "relu.so").write_bytes(pathlib.Path(next(p["file"] for p in listed if p["name"] == "relu")).read_bytes() + b" ")
        return folder

    def test_what_is_wrong_with_a_host_is_said_and_nothing_is_lost(self):
        good, other = self.worker("good"), self.worker("other")
        data = self.folder / "other" / "data.tsv"
        data.write_text(data.read_text() + "one\teins\n")
        wrong = {
            other: "^a file of the model or its data is another one here: .*data.tsv has sha256 [0-9a-f]{64}, the search's ",
            self.worker("old") + " --plugin-dir " + shlex.quote(str(self.other_plugin())): "^the plugin relu is another one here: ",
            "read -r request && echo Welcome; : search-worker -": "sent no JSON, but 7 other bytes",
            "sh -c 'exit 255' --": "ended with code 255",
        }
        said = self.launch(*wrong, good)
        self.check_same_qualities()
        for name, reason in wrong.items():
            self.assertRegex(self.hosts()[name]["left_out"], reason)
            self.assertIn(f"left out: {name}: ", said.err)
        self.check_timings(good)

    def test_a_trial_that_is_answered_with_garbage_is_run_elsewhere(self):
        once = f"mkdir {shlex.quote(str(self.folder / 'once'))} 2>/dev/null"
        reply = f"""n=$((n + 1)); if [ $n = 3 ] && {once}; then echo garbage; else printf '%s\\n' "$line"; fi"""
        garbled = f"{self.worker('garbled')} | while IFS= read -r line; do {reply}; done"
        said = self.launch(garbled, "env")
        self.check_same_qualities()
        host = self.hosts()[garbled]
        self.assertEqual((host["run_elsewhere"], host["left_out"]), (1, None))
        self.assertIn(f"run elsewhere: 1 trial of {garbled}, the latest: sent no JSON, but 7 other bytes\n", said.err)

    def test_no_host_at_all(self):
        other = self.worker("other")
        (self.folder / "other" / "tiny.safetensors").write_bytes(b"")
        said = self.launch(other, "sh -c 'exit 3' --", code=6)
        self.assertRegex(said.err, "no host is left: .*tiny.safetensors has sha256 e3b0c442.*; sh -c 'exit 3' --: .*ended with code 3")
        self.assertIn("tiny.safetensors has sha256 e3b0c442", self.launch(other, code=6).err)

    def test_a_host_with_another_file_of_weights_is_left_out(self):
        in_shards(self.model)
        good, other = self.worker("good"), self.worker("other")
        weights = self.tiny("seed", "", seed=2).parent / "tiny.safetensors"
        shutil.copy(weights, self.folder / "other")
        self.launch(other, good)
        self.assertRegex(self.hosts()[other]["left_out"], "^a file of the model or its data is another one here: .*tiny.safetensors has sha256")
        self.assertIsNone(self.hosts()[good]["left_out"])

    def test_kills_lose_nothing(self):
        worker = self.worker("far")
        process = self.start(*self.options(worker, "env"), "--progress", "none")
        self.wait_for_trials(8, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = (self.out / "journal.jsonl").read_bytes()
        self.launch("env", more=["--resume"])
        self.assertTrue((self.out / "journal.jsonl").read_bytes().startswith(before[:before.rindex(b"\n") + 1]))
        self.check_same_qualities()


class Network(LaunchTest):
    """Hosts with networks of their own, which end with what runs in them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
            raise unittest.SkipTest(f"no network of our own is allowed here: {os.strerror(ctypes.get_errno())}")
        if shutil.which("ip") is None or shutil.which("nsenter") is None:
            raise unittest.SkipTest("ip (iproute2) or nsenter is not installed")
        done = subprocess.run(["ip", "link", "add", "probe", "type", "veth"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise unittest.SkipTest(f"no virtual network cards here: {done.stderr.strip()}")

    def host(self, number, command):
        """The launcher of a host that does what the command says."""
        address, card = f"10.77.{number}.2", f"host{number}"
        agent = subprocess.Popen(["unshare", "-n", sys.executable, FAR_HOST, "serve", "7000", "sh", "-c", command],
                                 stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(agent.stdout.close)
        self.addCleanup(agent.wait)
        self.addCleanup(os.killpg, agent.pid, signal.SIGKILL)
        self.assertEqual(agent.stdout.readline(), "ready\n")

        def ip(*words, there=False):
            inside = ["nsenter", "-t", str(agent.pid), "-n"] if there else []
            subprocess.run([*inside, "ip", *words], check=True)

        ip("link", "add", card, "type", "veth", "peer", "name", "far", "netns", str(agent.pid))
        self.addCleanup(subprocess.run, ["ip", "link", "del", card], capture_output=True)
        ip("addr", "add", f"10.77.{number}.1/24", "dev", card)
        ip("link", "set", card, "up")
        ip("addr", "add", f"{address}/24", "dev", "far", there=True)
        ip("link", "set", "far", "up", there=True)
        return f"{sys.executable} {FAR_HOST} connect {address} 7000", card

    def test_one_drops_out_one_is_slow_one_has_other_weights(self):
        slow = "{} | while read -r line; do sleep 0.4; printf '%s\\n' \"$line\"; done"
        dropping, card = self.host(1, "exec " + self.worker("dropping"))
        slowly, _ = self.host(2, slow.format(self.worker("slow")))
        other, _ = self.host(3, "exec " + self.worker("other"))
        weights = self.folder / "other" / "tiny.safetensors"
        shutil.copy(self.tiny("seed", search_table(SPACE), seed=2).parent / "tiny.safetensors", weights)
        process = self.start(*self.options(other, dropping, slowly, "env"), "--progress", "none")
        self.wait_for_trials(12, process)
        while dropping not in {line["host"] for line in self.whole_lines()[1:]}:
            self.assertIsNone(process.poll(), "ended before the host that drops out had done a trial")
            time.sleep(0.01)
        subprocess.run(["ip", "link", "set", card, "down"], check=True)  # nobody hears of it again
        _, err = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, err)
        self.check_same_qualities()
        hosts = self.hosts()
        self.assertIn("tiny.safetensors has sha256 ", hosts[other]["left_out"])
        self.assertEqual(hosts[other]["trials"], 0)
        # What it was given was lost, for a worker was started anew for it, which found nobody.
        self.assertRegex(str(hosts[dropping]["left_out"]), "^a search worker failed while it opened the model, twice in a row: ended with code 1;")
        self.assertIsNone(hosts[slowly]["left_out"])
        for name in (dropping, slowly, "env"):
            self.assertGreater(hosts[name]["trials"], 0, name)
        self.check_timings(dropping, slowly, "env")
        self.assertEqual({line["status"] for line in self.journal()[1:]}, {"ok"})


if __name__ == "__main__":
    main(skipped=77)
