"""Runs attnkit search with its workers on the nodes of a Ray cluster.

    python -m attnkit.ray search model.toml --address auto -o search --strategy pareto --per-layer

Every node that can give --cpus is a host of --launch (docs/search.md): an actor there starts the workers, and each
trial is a task of it, which Ray's dashboard shows.  What is not an option of this command is one of attnkit search.
Nodes need attnkit and the model's folder at the same paths, or --worker says how a worker is started there.  Whoever
runs this keeps the journal; --resume goes on after any end.
"""

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

CONNECT = pathlib.Path(__file__).with_name("connect.py")
PATIENCE = 60  # seconds for a node to give its CPUs


class Node:
    """Workers on one node.  Ray calls it from several threads, each of which has one worker."""

    def __init__(self):
        self.workers = {}

    def is_there(self):
        return True

    def start(self, key, command):
        self.workers[key] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, key, line):
        """The line that answers this one; None: the worker has ended."""
        worker = self.workers[key]
        try:
            worker.stdin.write(line)
            worker.stdin.flush()
        except BrokenPipeError:
            return None
        return worker.stdout.readline() or None

    def stop(self, key):
        worker = self.workers.pop(key, None)
        if worker is not None:
            worker.kill()
            worker.wait()


class Driver:
    """Passes lines between attnkit search and the nodes."""

    def __init__(self, ray, nodes, folder):
        self.ray, self.nodes, self.latest = ray, nodes, 0
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(os.path.join(folder, "socket"))
        self.server.listen(1024)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.server.accept()
            self.latest += 1
            threading.Thread(target=self.serve, args=(connection, self.latest), daemon=True).start()

    def serve(self, connection, key):
        node, name = None, ""
        with connection, connection.makefile("rb") as lines:
            try:
                first = json.loads(lines.readline())
                name = first["node"]
                node = self.nodes[name]
                self.ray.get(node.start.remote(key, first["command"]))
                for line in lines:
                    reply = self.answer(connection, node, key, line)
                    if reply is None:
                        break
                    connection.sendall(reply)
            except self.ray.exceptions.RayError as error:
                print(f"attnkit.ray: {name}: {str(error).splitlines()[0]}", file=sys.stderr)
            except OSError:
                pass  # the search has ended this worker
        if node is not None:
            node.stop.remote(key)

    def answer(self, connection, node, key, line):
        """The reply; None: the worker has ended, or the search waits no more."""
        trial = node.ask.options(name=json.loads(line).get("kind", "trial")).remote(key, line)
        while not self.ray.wait([trial], timeout=0.1)[0]:
            # The search sends nothing before it has the reply, so this is its end.
            if select.select([connection], [], [], 0)[0]:
                return None
        return self.ray.get(trial)


def parser():
    made = argparse.ArgumentParser("python -m attnkit.ray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="subcommand", required=True)
    add = commands.add_parser("search", help="attnkit search on the nodes", allow_abbrev=False).add_argument
    add("model", help="the manifest")
    add("--address", default="auto", help="of the cluster (%(default)s); local: one of this machine")
    add("--cpus", type=float, default=1, help="that are kept free on each node (%(default)s)")
    add("--worker", default="", help="how a worker is started on a node: /opt/attnkit/bin/attnkit search-worker - [--dir DIR]")
    add("--command", default="attnkit", help="the attnkit command here (%(default)s)")
    return made


def start_nodes(ray, cpus):
    """An actor on each node that can give the CPUs, by the node's name."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    actor = ray.remote(Node)
    nodes, starting = {}, {}
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


def search(arguments, options):
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        sys.exit("attnkit.ray needs ray: pip install ray")
    command = shutil.which(arguments.command)
    if command is None:
        sys.exit(f"{arguments.command} is no command here; --command names it")
    ray.init(address=arguments.address, log_to_driver=False)
    nodes = start_nodes(ray, arguments.cpus)
    if not nodes:
        sys.exit(f"no node of the cluster gives {arguments.cpus:g} CPUs; --cpus asks for fewer")
    with tempfile.TemporaryDirectory(prefix="attnkit-ray-") as folder:
        Driver(ray, nodes, folder)
        # A short name, which the journal and the page have for the host.
        launcher = pathlib.Path(folder) / "ray-node"
        launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {shlex.quote(str(CONNECT))} {shlex.quote(folder)} "$@"\n')
        launcher.chmod(0o755)
        words = [command, "search", arguments.model, *options]
        for name in sorted(nodes):
            words += ["--launch", f"ray-node {name} {arguments.worker}".strip()]
        process = subprocess.Popen(words, env={**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"})
        # A Ctrl-C reaches both: the search finishes the trials in flight and says how to go on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()


def main():
    arguments, options = parser().parse_known_args()
    sys.exit(search(arguments, options))


if __name__ == "__main__":
    main()
