"""Installs the build into a fresh prefix, follows docs/writing-a-plugin.md there, and runs the commands of the documents."""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import samples


def setting(name):
    return os.environ["ATTNKIT_TEST_" + name]


SOURCE, BUILD = pathlib.Path(setting("SOURCE")), pathlib.Path(setting("BUILD"))
MODEL = SOURCE / "samples/models/numbers-en-de"
PHRASE, TRANSLATION = "two hundred and forty-one euros", "zweihunderteinundvierzig Euro"
temporary = tempfile.TemporaryDirectory(prefix="attnkit-install-")
ROOT = pathlib.Path(temporary.name)
PREFIX = ROOT / "prefix"
LIB = PREFIX / setting("LIBDIR")
PLUGINS = LIB / "attnkit/1"


def run(*command, **variables):
    """Standard output of a command that must succeed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "ATTNKIT_PLUGIN_PATH")}
    environment |= {k: str(v) for k, v in variables.items()}
    done = subprocess.run([str(c) for c in command], env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def attnkit(*arguments):
    return run(PREFIX / setting("BINDIR") / "attnkit", *arguments)


def exports(library):
    """Names of the defined dynamic symbols, without versions; a version's own symbol (A) is none."""
    symbols = [line.split()[1:] for line in run(setting("NM"), "-D", "--defined-only", library).splitlines()]
    return [name.split("@")[0] for kind, name in symbols if kind != "A"]


def package():
    """The variables and fields of the installed attnkit.pc."""
    path = LIB / "pkgconfig/attnkit.pc"
    values = {"pcfiledir": str(path.parent)}
    for line in path.read_text().splitlines():
        found = re.fullmatch(r"(\w+)(=|: )(.*)", line)
        if found:
            values[found[1]] = re.sub(r"\$\{(\w+)\}", lambda name: values[name[1]], found[3])
    return values


def build_c(source):
    """Builds a C sample with the flags of attnkit.pc alone."""
    flags, program = package(), ROOT / pathlib.Path(source).stem
    run(setting("CC"), "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *flags["Cflags"].split(),
        SOURCE / "samples/c" / source, *flags["Libs"].split(), f"-Wl,-rpath,{flags['libdir']}", "-o", program)
    return program


def setUpModule():
    run(setting("CMAKE"), "--install", BUILD, "--prefix", PREFIX)


def tearDownModule():
    temporary.cleanup()


class Prefix(unittest.TestCase):
    def test_has_every_public_header(self):
        ours, theirs = SOURCE / "abi/include", PREFIX / setting("INCLUDEDIR")
        for header in ours.rglob("*.h*"):
            self.assertEqual(header.read_bytes(), (theirs / header.relative_to(ours)).read_bytes(), header)

    def test_plugins_export_one_symbol(self):
        built = sorted((BUILD / "lib/attnkit/1").glob("*.so"))
        self.assertEqual([p.name for p in built], sorted(p.name for p in PLUGINS.glob("*.so")))
        for plugin in [*built, *PLUGINS.glob("*.so")]:
            self.assertEqual(exports(plugin), ["attn_plugin_main_v1"], plugin)

    def test_library_exports_its_header_alone(self):
        declared = re.findall(r"ATTNKIT_API .*?(attnkit_\w+)\(", (SOURCE / "abi/include/attnkit/attnkit.h").read_text())
        self.assertEqual(sorted(exports(LIB / "libattnkit.so")), sorted(declared))

    def test_operators_export_their_entry(self):
        self.assertEqual(exports(LIB / "attnkit/libattnkit-onnxruntime.so"), ["RegisterCustomOps"])

    def test_command_finds_its_plugins(self):
        found = [pathlib.Path(plugin["file"]) for plugin in json.loads(attnkit("plugins", "--json"))["plugins"]]
        self.assertEqual(sorted(found), sorted(PLUGINS.glob("*.so")))

    def test_package_config_agrees(self):
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config")
        path = f"PKG_CONFIG_PATH={LIB / 'pkgconfig'}"
        asked = run("env", path, "pkg-config", "--cflags", "--libs", "attnkit").split()
        flags = package()
        normal = [re.sub(r"^(-[IL])(.*)", lambda f: f[1] + os.path.realpath(f[2]), flag) for flag in asked]
        expected = [f"-I{os.path.realpath(flags['includedir'])}", f"-L{os.path.realpath(flags['libdir'])}", "-lattnkit"]
        self.assertEqual(normal, expected)

    def test_c_program_translates(self):
        out = run(build_c("translate.c"), MODEL / "model.toml", PHRASE)
        self.assertEqual(out.splitlines()[0], TRANSLATION)

    def test_architectures_can_be_copied(self):
        ours, theirs = SOURCE / "architectures", PREFIX / "share/attnkit/architectures"
        self.assertEqual({f.name: f.read_bytes() for f in ours.iterdir()}, {f.name: f.read_bytes() for f in theirs.iterdir()})

    def test_python_program_translates(self):
        translate = [sys.executable, "-B", SOURCE / "samples/python/translate.py", MODEL / "model.toml", PHRASE]
        self.assertEqual(run(*translate, PYTHONPATH=LIB / "attnkit/python", ATTNKIT_LIBRARY="").strip(), TRANSLATION)
        installed, ours = LIB / "attnkit/python/attnkit", SOURCE / "hosts/python/attnkit"
        self.assertEqual(*({m.relative_to(root): m.read_bytes() for m in root.rglob("*") if m.suffix in (".py", ".typed")}
                           for root in (installed, ours)))


class Share(unittest.TestCase):
    """The files beside the binaries."""

    def test_has_licence_and_documents(self):
        documents = PREFIX / "share/doc/attnkit"
        for name in ("LICENSE", "README.md", "CHANGELOG.md", "docs/manifest.md", "docs/benchmarks/README.md"):
            self.assertEqual((documents / name).read_bytes(), (SOURCE / name).read_bytes())

    def test_links_lead_somewhere(self):
        self.assertEqual([path for path in PREFIX.rglob("*") if path.is_symlink() and not path.exists()], [])

    def test_documents_link_to_what_is_installed(self):
        documents, source_alone = PREFIX / "share/doc/attnkit", re.compile(r"(?:core|tests)/.*|plugins/\w+/\w+\.[ch]pp")
        pages = [pathlib.Path(folder, name) for folder, _, names in os.walk(documents, followlinks=True) for name in names if name.endswith(".md")]
        for page in pages:
            for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", re.sub(r"(?ms)^```.*?^```$", "", page.read_text())):
                target = os.path.normpath(page.parent / link)  # as browsers read it, whatever is a link on the way
                if "://" not in link and not source_alone.fullmatch(os.path.relpath(target, documents)):
                    self.assertTrue(os.path.exists(target), f"{page}: {link}")
        self.assertLess({"README.md", "hosts/python/README.md", "plugins/softmax/README.md", "samples/hello_plugin/README.md"},
                        {page.relative_to(documents).as_posix() for page in pages})

    def test_has_the_page_of_man_and_completions(self):
        for form, place in (("man", "man/man1/attnkit.1"), ("bash", "bash-completion/completions/attnkit"), ("zsh", "zsh/site-functions/_attnkit"),
                            ("fish", "fish/vendor_completions.d/attnkit.fish")):
            self.assertEqual((PREFIX / "share" / place).read_text(), attnkit("manual", form))

    def test_has_samples_that_run(self):
        samples = PREFIX / "share/attnkit/samples"
        self.assertEqual(attnkit("run", samples / "models/numbers-en-de/model.toml", "--text", PHRASE).strip(), TRANSLATION)
        self.assertTrue((samples / "c/translate.c").is_file() and (samples / "manifests/softmax.toml").is_file())


class Project(unittest.TestCase):
    """attnkit as a package and as a part of another CMake project."""

    def configure(self, name, lines, *options):
        folder = ROOT / name
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text("\n".join(["cmake_minimum_required(VERSION 3.25)", *lines, ""]))
        return run(setting("CMAKE"), "-S", folder, "-B", folder / "build", "-G", setting("GENERATOR"), f"-DCMAKE_PREFIX_PATH={PREFIX}",
                   f"-DCMAKE_C_COMPILER={setting('CC')}", f"-DCMAKE_CXX_COMPILER={setting('CXX')}", *options)

    def test_a_version_is_that_of_the_contract_or_of_the_product(self):
        minor = int(re.search(r"ABI_MINOR (\d+)", (SOURCE / "abi/include/attnkit/plugin.h").read_text())[1])
        good = ("", "1", "1.0", "0.1", "0.1.0", f"1.0...1.{minor}", "1.0...<2", "0.1...0.9")
        bad = ("2", f"1.{minor + 1}", "0.2", "1.0...1.0.5", f"1.0...<1.{minor}")
        lines = [line for version in (*bad, *good) for line in (f"find_package(attnkit {version} QUIET)", f'message(STATUS "{version}: ${{attnkit_FOUND}}")')]
        out = self.configure("versions", ["project(versions LANGUAGES CXX)", *lines])
        self.assertEqual(re.findall(r"(?m)^-- (.*): ([01])$", out), [*((version, "0") for version in bad), *((version, "1") for version in good)])

    def test_a_program_names_its_mechanisms_once(self):
        lines = ["project(linked LANGUAGES {})", "find_package(attnkit 1 REQUIRED COMPONENTS static)", f"add_executable(program {SOURCE}/samples/c/translate.c)"]
        once, known = "name all its mechanisms, at least one,", r"no\s+mechanism\s+sotfmax:\s+attnkit\s+has\s[^;]*leap,[^;]*softmax[^;]*;"
        calls = {"once": ("C CXX", ["softmax leap"], ""), "twice": ("C CXX", ["softmax", "leap"], once), "none": ("C CXX", [""], once),
                 "no-cxx": ("C", ["softmax"], once), "unknown": ("C CXX", ["leap sotfmax"], known)}
        for name, (languages, mechanisms, said) in calls.items():
            whole = [line.format(languages) for line in lines] + [f"attnkit_link_plugins(program {some})" for some in mechanisms]
            if name == "once":
                self.configure(f"linked-{name}", whole)
                continue
            with self.assertRaisesRegex(AssertionError, said):
                self.configure(f"linked-{name}", whole)

    def test_a_program_holds_a_mechanism_of_its_project(self):
        if not (LIB / "libattnkit.a").exists():
            self.skipTest("built without ATTNKIT_STATIC")
        self.configure("own", ["project(own LANGUAGES C CXX)", "find_package(attnkit 1 REQUIRED COMPONENTS static)",
                               f"add_subdirectory({SOURCE}/samples/hello_plugin mean)",
                               *(line for name, mechanisms in (("program", "leap mean"), ("another", "mean")) for line in (
                                   f"add_executable({name} {SOURCE}/samples/c/decode.c)", f"attnkit_link_plugins({name} {mechanisms})"))])
        run(setting("CMAKE"), "--build", ROOT / "own/build")
        for program in ("program", "another"):
            self.assertIn("all at once: 10 15 23.3333\n", run(ROOT / "own/build" / program, "mean"))

    def test_a_package_without_archives_says_so(self):
        archives = LIB / "cmake/attnkit/attnkitStaticTargets.cmake"
        if archives.exists():
            self.addCleanup(archives.with_suffix(".away").rename, archives)
            archives.rename(archives.with_suffix(".away"))
        with self.assertRaisesRegex(AssertionError, r"-DATTNKIT_STATIC=ON,\s+and\s+this\s+one"):
            self.configure("no-archives", ["project(linked LANGUAGES C CXX)", "find_package(attnkit 1 REQUIRED COMPONENTS static)"])

    def test_a_plugin_is_validated_by_the_command_of_the_project(self):
        (ROOT / "empty.cpp").touch()
        self.configure("validated", ["project(validated LANGUAGES CXX)", "enable_testing()", "find_package(attnkit 1 REQUIRED)",
                                     f"add_library(mean MODULE {ROOT}/empty.cpp)", "attnkit_add_plugin_test(mean)"], "-Dattnkit_COMMAND=/another/attnkit")
        self.assertIn("/another/attnkit", (ROOT / "validated/build/CTestTestfile.cmake").read_text())

    def test_a_part_of_another_project_brings_no_tests_and_installs_nothing(self):
        fetched = "".join(fragments(SOURCE / "docs/using.md", "cmake"))
        self.assertIn("FetchContent_MakeAvailable(attnkit)", fetched)
        for name, added in (("whole", [f"add_subdirectory({SOURCE} attnkit)", "target_link_libraries(program PRIVATE attnkit::attnkit)"]),
                            ("fetched", [fetched])):
            lines = [f"project({name} LANGUAGES C CXX)", "enable_testing()", f"add_library(program MODULE {SOURCE}/samples/cpp/translate.cpp)"]
            self.configure(name, [*lines, *added], "-DATTNKIT_CUDA=OFF", f"-DFETCHCONTENT_SOURCE_DIR_ATTNKIT={SOURCE}")
            build = ROOT / name / "build"
            self.assertIn("Total Tests: 0", run("ctest", "--test-dir", build, "-N"))
            run(setting("CMAKE"), "--install", build, "--prefix", ROOT / "nothing")
            self.assertFalse((ROOT / "nothing").exists())
            self.assertRegex((build / "CMakeCache.txt").read_text(), r"(?m)^CMAKE_BUILD_TYPE:STRING=$")
            self.assertFalse((build / "CPackConfig.cmake").exists())

    def test_a_build_is_for_release_unless_it_says_otherwise(self):
        run(setting("CMAKE"), "-S", SOURCE, "-B", ROOT / "release", "-G", setting("GENERATOR"), "-DATTNKIT_TESTS=OFF", "-DATTNKIT_CUDA=OFF",
            f"-DCMAKE_C_COMPILER={setting('CC')}", f"-DCMAKE_CXX_COMPILER={setting('CXX')}")
        self.assertRegex((ROOT / "release/CMakeCache.txt").read_text(), r"(?m)^CMAKE_BUILD_TYPE:STRING=Release$")


def fragments(page, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page.read_text())


class Commands(unittest.TestCase):
    """Every command of the documents, with the installed attnkit first in PATH."""
    # Commands that are not run here, and why.
    elsewhere = {
        r"\./(quickstart|test)\.sh": "this is the test; continuous integration runs both",
        "cpack |vcpkg |conan ": "tests/install/packages_test.py makes the packages, and reads the recipes",
        r"(build/bin/)?attnkit (search|bundle search/)": "takes minutes; quickstart.sh and the tests of search and bundles run it",
        r"ATTNKIT_\w+=|cmake |ctest |build-test/": "builds or tests the tree itself",
        r"python |python3 -m venv|apt-get|arecord": "trains models, installs packages, records speech",
        r".*bertling": "tests/import/architecture_test.py makes that checkpoint",
        r"PYTHONPATH=hosts": "the tests of the Python package do this",
        r"scp |.* --device cuda": "needs a machine with a GPU; tests/cuda/model_test.cpp has such models on the emulator",
        r"\.ci/aarch64|qemu-aarch64": "needs a cross compiler: continuous integration runs .ci/aarch64",
        r"venv/bin/python corpus.py|here=|PYTHON=|\$here/": "downloads 149 packages, trains for hours: tests/models/corpus_test.py has the parts",
        r"python3 -m attnkit.onnx": "needs packages of PyPI: tests/python/tools/onnx_export_test.py",
        r"python3 -m (attnkit.train|pip)|torchrun |options=|.* run/model/": "trains, or takes what was trained: tests/python/training/train_test.py",
    }

    def commands(self):
        pages = [SOURCE / "README.md", *(SOURCE / "docs").glob("*.md"), *(SOURCE / "samples").rglob("*.md"),
                 *(SOURCE / "hosts").rglob("*.md"), *(SOURCE / "plugins").rglob("*.md")]
        for page in pages:
            if page.name in ("writing-a-plugin.md", "using.md"):
                continue  # below
            for line in "".join(fragments(page, "sh")).replace("\\\n", " ").splitlines():
                if line.strip() and not any(re.match(pattern, line) for pattern in self.elsewhere):
                    yield page, line

    def test_run(self):
        folder = ROOT / "commands"
        folder.mkdir()
        for name, target in (("samples", SOURCE / "samples"), ("build", PREFIX)):
            (folder / name).symlink_to(target)
        recording = SOURCE / "samples/models/numbers-speech/recordings/130.flac"
        shutil.copy(recording, folder / "a.wav")
        (folder / "test.tsv").write_text("a.wav\tzwei Euro\n")
        for model, golden in (("all-MiniLM-L6-v2", "bert"), ("SmolLM2-135M", "llama"), ("whisper-tiny", "whisper")):
            shutil.copytree(SOURCE / f"tests/import/golden/{golden}", folder / model)
        shutil.copy(SOURCE / "tests/import/golden/whisper/1.wav", folder / "meeting.wav")
        (folder / "lines.txt").write_text("A text.\nAnother one.\n")
        found = 0
        for page, line in self.commands():
            with self.subTest(page=page.name, command=line):
                run("bash", "-euo", "pipefail", "-c", f"cd {folder}; {line}", ATTNKIT_LIBRARY="",
                    PATH=f"{PREFIX / setting('BINDIR')}:{os.environ['PATH']}")
            found += 1
        self.assertGreater(found, 10)


class Using(unittest.TestCase):
    """docs/using.md in the prefix: the lines before its first heading, then those of each."""
    def test_sections(self):
        first, *sections = (SOURCE / "docs/using.md").read_text().split("\n## ")
        blocks = {text.split("\n")[0]: re.findall(r"(?ms)^```sh\n(.*?)^```$", text) for text in sections}
        needed = {"Rust": "cargo", "Go": "go"}
        self.assertEqual(list(blocks), ["C", "C++", "CMake", "One program without dlopen", "Rust", "Go", "Python"])
        common = "".join(re.findall(r"(?ms)^```sh\n(.*?)^```$", first))
        for language, code in blocks.items():
            with self.subTest(language=language):
                if not shutil.which("pkg-config") or not shutil.which(needed.get(language, "sh")):
                    self.skipTest(f"no pkg-config, or no {needed.get(language)}")
                if "dlopen" in language and not (LIB / "libattnkit.a").exists():
                    self.skipTest("built without ATTNKIT_STATIC")
                folder = ROOT / "using" / language.split()[0]
                folder.mkdir(parents=True)
                out = run("bash", "-euo", "pipefail", "-c", f"cd {folder}\n{common}{''.join(code)}", PREFIX=PREFIX, GOPROXY="off",
                          GOCACHE=BUILD / "go-cache", CMAKE_GENERATOR=setting("GENERATOR"), ATTNKIT_LIBRARY="")
                self.assertEqual(out.splitlines()[0], "halb vier")
                self.assertIn(TRANSLATION, out.splitlines())
                if "dlopen" in language:
                    self.assertEqual(out.splitlines().count(TRANSLATION), 2)
                    for program in ("whole/build/whole", "by-hand"):
                        self.assertNotIn("libattnkit", run("ldd", folder / program))


class Samples(unittest.TestCase):
    """Every sample in the prefix, built and run in each language."""
    def test_all(self):
        environment = {k: v for k, v in os.environ.items() if k != "ATTNKIT_PLUGIN_PATH"} | {
            "PATH": f"{PREFIX / setting('BINDIR')}:{os.environ['PATH']}", "PKG_CONFIG_PATH": f"{LIB}/pkgconfig", "LD_LIBRARY_PATH": str(LIB),
            "PYTHONPATH": f"{LIB}/attnkit/python", "CMAKE_PREFIX_PATH": str(PREFIX), "CC": setting("CC"),
            "CXX": f"{setting('LAUNCHER')} {setting('CXX')}".strip(), "GOPROXY": "off", "GOCACHE": f"{BUILD}/go-cache"}
        for language, needed in (("c", "pkg-config"), ("cpp", "pkg-config"), ("rust", "cargo"), ("go", "go"), ("python", "python3")):
            with self.subTest(language=language):
                if not shutil.which("pkg-config") or not shutil.which(needed):
                    self.skipTest(f"no pkg-config, or no {needed}")
                self.assertEqual(samples.failures(language, PREFIX / "share/attnkit/samples", ROOT / "samples" / language, environment), [])


class Tutorial(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        page = SOURCE / "docs/writing-a-plugin.md"
        (ROOT / "mean").mkdir()
        (ROOT / "mean/CMakeLists.txt").write_text("".join(fragments(page, "cmake")))
        (ROOT / "mean/mean.cpp").write_text("".join(fragments(page, "cpp")))
        commands = "".join(fragments(page, "sh"))
        cls.output = run("bash", "-euo", "pipefail", "-c", commands, PREFIX=PREFIX, ATTNKIT=SOURCE, CXX=setting("CXX"),
                         CMAKE_GENERATOR=setting("GENERATOR"), CMAKE_CXX_COMPILER_LAUNCHER=setting("LAUNCHER"),
                         PATH=f"{PREFIX / setting('BINDIR')}:{os.environ['PATH']}")
        cls.folder = ROOT / "build/lib/attnkit/1"

    def test_exports_one_symbol(self):
        self.assertEqual(exports(self.folder / "mean.so"), ["attn_plugin_main_v1"])

    def test_is_listed(self):
        plugin, = json.loads(attnkit("plugins", "mean", "--json", "--plugin-dir", self.folder))["plugins"]
        self.assertEqual([o["name"] for o in plugin["options"]], ["decay"])
        self.assertTrue(all(place["fits"] for place in plugin["places"]))

    def test_computes_means(self):
        decode = build_c("decode.c")
        self.assertIn("all at once: 10 15 23.3333\n", run(decode, "mean", "", self.folder))
        out = run(decode, "mean", "decay = 0.5", self.folder)
        # (20 + 10/2) / (1 + 1/2), (40 + 20/2 + 10/4) / (1 + 1/2 + 1/4); streamed and whole
        self.assertIn("output 16.6667", out)
        self.assertIn("output 30", out)
        self.assertIn("all at once: 10 16.6667 30\n", out)

    def test_sits_in_the_model(self):
        report = json.loads(attnkit("inspect", ROOT / "model/model.toml", "--json", "--plugin-dir", self.folder))
        grid = {block["block"]: (block["mechanism"], block["options"]) for block in report["blocks"]}
        self.assertEqual([grid[f"decoder.self.{layer}"] for layer in (1, 2, 3)], [("mean", {"decay": 0.9})] * 3)

    def test_changed_one_line(self):
        before, after = ((folder / "model.toml").read_text().splitlines() for folder in (MODEL, ROOT / "model"))
        self.assertEqual([new for old, new in zip(before, after) if old != new],
                         ['"decoder.self" = { use = "mean", decay = 0.9 }'])
        self.assertEqual(len(before), len(after))

    def test_translates_something(self):
        # Nobody trained the model for it, so what it says is not tested, only that it says something.
        self.assertRegex(self.output.splitlines()[-1], r"\w")

    def test_is_validated_by_ctest(self):
        self.assertRegex(self.output, r"mean\.validate \.+ +Passed")

    def test_obeys_the_laws_with_values_that_fade(self):
        code = (ROOT / "mean/mean.cpp").read_text().replace('"decay", 1,', '"decay", 0.9,')
        fading = ROOT / "fading/mean.so"
        fading.parent.mkdir()
        (fading.parent / "mean.cpp").write_text(code)
        run(setting("CXX"), "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{PREFIX}/include", "fading/mean.cpp", "-o", fading,
            *(["-fno-gnu-unique"] if "clang" not in setting("CXX") else []), f"-Wl,--version-script={LIB}/cmake/attnkit/exports.map")
        self.assertIn("\nok: ", attnkit("validate-plugin", fading, "--seed", "1"))

    def test_gradients_in_f64_have_its_digits(self):
        decay, = struct.unpack("f", struct.pack("f", 0.4999))  # of the second output, (decay v1 + v2) / (1 + decay)
        out = run(sys.executable, "-B", "-c", GRADIENT, self.folder, PYTHONPATH=LIB / "attnkit/python", ATTNKIT_LIBRARY="")
        for given, exact in zip(map(float, out.split()), (decay / (1 + decay), 1 / (1 + decay)), strict=True):
            self.assertAlmostEqual(given, exact, delta=1e-14)


# That of the second output.
GRADIENT = """
import array, sys
import attnkit

def column(*values):
    return memoryview(array.array("d", values)).cast("B").cast("d", (1, 1, len(values), 1))

block = attnkit.Block(attnkit.Runtime(threads=1, plugin_path=sys.argv[1]), "mean", "decoder.self", d_model=1, heads=1, options="decay = 0.4999")
run = block.run(block.request(queries=2, keys=2, flags=attnkit.TRAIN, dtype="float64"), {"v": column(0, 0)})
gradient = column(0, 0)
block.backward(run, {"o": column(0, 1), "v": gradient})
print(*gradient.cast("B").cast("d"))
"""


if __name__ == "__main__":
    unittest.main()
