"""The program that attnkit search launches for a node: its lines go to the search's Ray driver, which has them answered there.

Run by path, so that nothing of the package has to be loaded: there is one of these for each worker.
"""

import json
import os
import socket
import sys
import threading


def main(folder: str, node: str, *command: str) -> int:
    """Passes lines between the search and `command` on a node, until either ends."""
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(os.path.join(folder, "socket"))
        driver.sendall(json.dumps({"node": node, "command": command}).encode() + b"\n")

        def pass_on() -> None:
            while piece := os.read(0, 1 << 16):
                driver.sendall(piece)
            os._exit(0)

        threading.Thread(target=pass_on, daemon=True).start()
        while piece := driver.recv(1 << 16):
            view = memoryview(piece)
            while view:
                view = view[os.write(1, view):]
    return 1  # the driver says why in the workers' log


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
