"""State and peak memory of one session by placement and length: python memory.py ENCODER/SELF/CROSS ...

So many tokens of source are read and as many of target written, in two calls.  State is what the plugins declare, peak how far the resident memory of a
fresh process rises beside the loaded model.  PYTHONPATH has the attnkit package.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import attnkit
from digests import hashes

HERE = pathlib.Path(__file__).resolve().parent
ROLES = ("encoder.self", "decoder.self", "decoder.cross")
LENGTHS = (64, 256, 512, 1024, 2048)


def peak():
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text(encoding="utf-8"))[1])


def measured(manifest, length):
    """(state, peak) in bytes."""
    model = attnkit.Model(attnkit.Runtime(), manifest)
    with attnkit.Session(model) as session:
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = peak()
        session.read([7] * length)
        session.write([[7] * length], logits=False)
        return session.describe()["state_bytes"], peak() - before


def placed(folder, placement):
    """The model with a placement, in an empty folder or one that this filled before."""
    for name in ("weights.safetensors", "pieces.model"):
        if not (folder / name).exists():
            (folder / name).symlink_to(HERE / name)
    text = re.sub(r'(?m)^"(encoder|decoder)\.(self|cross)" = ".*\n', "", (HERE / "model.toml").read_text(encoding="utf-8"))
    roles = "".join(f'"{role}" = "{m}"\n' for role, m in zip(ROLES, placement.split("/"), strict=True))
    manifest = folder / f"{placement.replace('/', '-')}.toml"
    manifest.write_text(text.replace('default = "softmax"\n', f'default = "softmax"\n{roles}'), encoding="utf-8")
    return manifest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", nargs="+", metavar="ENCODER/SELF/CROSS")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(*measured(options.placements[0], options.one))
        return
    hashes(HERE / "model.toml")
    print(f"| placement | {' | '.join(map(str, LENGTHS))} |\n|{'---|' * (1 + len(LENGTHS))}")
    with tempfile.TemporaryDirectory() as folder:
        for placement in options.placements:
            manifest = placed(pathlib.Path(folder), placement)
            cells = []
            for length in LENGTHS:
                said = subprocess.run([sys.executable, __file__, str(manifest), "--one", str(length)], check=True, capture_output=True, text=True).stdout
                state, most = (int(n) / 2**20 for n in said.split())
                cells.append(f"{state:.2f} / {most:.1f}")
            print(f"| {placement} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
