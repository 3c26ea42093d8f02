"""attnkit inside one program, fmt compiled in: without dlopen, oneTBB and OpenSSL, and with archives of these two.

    embedded_test.py FOLDER    what is built stays in FOLDER; ends with 77 if oneTBB's source, which becomes an archive, cannot be downloaded
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(sys.argv[1]).resolve()
MIRROR = os.environ.get("ATTNKIT_DEBIAN_MIRROR", "http://deb.debian.org/debian")
EMBEDDED = ["-DATTNKIT_DLOPEN=OFF", "-DATTNKIT_FMT_HEADER_ONLY=ON"]
LEFT_OUT = [*EMBEDDED, "-DATTNKIT_TBB=OFF", "-DATTNKIT_OPENSSL=OFF"]
MODEL = SOURCE / "samples/models/numbers-en-de/model.toml"
TRANSLATION = "zweihunderteinundvierzig Euro\n"
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


launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
configure = ["cmake", "-S", SOURCE, "-G", "Ninja", *launcher]


def programs(name, library, program=()):
    """Builds attnkit and the programs with these options; returns their folder."""
    build, prefix, folder = (FOLDER / name / part for part in ("build", "prefix", "program"))
    run(*configure, "-B", build, *library, "-DATTNKIT_PLUGINS=softmax;cosformer;leap")
    run("cmake", "--build", build)
    shutil.rmtree(prefix, ignore_errors=True)
    run("cmake", "--install", build, "--prefix", prefix)
    expect(not list(prefix.rglob("*.so*")) and not (prefix / "bin").exists(), "archives alone are installed")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(PROJECT)
    (folder / "options.c").write_text(RUNTIME)
    run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", *program)
    run("cmake", "--build", folder / "build")
    for made in (folder / "build" / sample for sample in ("translate", "save", "options")):
        needed = run("readelf", "-d", made)
        expect("libc." in needed and not any(name in needed for name in ("libtbb", "libcrypto", "libfmt", "libdl.", "libattnkit")),
               f"{made.name} needs none of the libraries")
    out = run(folder / "build/translate", MODEL, "two hundred and forty-one euros")
    expect(TRANSLATION in out, "it translates, with weights of a known SHA-256")
    out = run(folder / "build/save", MODEL, "two hundred and forty-one euros", folder / "saved")
    expect(TRANSLATION in out, "it saves a session and restores it")
    return folder / "build"


def archive_of_tbb():
    """The option that names an archive of oneTBB; Debian has none, so it is made of Debian's source.  None without a network."""
    apt, prefix = FOLDER / "apt", FOLDER / "tbb"
    if not prefix.exists():
        shutil.rmtree(apt, ignore_errors=True)
        (apt / "lists/partial").mkdir(parents=True)
        (apt / "sources").write_text(f"deb-src {MIRROR} bookworm main\n")
        own = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Etc::SourceList={apt}/sources", "-o", "Dir::Etc::SourceParts=/dev/null",
               "-o", f"Dir::State::Lists={apt}/lists"]
        if any(subprocess.run([*own, *words], cwd=apt).returncode != 0 for words in (["update"], ["source", "onetbb"])):
            return None
        source, = (folder for folder in apt.glob("onetbb-*") if folder.is_dir())
        run("cmake", "-S", source, "-B", apt / "build", "-G", "Ninja", *launcher, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF",
            "-DTBB_TEST=OFF", "-DTBB_STRICT=OFF", "-DTBBMALLOC_BUILD=OFF", f"-DCMAKE_INSTALL_PREFIX={prefix}")
        run("cmake", "--build", apt / "build", "--target", "install")
    return f"-DTBB_DIR={next(prefix.rglob('TBBConfig.cmake')).parent}"


start = time.monotonic()
left_out = programs("left-out", LEFT_OUT)
for name in ("translate", "options"):
    names = run("nm", "-D", "--undefined-only", left_out / name)
    expect("GLIBC_" in names and not any(call in names for call in (" dlopen", " dlsym", " dlmopen")), f"{name} calls no dlopen")
options = left_out / "options"
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

start = time.monotonic()
tbb = archive_of_tbb()
if not tbb:
    print(f"skipped: the source of oneTBB cannot be downloaded from {MIRROR}")
    sys.exit(77)
archives = [tbb, "-DOPENSSL_USE_STATIC_LIBS=ON"]
linked_in = programs("linked-in", [*EMBEDDED, *archives], archives)
expect('"softmax"' in run(linked_in / "options", "", "4"), "it has threads")
print(f"ok: one with archives of oneTBB and OpenSSL in {time.monotonic() - start:.0f} s")
