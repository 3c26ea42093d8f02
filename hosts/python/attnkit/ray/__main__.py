"""Runs attnkit search with its workers on the nodes of a Ray cluster.

    python -m attnkit.ray search model.toml --address auto -o search --strategy pareto --per-layer

Every node that can give --cpus is a host of --launch (docs/search.md): an actor there starts the workers, and each
trial is a task of it, which Ray's dashboard shows.  What is not an option of this command is one of attnkit search.
Nodes need attnkit and the model's folder at the same paths, or --worker says how a worker is started there.  Whoever
runs this keeps the journal; --resume goes on after any end.

    python -m attnkit.ray search model.toml --train "--data train.tsv --steps 500 --threads 1"

trains each placement by itself before its quality is judged, as a task of the node that judges it first.  Weights are
kept in the search's folder, in trained/, and winner.toml names the winner's.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from types import ModuleType
from typing import Any

from .training import JUDGING, Plan

CONNECT = pathlib.Path(__file__).with_name("connect.py")
PATIENCE = 60  # seconds for a node to give its CPUs

# Of Ray, which has no types here.
Actor = Any  # calls a Node
Future = Any  # what a call gives, once it has ended


class Node:
    """Workers on one node.  Ray calls it from several threads, each of which has one worker."""

    def __init__(self) -> None:
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.folder = tempfile.TemporaryDirectory(prefix="attnkit-ray-")  # it goes with the actor

    def is_there(self) -> bool:
        return True

    def train(self, key: str, words: list[str], from_scratch: bool, toml: str, folder: str) -> bytes:
        """The weights of a placement.  A checkpoint stays here until they are there."""
        from attnkit.ray.training import alone, train  # nodes that only judge need no package
        out = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "attnkit", "trained", key)
        with alone(out):
            weights = train(words, from_scratch, toml, folder, out)
            shutil.rmtree(out)
        return weights

    def start(self, key: int, command: list[str]) -> None:
        self.workers[key] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, key: int, line: bytes, trained: str = "", weights: bytes = b"") -> bytes | None:
        """The line that answers this one; None: the worker has ended.  trained: a name for the weights that take the place of the model's."""
        worker = self.workers[key]
        assert worker.stdin is not None and worker.stdout is not None
        if trained:
            from attnkit.ray.training import with_weights, write
            file = pathlib.Path(self.folder.name, f"{trained}.safetensors")
            if not file.exists():
                write(file, weights)
            request = json.loads(line)
            request["toml"] = with_weights(request["toml"], file)
            request["encoder"] += trained  # one that another placement has as well was trained otherwise there
            line = json.dumps(request).encode() + b"\n"
        try:
            worker.stdin.write(line)
            worker.stdin.flush()
        except BrokenPipeError:
            return None
        reply = worker.stdout.readline()
        return reply if reply.endswith(b"\n") else None

    def stop(self, key: int) -> None:
        worker = self.workers.pop(key, None)
        if worker is not None:
            worker.kill()
            worker.wait()


class Driver:
    """Passes lines between attnkit search and the nodes."""

    def __init__(self, ray: ModuleType, nodes: dict[str, Actor], folder: str, plan: Plan | None) -> None:
        self.ray, self.nodes, self.plan, self.latest = ray, nodes, plan, 0
        self.trainings: dict[str, Future] = {}  # by key: the weights
        self.lock = threading.Lock()
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(os.path.join(folder, "socket"))
        self.server.listen(1024)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            connection, _ = self.server.accept()
            self.latest += 1
            threading.Thread(target=self.serve, args=(connection, self.latest), daemon=True).start()

    def serve(self, connection: socket.socket, key: int) -> None:
        node, name = None, ""
        with connection, connection.makefile("rb") as lines:
            try:
                first = json.loads(lines.readline())
                name = first["node"]
                node = self.nodes[name]
                command = first["command"]
                self.ray.get(node.start.remote(key, command))
                folder = command[command.index("--dir") + 1] if "--dir" in command else None
                for line in lines:
                    request = json.loads(line)
                    folder = folder or request.get("dir")  # of the first request
                    reply = self.answer(connection, node, key, request, line, folder)
                    if reply is None:
                        break
                    connection.sendall(reply)
            except self.ray.exceptions.RayError as error:
                print(f"attnkit.ray: {name}: {str(error).splitlines()[0]}", file=sys.stderr)
            except OSError:
                pass  # the search has ended this worker
        if node is not None:
            node.stop.remote(key)

    def answer(self, connection: socket.socket, node: Actor, key: int, request: dict[str, Any], line: bytes, folder: str) -> bytes | None:
        """The reply; None: the worker has ended, or the search waits no more."""
        kind: str = request.get("kind", "trial")
        weights: tuple[str, Future] | tuple[()] = ()
        if self.plan and kind in JUDGING:
            trained = self.plan.key(request["toml"])
            try:
                training = self.train(connection, node, trained, request, folder)
            except self.ray.exceptions.RayTaskError as error:
                reason = {"kind": "internal", "message": f"training failed: {error.cause}"}
                return json.dumps({"id": request["id"], "ok": False, "error": reason}).encode() + b"\n"
            if training is None:
                return None
            weights = trained, training
        trial = node.ask.options(name=kind).remote(key, line, *weights)
        if not self.is_over(connection, trial):
            return None
        reply: bytes | None = self.ray.get(trial)
        if self.plan and kind == "open" and reply:
            opened = json.loads(reply)
            if opened["ok"]:
                opened["result"]["training"] = self.plan.facts
            reply = json.dumps(opened).encode() + b"\n"
        return reply

    def is_over(self, connection: socket.socket, task: Future) -> bool:
        """Waits for the task; False: the search waits no more."""
        while not self.ray.wait([task], timeout=0.1)[0]:
            # The search sends nothing before it has the reply, so this is its end.
            if select.select([connection], [], [], 0)[0]:
                return False
        return True

    def train(self, connection: socket.socket, node: Actor, key: str, request: dict[str, Any], folder: str) -> Future | None:
        """A function that gives the weights of a placement, which one node has trained; None: the search waits no more."""
        assert self.plan is not None
        with self.lock:
            training = self.trainings.get(key)
            if training is None:
                file = self.plan.file(key)
                if file.exists():
                    training = self.ray.put(file.read_bytes())
                else:
                    task = node.train.options(name=f"train {request['placement']}")
                    training = task.remote(key, self.plan.words, self.plan.from_scratch, request["toml"], folder)
                self.trainings[key] = training
        if not self.is_over(connection, training):
            return None
        with self.lock:
            try:
                if not self.plan.has(request["placement"], key):
                    self.plan.keep(request["placement"], key, self.ray.get(training))
            except self.ray.exceptions.RayError:
                self.trainings.pop(key, None)
                raise
        return training


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m attnkit.ray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="subcommand", required=True)
    add = commands.add_parser("search", help="attnkit search on the nodes", allow_abbrev=False).add_argument
    add("model", help="the manifest")
    add("--address", default="auto", help="of the cluster (%(default)s); local: one of this machine")
    add("--cpus", type=float, default=1, help="that are kept free on each node (%(default)s)")
    add("--worker", default="", help="how a worker is started on a node: /opt/attnkit/bin/attnkit search-worker - [--dir DIR]")
    add("--train", metavar="OPTIONS", help="of attnkit.train, by which each placement is trained before it is judged: '--data train.tsv --steps 500'")
    add("--from-scratch", action="store_true", help="training begins with initial values, not with the model's weights")
    add("-o", "--output", default="search", help="folder of the results (%(default)s)")
    add("--command", default="attnkit", help="the attnkit command here (%(default)s)")
    return made


def start_nodes(ray: ModuleType, cpus: float) -> dict[str, Actor]:
    """An actor on each node that can give the CPUs, by the node's name."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    actor = ray.remote(Node)
    nodes: dict[str, Actor] = {}
    starting: dict[Future, str] = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus:
            name = f"{node['NodeManagerAddress']}/{node['NodeID'][:8]}"
            nodes[name] = actor.options(name=f"attnkit search {os.getpid()} on {name}", num_cpus=cpus, max_concurrency=64, max_restarts=-1,
                                        scheduling_strategy=affinity(node["NodeID"], soft=False)).remote()
            starting[nodes[name].is_there.remote()] = name
    ready, _ = ray.wait(list(starting), num_returns=len(starting), timeout=PATIENCE) if starting else ([], [])
    for late in set(starting) - set(ready):
        print(f"attnkit.ray: left out: {starting[late]} gives no {cpus:g} CPUs within {PATIENCE} s", file=sys.stderr)
        del nodes[starting[late]]
    return nodes


def training_plan(arguments: argparse.Namespace, options: list[str]) -> Plan | None:
    """The training of placements before they are judged; None: there is none."""
    if not arguments.train:
        if arguments.from_scratch:
            sys.exit("--from-scratch says what --train begins with: give that too")
        return None
    if "--bundle" in options or any(option.startswith("--bundle=") for option in options):
        sys.exit("--bundle would hold the model's weights, not the trained ones: attnkit bundle makes it of winner.toml afterwards")
    # A trial that waits for its training is not late.
    if not any(option.split("=")[0] == "--trial-timeout" for option in options):
        options += ["--trial-timeout", "1e6"]
    return Plan(arguments.train, arguments.from_scratch, arguments.output, arguments.model)


def search(arguments: argparse.Namespace, options: list[str]) -> int:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        sys.exit("attnkit.ray needs ray: pip install ray")
    command = shutil.which(arguments.command)
    if command is None:
        sys.exit(f"{arguments.command} is no command here; --command names it")
    plan = training_plan(arguments, options)
    ray.init(address=arguments.address, log_to_driver=False)
    nodes = start_nodes(ray, arguments.cpus)
    if not nodes:
        sys.exit(f"no node of the cluster gives {arguments.cpus:g} CPUs; --cpus asks for fewer")
    with tempfile.TemporaryDirectory(prefix="attnkit-ray-") as folder:
        Driver(ray, nodes, folder, plan)
        # A short name, which the journal and the page have for the host.
        launcher = pathlib.Path(folder) / "ray-node"
        launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {shlex.quote(str(CONNECT))} {shlex.quote(folder)} "$@"\n')
        launcher.chmod(0o755)
        words = [command, "search", arguments.model, "-o", arguments.output, *options]
        for name in sorted(nodes):
            words += ["--launch", f"ray-node {name} {arguments.worker}".strip()]
        process = subprocess.Popen(words, env={**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"})
        # A Ctrl-C reaches both: the search finishes the trials in flight and says how to go on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for passed_on in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(passed_on, lambda number, _: process.send_signal(number))
        code = process.wait()
    if plan and code == 0:
        plan.finish()
    return code


def main() -> None:
    arguments, options = parser().parse_known_args()
    # A word behind an option of attnkit search may be its value.
    before = sys.argv[:sys.argv.index(arguments.model)]
    if misplaced := next((o for o in options if o.startswith("-") and o in before), None):
        sys.exit(f"{misplaced} stands before the manifest: give the manifest first, then the options of attnkit search")
    sys.exit(search(arguments, options))


if __name__ == "__main__":
    main()
