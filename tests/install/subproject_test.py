"""attnkit as a part of another project, compiled: by add_subdirectory of a checkout, and by FetchContent of the source's archive.

    subproject_test.py attnkit-0.1.0.tar.gz FOLDER    what is built stays in FOLDER
"""

import pathlib
import re
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ARCHIVE, FOLDER = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
fetch, = re.findall(r"(?ms)^```cmake\n(.*?)^```$", (SOURCE / "docs/using.md").read_text())
PARTS = {"add_subdirectory": f"add_subdirectory({SOURCE} attnkit)\ntarget_link_libraries(program PRIVATE attnkit::attnkit)\n",
         "FetchContent": fetch}


def run(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


for name, lines in PARTS.items():
    start, folder = time.monotonic(), FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ARCHIVE, folder)
    (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(whole LANGUAGES C CXX)\n"
                                           f"add_executable(program {SOURCE}/samples/cpp/translate.cpp)\n{lines}")
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", "-DATTNKIT_CUDA=OFF", *launcher)
    run("cmake", "--build", folder / "build", "--target", "program", "attnkit-plugin-process", "softmax", "cosformer", "leap")
    out = run(folder / "build/program", SOURCE / "samples/models/numbers-en-de/model.toml", "two hundred and forty-one euros")
    if out != "zweihunderteinundvierzig Euro\n":
        sys.exit(f"{name}: {out}")
    print(f"ok: {name}: compiled in {time.monotonic() - start:.0f} s, and translates")
