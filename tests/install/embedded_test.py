"""attnkit inside one program: without dlopen, oneTBB and OpenSSL, fmt compiled in.

    embedded_test.py FOLDER    what is built stays in FOLDER
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(sys.argv[1]).resolve()
BUILD, PREFIX, PROGRAM = FOLDER / "build", FOLDER / "prefix", FOLDER / "program"
LEFT_OUT = ["-DATTNKIT_DLOPEN=OFF", "-DATTNKIT_TBB=OFF", "-DATTNKIT_OPENSSL=OFF", "-DATTNKIT_FMT_HEADER_ONLY=ON"]
MODEL = SOURCE / "samples/models/numbers-en-de/model.toml"
RUNTIME = """
#include <attnkit/attnkit.h>
#include <stdio.h>
#include <stdlib.h>

/* options PATH THREADS: what a runtime with these answers */
int main(int argc, char** argv) {
  attnkit_runtime_options options = {sizeof options};
  attnkit_runtime* runtime = NULL;
  attnkit_text* text = NULL;
  attn_error err = {0};
  int32_t code;
  err.struct_size = sizeof err;
  options.plugin_path = argc > 1 ? argv[1] : NULL;
  options.threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
  code = attnkit_runtime_create(&options, &runtime, &err);
  if (code == ATTN_OK && attnkit_runtime_list(runtime, &text, &err) == ATTN_OK) puts(attnkit_text_data(text, NULL));
  attnkit_text_destroy(text);
  attnkit_runtime_destroy(runtime);
  if (code != ATTN_OK) printf("%d %s\\n", (int)code, err.message);
  return 0;
}
"""
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES C CXX)
find_package(attnkit 1 REQUIRED COMPONENTS static)
foreach(name translate save)
  add_executable(${{name}} {SOURCE}/samples/c/${{name}}.c)
  attnkit_link_plugins(${{name}} softmax cosformer leap)
endforeach()
add_executable(options options.c)
attnkit_link_plugins(options softmax)
"""


def run(*command, status=0, **environment):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={k: v for k, v in os.environ.items() if k != "ATTNKIT_PLUGIN_PATH"} | environment)
    if done.returncode != status:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def expect(right, what):
    if not right:
        sys.exit(f"FAILED: {what}")
    print(f"ok: {what.splitlines()[0][:150]}")


start = time.monotonic()
PROGRAM.mkdir(parents=True, exist_ok=True)
launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
configure = ["cmake", "-S", SOURCE, "-G", "Ninja", *launcher]
run(*configure, "-B", BUILD, *LEFT_OUT, "-DATTNKIT_PLUGINS=softmax;cosformer;leap")
run("cmake", "--build", BUILD)
shutil.rmtree(PREFIX, ignore_errors=True)
run("cmake", "--install", BUILD, "--prefix", PREFIX)
expect(not list(PREFIX.rglob("*.so*")) and not (PREFIX / "bin").exists(), "archives alone are installed")

(PROGRAM / "CMakeLists.txt").write_text(PROJECT)
(PROGRAM / "options.c").write_text(RUNTIME)
shutil.rmtree(PROGRAM / "build", ignore_errors=True)
run("cmake", "-S", PROGRAM, "-B", PROGRAM / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={PREFIX}")
run("cmake", "--build", PROGRAM / "build")
translate, save, options = (PROGRAM / "build" / name for name in ("translate", "save", "options"))
for program in (translate, options):
    needed = run("readelf", "-d", program)
    expect(not any(name in needed for name in ("libtbb", "libcrypto", "libfmt", "libdl.", "libattnkit")), f"{program.name} needs none of the libraries")
    names = run("nm", "-D", "--undefined-only", program)
    expect("GLIBC_" in names and not any(name in names for name in (" dlopen", " dlsym", " dlmopen")), f"{program.name} calls no dlopen")

expect("zweihunderteinundvierzig Euro\n" in run(translate, MODEL, "two hundred and forty-one euros"), "it translates, with weights of a known SHA-256")
expect("zweihunderteinundvierzig Euro\n" in run(save, MODEL, "two hundred and forty-one euros", PROGRAM / "saved"), "it saves a session and restores it")
sentence = "this attnkit is built without dlopen (ATTNKIT_DLOPEN=OFF) and has the mechanisms of its program alone"
expect(run(options, "/tmp") == f'2 plugin_path "/tmp": {sentence}; leave it out\n', "a folder of plugins is refused in words")
listed = run(options, ATTNKIT_PLUGIN_PATH="/tmp")
expect('"softmax"' in listed and f"is not searched: {sentence}" in listed, "one of the environment is not searched, which it says")
expect(run(options, "", "4").startswith("2 threads 4: this attnkit is built without oneTBB"), "threads are refused in words")

for lines, words in ((["-DATTNKIT_TBB=OFF"], "set ATTNKIT_DLOPEN=OFF as well"), ([*LEFT_OUT, "-DATTNKIT_TESTS=ON"], "the tests are of the whole library"),
                     ([*LEFT_OUT, "-DATTNKIT_PLUGINS=softmax;sotfmax"], "sotfmax, which is no folder of plugins/")):
    said = " ".join(run(*configure, "-B", FOLDER / "refused", *lines, status=1).split())
    expect(words in said, f"{lines[-1]} is refused in words")
    shutil.rmtree(FOLDER / "refused")
print(f"ok: an embedded attnkit in {time.monotonic() - start:.0f} s")
