"""Makes a wheel of an installed tree: the package, libattnkit, its plugins, the command, and the libraries that these link.

    cmake --install build --prefix tree && python3 hosts/python/wheel.py tree dist

It needs Python 3.11 and patchelf, and of the machine that installs it a C library as new as this one's, and a libstdc++.  With --system-libraries it
carries none (TBB, fmt, OpenSSL, ...) and is for machines of the same distribution.  The same tree gives the same bytes.
"""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CARRIED = re.compile(r"bin/attnkit|lib[^/]*/(?:.*/)?(?:libattnkit\.so\.\d+|libattnkit_cuda\.so|attnkit/1/[^/]+\.so|attnkit/libraries/[^/]+|attnkit/attnkit-plugin-process|attnkit/libattnkit-onnxruntime\.so)")
# Libraries that every machine has, or that must not be there twice in a process.
SYSTEM = re.compile(r"linux-vdso|ld-linux|lib(?:c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so")


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def carried(tree):
    names = [file.relative_to(tree).as_posix() for file in sorted(tree.rglob("*")) if file.is_file()]
    return [name for name in names if CARRIED.fullmatch(name)]


def linked(file):
    """The libraries that a file names, and where the loader finds them; not those of SYSTEM."""
    named = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", file))
    found = dict(re.findall(r"(?m)^\s*(\S+) => (/\S+)", run("ldd", file)))
    return {name: pathlib.Path(found[name]) for name in named if not SYSTEM.match(name) and not name.startswith("libattnkit")}


def licence(library):
    """The copyright file of the Debian package that a library is from."""
    real = os.path.realpath(library)
    for name in (real, real.removeprefix("/usr")):
        done = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
        if done.returncode == 0:
            return pathlib.Path(f"/usr/share/doc/{done.stdout.split(':')[0]}/copyright").read_bytes()
    sys.exit(f"{library}: no package of Debian says its licence; --system-libraries makes a wheel without it")


def carry_libraries(tree):
    """Copies what the files of the tree link to lib/attnkit/libraries and lets them look there.  The names become those of one
    content, so that a library that the process has already, of the same name, is not taken for it.  Returns their licences."""
    files = [tree / name for name in carried(tree)]
    library, = (file for file in files if file.name.startswith("libattnkit.so"))
    folder = library.parent / "attnkit/libraries"
    folder.mkdir(parents=True)
    licences, copies, waiting = {}, {}, list(files)
    while waiting:
        file = waiting.pop()
        libraries = linked(file)
        for name, path in libraries.items():
            if path not in copies:
                stem, _, rest = name.partition(".so")
                copies[path] = folder / f"{stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}.so{rest}"
                shutil.copy(path, copies[path])
                copies[path].chmod(0o755)
                run("patchelf", "--set-soname", copies[path].name, copies[path])
                licences[f"{stem}.copyright"] = licence(path)
                waiting.append(copies[path])
            run("patchelf", "--replace-needed", name, copies[path].name, file)
        if libraries:
            here = run("patchelf", "--print-rpath", file).strip()
            ours = "$ORIGIN/" + os.path.relpath(folder, file.parent)
            run("patchelf", "--set-rpath", f"{here}:{ours}".lstrip(":"), file)
    return licences


def oldest_glibc(tree):
    versions = [re.findall(r"GLIBC_(\d+)\.(\d+)", run("readelf", "-V", file)) for file in tree.rglob("*")
                if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]
    return "{}_{}".format(*max((int(major), int(minor)) for found in versions for major, minor in found))


def contents(tree):
    """Files of the wheel by their names in it, and whether they are programs."""
    for module in sorted((HERE / "attnkit").rglob("*")):
        if module.suffix in (".py", ".typed"):
            yield f"attnkit/{module.relative_to(HERE / 'attnkit')}", module.read_bytes(), False
    for name in carried(tree):
        yield f"attnkit/prefix/{name}", (tree / name).read_bytes(), True


def metadata(info, platform):
    extras = "".join(f"Provides-Extra: {extra}\n" + "".join(f"Requires-Dist: {need}; extra == '{extra}'\n" for need in needs)
                     for extra, needs in PROJECT["optional-dependencies"].items())
    yield f"{info}/METADATA", (f"Metadata-Version: 2.1\nName: attnkit\nVersion: {PROJECT['version']}\nSummary: {PROJECT['description']}\n"
                               f"License: {PROJECT['license']['text']}\nRequires-Python: {PROJECT['requires-python']}\n{extras}")
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: attnkit\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
    yield f"{info}/entry_points.txt", "[console_scripts]\nattnkit = attnkit._command:main\n"


def main():
    words = [word for word in sys.argv[1:] if word != "--system-libraries"]
    if len(words) != 2:
        sys.exit("usage: wheel.py INSTALLED_TREE FOLDER [--system-libraries]")
    names = " ".join(carried(pathlib.Path(words[0])))
    for part in ("bin/attnkit", "libattnkit.so", "attnkit/1/"):
        if part not in names:
            sys.exit(f"{words[0]} is no installed tree of attnkit: it has no {part}; run cmake --install build --prefix {words[0]}")
    platform = re.sub(r"[^a-zA-Z0-9]", "_", sysconfig.get_platform())
    with tempfile.TemporaryDirectory(prefix="attnkit-wheel-") as copy:
        tree, licences = pathlib.Path(words[0]), {}
        if words == sys.argv[1:]:
            if not shutil.which("patchelf"):
                sys.exit("no patchelf, with which libraries are carried: install it, or make a wheel with --system-libraries")
            for name in carried(tree):
                pathlib.Path(copy, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree / name, pathlib.Path(copy, name))
            tree = pathlib.Path(copy)
            licences = carry_libraries(tree)
            platform = platform.replace("linux_", f"manylinux_{oldest_glibc(tree)}_")
        make(tree, pathlib.Path(words[1]), platform, licences)


def make(tree, folder, platform, licences):
    release = f"attnkit-{PROJECT['version']}"
    info = f"{release}.dist-info"
    files = [*contents(tree), *((name, text.encode(), False) for name, text in metadata(info, platform))]
    licences = {"LICENSE": (HERE.parents[1] / "LICENSE").read_bytes(), "copyright": (HERE.parent / "packages/copyright").read_bytes(), **licences}
    files.extend((f"{info}/licenses/{name}", text, False) for name, text in sorted(licences.items()))
    record = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
              for name, data, _ in files]
    files.append((f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode(), False))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{release}-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, program in files:
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100755 if program else 0o100644) << 16
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main()
