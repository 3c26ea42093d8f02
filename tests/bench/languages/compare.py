"""Times a one-token call in five languages, in turns, and prints what each adds to C.

    python3 tests/bench/languages/compare.py BUILD [--rounds 21] [--steps 4000]

BUILD is a build tree.  Every language has one process, which creates a session and writes STEPS tokens whenever it is told to.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def commands(build, made):
    """By language, a command that times; compiled into the folder `made`."""
    library = build / "lib"
    linked = [f"-I{ROOT}/abi/include", f"-L{library}", "-lattnkit", f"-Wl,-rpath,{library}", "-O2"]
    rust = {"CARGO_TARGET_DIR": str(made), "ATTNKIT_LIB_DIR": str(library), "RUSTFLAGS": f"-C link-arg=-Wl,-rpath,{library}"}
    go = {"PKG_CONFIG_PATH": str(build / "abi/build"), "CGO_LDFLAGS": f"-Wl,-rpath,{library}", "GOFLAGS": "-mod=mod -buildvcs=false",
          "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    for folder, more, *command in [(HERE, {}, "cc", "step.c", "-o", made / "c", *linked),
                                   (HERE, {}, "c++", "-std=c++20", "step.cpp", "-o", made / "cpp", *linked),
                                   (HERE, rust, "cargo", "build", "--quiet", "--offline", "--locked", "--release"),
                                   (HERE / "go", go, "go", "build", "-o", made / "go", ".")]:
        subprocess.run(command, cwd=folder, env={**os.environ, **more}, check=True)
    return {"C": [made / "c"], "C++": [made / "cpp"], "Rust": [made / "release/step"], "Go": [made / "go"], "Python": ["python3", HERE / "step.py"]}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("build", type=lambda path: pathlib.Path(path).resolve())
    options.add_argument("--rounds", type=int, default=21)
    options.add_argument("--steps", type=int, default=4000)
    options = options.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(options.build / "lib/attnkit/python")}
    with tempfile.TemporaryDirectory() as made:
        running = {language: subprocess.Popen([*command, HERE / "step.toml", str(options.steps)], env=environment, text=True,
                                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                   for language, command in commands(options.build, pathlib.Path(made)).items()}
        times = {language: [] for language in running}
        for turn in range(options.rounds + 1):
            order = list(running)[turn % len(running):] + list(running)[:turn % len(running)]
            for language in order:
                running[language].stdin.write("\n")
                running[language].stdin.flush()
                took = float(running[language].stdout.readline())
                if turn:  # the first one warms up
                    times[language].append(took)
        for process in running.values():
            process.stdin.close()
            process.wait()
    print("| language | a call, ns (quartiles) | more than C, ns (quartiles) |\n|---|---|---|")
    for language, took in times.items():
        more = [mine - c for mine, c in zip(took, times["C"])]
        (low, middle, high), (least, half, most) = (statistics.quantiles(values, n=4, method="inclusive") for values in (took, more))
        print(f"| {language} | {middle:,.0f} ({low:,.0f} .. {high:,.0f}) | {half:,.0f} ({least:,.0f} .. {most:,.0f}) |")


if __name__ == "__main__":
    main()
