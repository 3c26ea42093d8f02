"""The wheel: made of an installed tree, installed by pip into a clean virtual environment, used from there alone."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
import venv

import samples

SOURCE, BUILD, CMAKE = (pathlib.Path(os.environ["ATTNKIT_TEST_" + name]) for name in ("SOURCE", "BUILD", "CMAKE"))
MODEL = SOURCE / "samples/models/numbers-en-de/model.toml"
PHRASE, TRANSLATION = "two hundred and forty-one euros", "zweihunderteinundvierzig Euro"


def run(*command):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ATTNKIT", "PYTHON", "LD_", "PIP_"))}
    done = subprocess.run([str(c) for c in command], cwd=ROOT, env=clean, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run(CMAKE, "--install", BUILD, "--prefix", ROOT / "tree", "--strip")
        if not shutil.which("patchelf"):
            raise unittest.SkipTest("no patchelf")
        library, = (ROOT / "tree").glob("lib*/**/libattnkit.so.1")
        if not library.with_name("libattnkit_cuda.so").exists():  # where nvcc is not, another stands in for it
            shutil.copy(library.parent / "attnkit/1/softmax.so", library.with_name("libattnkit_cuda.so"))
        make = [sys.executable, "-B", SOURCE / "hosts/python/wheel.py"]
        cls.wheel = run(*make, ROOT / "tree", ROOT / "dist").strip()
        cls.again = run(*make, ROOT / "tree", ROOT / "again").strip()
        venv.create(ROOT / "venv", with_pip=True)
        cls.bin, cls.before = ROOT / "venv/bin", set((ROOT / "venv").rglob("*"))
        run(cls.bin / "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check", cls.wheel)
        (ROOT / "tree").rename(ROOT / "gone")

    def test_the_command_translates(self):
        self.assertEqual(run(self.bin / "attnkit", "run", MODEL, "--text", PHRASE).strip(), TRANSLATION)

    def test_the_package_translates(self):
        program = f"import attnkit; print(attnkit.Model(attnkit.Runtime(), {str(MODEL)!r}).translate({PHRASE!r}))"
        self.assertEqual(run(self.bin / "python", "-B", "-c", program).strip(), TRANSLATION)

    def test_all_samples(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ATTNKIT", "PYTHON", "LD_"))} | {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        self.assertEqual(samples.failures("python", SOURCE / "samples", ROOT / "samples", environment, self.bin / "python"), [])

    def test_the_operators_are_found(self):
        file = run(self.bin / "python", "-B", "-c", "import attnkit.onnx; print(attnkit.onnx.library())").strip()
        self.assertTrue(file.startswith(str(ROOT / "venv/lib")) and os.path.isfile(file), file)
        run(self.bin / "python", "-B", "-c", f"import ctypes; ctypes.CDLL({file!r}).RegisterCustomOps")

    def test_all_of_it_is_in_the_environment(self):
        self.assertIn(str(ROOT / "venv/lib"), run(self.bin / "attnkit", "plugins", "--json"))
        run(self.bin / "pip", "check", "--disable-pip-version-check")

    def test_carries_every_plugin_and_library_of_ours(self):
        ours, carried = ({file.name for file in (ROOT / folder).rglob("*.so")} for folder in ("gone", "venv/lib"))
        self.assertIn("libattnkit_cuda.so", ours)
        self.assertLessEqual(ours - {"libattnkit.so"}, carried)  # that one is a link, to libattnkit.so.1

    def test_has_the_extras_of_the_project(self):
        extras = tomllib.loads((SOURCE / "hosts/python/pyproject.toml").read_text())["project"]["optional-dependencies"]
        program = "import importlib.metadata as m; print(*m.metadata('attnkit').get_all('Provides-Extra'), *m.requires('attnkit'), sep='\\n')"
        said = run(self.bin / "python", "-B", "-c", program).splitlines()
        self.assertEqual(sorted(said), sorted([*extras, *(f"{need}; extra == '{extra}'" for extra, needs in extras.items() for need in needs)]))

    def test_pip_takes_every_file_of_the_source(self):
        package, tools = SOURCE / "hosts/python/attnkit", tomllib.loads((SOURCE / "hosts/python/pyproject.toml").read_text())["tool"]["setuptools"]
        others = {file.name for file in package.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
        self.assertEqual(others, set(tools["package-data"]["attnkit"]))
        self.assertEqual({".".join(file.parent.relative_to(package.parent).parts) for file in package.rglob("*.py")}, set(tools["packages"]))

    def test_needs_nothing_but_the_c_and_cpp_libraries(self):
        prefix, = (ROOT / "venv/lib").glob("python*/site-packages/attnkit/prefix")
        files = [f for f in prefix.rglob("*") if f.is_file() and f.read_bytes()[:4] == b"\x7fELF"]
        self.assertTrue(any(f.name.startswith("libtbb-") for f in files))
        for file in files:
            found = run("ldd", file)
            self.assertNotIn("not found", found)
            for path in re.findall(r"(?m)^\s*(?:\S+ => )?(/\S+)", found):
                system = re.match(r"ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so", pathlib.Path(path).name)
                self.assertTrue(system or os.path.realpath(path).startswith(str(prefix)), f"{file}: {path}")

    def test_says_which_c_library_and_under_which_licences(self):
        self.assertRegex(pathlib.Path(self.wheel).name, r"-py3-none-manylinux_2_\d\d_\w+\.whl$")
        licences = {f.name for f in (ROOT / "venv").glob("lib/python*/site-packages/attnkit-*.dist-info/licenses/*")}
        self.assertLessEqual({"LICENSE", "copyright", "libtbb.copyright", "libcrypto.copyright", "libsndfile.copyright"}, licences)

    def test_is_made_of_an_installed_tree_alone(self):
        (ROOT / "empty").mkdir()
        for options in ((), ("--system-libraries",)):
            with self.assertRaisesRegex(AssertionError, "empty is no installed tree of attnkit: it has no bin/attnkit; run cmake --install"):
                run(sys.executable, "-B", SOURCE / "hosts/python/wheel.py", ROOT / "empty", ROOT / "none", *options)

    def test_may_leave_the_libraries_to_the_system(self):
        made = run(sys.executable, "-B", SOURCE / "hosts/python/wheel.py", ROOT / "gone", ROOT / "thin", "--system-libraries").strip()
        self.assertLess(pathlib.Path(made).stat().st_size, pathlib.Path(self.wheel).stat().st_size)
        self.assertIn("-linux_", made)

    def test_the_same_tree_gives_the_same_bytes(self):
        self.assertEqual(pathlib.Path(self.wheel).read_bytes(), pathlib.Path(self.again).read_bytes())

    def test_is_uninstalled_without_a_trace(self):
        self.addCleanup(run, self.bin / "pip", "install", "--no-index", "--quiet", "--disable-pip-version-check", self.wheel)
        run(self.bin / "pip", "uninstall", "--yes", "--quiet", "attnkit")
        self.assertEqual(set((ROOT / "venv").rglob("*")), self.before)


if __name__ == "__main__":
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        print("skipped: this Python makes no environments with pip; Debian has them in python3-venv")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="attnkit-wheel-") as made:
        ROOT = pathlib.Path(made).resolve()
        unittest.main()
