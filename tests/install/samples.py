"""Samples of an installed tree: built as docs/using.md builds them, run, and held to samples/expected.json.

    samples.py SAMPLES FOLDER LANGUAGE...    SAMPLES: share/attnkit/samples; FOLDER: a new one, for what is built

PATH, PKG_CONFIG_PATH and LD_LIBRARY_PATH must lead to the tree.  Those that take imported models are given the tests' tiny ones.
"""

import fcntl
import json
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = {
    "c": "for file in $SAMPLES/c/*.c; do ${CC:-cc} -std=c99 $file $(pkg-config --cflags --libs attnkit) -lm -o $(basename $file .c); done",
    "cpp": "for file in $SAMPLES/cpp/*.cpp; do ${CXX:-c++} -std=c++20 $file $(pkg-config --cflags --libs attnkit) -o $(basename $file .cpp); done",
    "rust": "cargo build --quiet --offline --locked --manifest-path $SAMPLES/rust/Cargo.toml --target-dir target",
    "go": "here=$PWD && cd $SAMPLES/go && go build -buildvcs=false -o $here/ ./...",
    "python": ":",
}
# Samples of mechanisms; that in Rust is among the lines of docs/using.md.
PLUGINS = {
    "cpp": "cmake -S $SAMPLES/hello_plugin -B hello && cmake --build hello && ctest --test-dir hello --output-on-failure\n"
           "cmake -S $SAMPLES/failing_plugin -B failing && cmake --build failing && test -f failing/lib/attnkit/1/fails.so",
}
# What the samples of errors are shown errors by; a wheel has no headers.
FAILS = f"mkdir fails && ${{CXX:-c++}} -std=c++20 -shared -fPIC -I{SOURCE}/abi/include $SAMPLES/failing_plugin/fails.cpp -o fails/fails.so"


def failures(language, samples, folder, environment=None, python=sys.executable):
    """The failures, a text each; python: the interpreter of the samples in Python.  An exception where nothing could be built."""
    folder.mkdir(parents=True)
    environment = (os.environ if environment is None else environment) | {"SAMPLES": str(samples), "ATTNKIT_LIBRARY": ""}

    def run(*command, pass_fds=(), **more):
        return subprocess.run([str(c) for c in command], env=environment | more, cwd=folder, capture_output=True, text=True, timeout=600,
                              pass_fds=pass_fds)

    def shell(lines):
        done = run("bash", "-euo", "pipefail", "-c", lines)
        return "" if done.returncode == 0 else f"{lines}: status {done.returncode}\n{done.stdout}\n{done.stderr}"

    if problem := shell(FAILS) or shell(BUILD[language]):
        raise AssertionError(problem)
    start, suffix = ([python, "-B"], ".py") if language == "python" else ([], "")
    programs = {"python": samples / "python", "rust": folder / "target/debug"}.get(language, folder)
    model = samples / "models/numbers-en-de/model.toml"
    places = {"model": model, "speech": samples / "models/numbers-speech/model.toml", "streaming": folder / "streaming.toml",
              "bad": SOURCE / "tests/core/manifest/data/ten_mistakes.toml", "file": folder / "written", "fails": folder / "fails"}
    named = re.sub(r'"([a-z-]+\.(?:txt|tsv|safetensors))"', rf'"{model.parent}/\1"', model.read_text())  # its files, from elsewhere
    places["streaming"].write_text(named + "\n[stream]\nreplay = true\n")
    cases = [case for case in json.loads((SOURCE / "samples/expected.json").read_text()) if language in case["languages"]]
    wrong = []
    for case in cases:
        command = [*start, programs / (case["program"] + suffix)]
        done = run(*command, *(a.format(**places) for a in case["arguments"]))
        if done.returncode != case["status"] or not re.search(case["out"], done.stdout, re.S) or not re.search(case["err"], done.stderr, re.S):
            wrong.append(f"{language}: {case['name']}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        if "{file}" in case["arguments"] and places["file"].exists():
            sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)  # root cannot write it either
            os.write(sealed, places["file"].read_bytes())
            fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)
            done = run(*command, *(a.format(**places | {"file": f"/proc/self/fd/{sealed}"}) for a in case["arguments"]), pass_fds=[sealed])
            os.close(sealed)
            if done.returncode == 0 or done.stdout:
                wrong.append(f"{language}: {case['name']}: goes on with an old file that it cannot write\n{done.stdout}\n{done.stderr}")
    imported = run(sys.executable, "-B", SOURCE / "tests/import/samples_test.py", "tiny", suffix, *start, f"{programs}/",
                   PYTHONPATH=f"{environment.get('PYTHONPATH', '')}:{SOURCE}/tests/cli", ATTNKIT_SAMPLE=str(samples / "models/numbers-en-de"),
                   ATTNKIT=run("bash", "-c", "command -v attnkit").stdout.strip())
    if imported.returncode != 0:
        wrong.append(f"{language}: samples of imported models\n{imported.stdout}\n{imported.stderr}")
    built = {file.stem for file in (samples / language).glob("*") if file.suffix in (".c", ".cpp", ".rs", ".py") or (file / f"{file.name}.go").exists()}
    untried = built - {case["program"] for case in cases} - {"embed", "complete", "transcribe", "common"}
    wrong += [f"{language}: {name} is a sample that nothing tries" for name in sorted(untried)]
    return [*wrong, *filter(None, [shell(PLUGINS[language])] if language in PLUGINS else [])]


if __name__ == "__main__":
    found = [text for language in sys.argv[3:] for text in failures(language, pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) / language)]
    sys.exit("\n".join(found) or 0)
