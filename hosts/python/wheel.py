"""Makes a wheel of an installed tree: the package, libattnkit, its plugins and the command.

    cmake --install build --prefix tree && python3 hosts/python/wheel.py tree dist

The libraries that libattnkit links (TBB, fmt, OpenSSL, ...) are those of the system, so the wheel is for machines of the same
distribution.  The same tree gives the same bytes.
"""

import base64
import hashlib
import pathlib
import re
import sys
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CARRIED = re.compile(r"bin/attnkit|lib[^/]*/(?:.*/)?(?:libattnkit\.so\.\d+|attnkit/1/[^/]+\.so|attnkit/attnkit-plugin-process)")


def contents(tree):
    """Files of the wheel by their names in it, and whether they are programs."""
    for module in sorted((HERE / "attnkit").rglob("*")):
        if module.suffix in (".py", ".typed"):
            yield f"attnkit/{module.relative_to(HERE / 'attnkit')}", module.read_bytes(), False
    for file in sorted(tree.rglob("*")):
        name = file.relative_to(tree).as_posix()
        if file.is_file() and CARRIED.fullmatch(name):
            yield f"attnkit/prefix/{name}", file.read_bytes(), True


def metadata(info, version):
    about = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    summary, python = (re.search(rf'(?m)^{key} = "(.*)"$', about)[1] for key in ("description", "requires-python"))
    tag = "py3-none-" + re.sub(r"\W", "_", sysconfig.get_platform())
    yield f"{info}/METADATA", (f"Metadata-Version: 2.1\nName: attnkit\nVersion: {version}\nSummary: {summary}\nLicense: Apache-2.0\n"
                               f"Requires-Python: {python}\nProvides-Extra: torch\nRequires-Dist: torch>=2.4; extra == 'torch'\n")
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: attnkit\nRoot-Is-Purelib: false\nTag: {tag}\n"
    yield f"{info}/entry_points.txt", "[console_scripts]\nattnkit = attnkit._command:main\n"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: wheel.py INSTALLED_TREE FOLDER")
    tree, folder = map(pathlib.Path, sys.argv[1:])
    version = re.search(r'(?m)^version = "(.*)"$', (HERE / "pyproject.toml").read_text(encoding="utf-8"))[1]
    info = f"attnkit-{version}.dist-info"
    files = [*contents(tree), *((name, text.encode(), False) for name, text in metadata(info, version))]
    files.append((f"{info}/licenses/LICENSE", (HERE.parents[1] / "LICENSE").read_bytes(), False))
    names = " ".join(name for name, *_ in files)
    for part in ("prefix/bin/attnkit", "libattnkit.so", "attnkit/1/"):
        if part not in names:
            sys.exit(f"{tree} is no installed tree of attnkit: it has no {part}; run cmake --install build --prefix {tree}")
    record = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
              for name, data, _ in files]
    files.append((f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode(), False))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"attnkit-{version}-py3-none-{re.sub(r'[^a-zA-Z0-9]', '_', sysconfig.get_platform())}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, program in files:
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100755 if program else 0o100644) << 16
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main()
