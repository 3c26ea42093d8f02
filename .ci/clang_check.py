"""Compiles core, hosts, plugins and tests with clang, warnings as errors, with the flags of an existing build by g++.

clang_check.py BUILD_FOLDER

Nothing is optimised, linked or kept, and code is made only of what holds vectors, which takes a fifth of the time of a
second build.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = tuple(f"{SOURCE / folder}/" for folder in ("core", "hosts", "plugins", "tests"))
# Instruction sets are checked when code is made.
VECTORS = tuple(f"{SOURCE / folder}/" for folder in ("core/model", "core/speech", "plugins"))
UNKNOWN_TO_CLANG = ("-fno-gnu-unique", "-Wno-stringop-overflow", "-Wno-restrict", "-Wno-subobject-linkage", "--param=ggc-min-heapsize=400000")


def arguments(command):
    """The preprocessor's and language's arguments of a compile command, and the header that it precompiles."""
    words, kept, header = shlex.split(command), [], None
    words = words[next(i for i, word in enumerate(words) if word.startswith("-")):words.index("-o")]
    for word in words:
        if kept and kept[-1] == "-include":
            header = word
            kept.pop()
        elif word not in UNKNOWN_TO_CLANG and not word.startswith("-O"):
            kept.append(word)
    return kept + ["-O0", "-Werror", "-Wno-pragma-system-header-outside-header"], header


def files_of(source):
    """The files that a source of the build compiles as one; here each is compiled by itself, as it must be able to."""
    return re.findall(r'^#include "(.*)"$', pathlib.Path(source).read_text(), re.M) if "/Unity/" in source else [source]


def compile(arguments):
    return subprocess.run(["clang++", *arguments], capture_output=True, text=True)


def main():
    build = pathlib.Path(sys.argv[1])
    sources = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        for file in files_of(entry["file"]):
            if file.startswith(FOLDERS) and file.endswith(".cpp"):
                sources[file] = arguments(entry["command"])
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        headers = {}
        for flags, header in sources.values():
            if header and header not in headers:
                headers[header] = (f"{folder}/{len(headers)}.pch", flags)
        made = pool.map(lambda h: compile([*h[1][1], "-fpch-instantiate-templates", "-x", "c++-header", h[0], "-o", h[1][0]]), headers.items())
        failed = [done for done in made if done.returncode != 0]

        def check(source):
            flags, header = sources[source]
            precompiled = ["-include-pch", headers[header][0]] if header else []
            result = ["-c", "-o", "/dev/null"] if source.startswith(VECTORS) and "_test." not in source else ["-fsyntax-only"]
            return compile([*flags, *precompiled, *result, source])

        if not failed:
            failed = [done for done in pool.map(check, sources) if done.returncode != 0]
    for done in failed:
        print(done.stderr, file=sys.stderr)
    print(f"clang: {len(sources)} files, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(main())
