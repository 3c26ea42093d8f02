"""Installs the build into a fresh prefix, then builds a plugin and a C program with nothing but that prefix."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest


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


def run(*command, status=0):
    """Standard output of a command that must end with the status."""
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "ATTNKIT_PLUGIN_PATH")}
    done = subprocess.run([str(c) for c in command], env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != status:
        raise AssertionError(f"{command}: status {done.returncode}, expected {status}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def attnkit(*arguments):
    return run(PREFIX / setting("BINDIR") / "attnkit", *arguments)


def exports(library):
    return [line.split()[-1] for line in run(setting("NM"), "-D", "--defined-only", library).splitlines()]


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

    def test_command_finds_its_plugins(self):
        for plugin in json.loads(attnkit("plugins", "--json"))["plugins"]:
            self.assertEqual(pathlib.Path(plugin["file"]).parent, PLUGINS)

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


class OutsidePlugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        source, build = ROOT / "elsewhere/mean", ROOT / "elsewhere/build"
        shutil.copytree(SOURCE / "samples/hello_plugin", source)
        run(setting("CMAKE"), "-S", source, "-B", build, "-G", setting("GENERATOR"), f"-DCMAKE_PREFIX_PATH={PREFIX}",
            f"-DCMAKE_CXX_COMPILER={setting('CXX')}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={setting('LAUNCHER')}")
        run(setting("CMAKE"), "--build", build)
        cls.folder = build / "lib/attnkit/1"

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

    def test_runs_in_the_sample_model(self):
        model = ROOT / "model"
        shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("*.py", "*.tsv", "*.md", "__pycache__"))
        text = (model / "model.toml").read_text()
        text, lines = re.subn(r'(?m)^"decoder.self" = .*$', '"decoder.self" = "mean"', text)
        self.assertEqual(lines, 1)
        (model / "model.toml").write_text(text)
        report = json.loads(attnkit("inspect", model / "model.toml", "--json", "--plugin-dir", self.folder))
        grid = {block["block"]: block["mechanism"] for block in report["blocks"]}
        self.assertEqual([grid[f"decoder.self.{layer}"] for layer in (1, 2, 3)], ["mean"] * 3)
        # Nobody trained the model for it, so what it says is not tested, only that it does.
        self.assertRegex(attnkit("run", model / "model.toml", "--text", PHRASE, "--plugin-dir", self.folder), r"\w")

    def test_obeys_the_laws(self):
        laws = BUILD / "bin/attnkit_conformance"
        if not laws.exists():
            self.skipTest("the conformance tests were not built")
        os.environ["ATTNKIT_CONFORMANCE_PLUGINS"] = str(self.folder / "mean.so")
        # It reads no queries.
        run(laws, "--gtest_filter=-*NanInAQuery*")


if __name__ == "__main__":
    unittest.main()
