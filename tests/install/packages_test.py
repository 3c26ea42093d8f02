"""The packages that CPack makes of the build tree: their files, what they need, and the tree that they unpack to."""

import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, CMAKE = (pathlib.Path(os.environ["ATTNKIT_TEST_" + name]) for name in ("SOURCE", "BUILD", "CMAKE"))
LIBDIR = os.environ["ATTNKIT_TEST_LIBDIR"]
CPACK = CMAKE.with_name("cpack")
PACKAGES = ("libattnkit1", "libattnkit-dev", "attnkit-plugins", "attnkit")
TRANSLATION = "zweihunderteinundvierzig Euro"


def run(*command):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ATTNKIT", "LD_"))}
    done = subprocess.run([str(c) for c in command], cwd=ROOT, env=clean | {"SOURCE_DATE_EPOCH": "1700000000"}, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def pack(generator, folder, *options):
    run(CPACK, "-G", generator, "--config", BUILD / "CPackConfig.cmake", "-B", folder, *options)


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}


def translates(self, prefix):
    model = prefix / "share/attnkit/samples/models/numbers-en-de/model.toml"
    self.assertEqual(run(prefix / "bin/attnkit", "run", model, "--text", "two hundred and forty-one euros").strip(), TRANSLATION)


class Debian(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("dpkg-shlibdeps"):
            raise unittest.SkipTest("no dpkg-shlibdeps, which is in dpkg-dev")
        # xz, which packages have, takes longer than the rest together.
        pack("DEB", ROOT / "debian", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")
        cls.version = re.search(r"project\(attnkit VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        cls.fields, cls.files = {}, {}
        for file in (ROOT / "debian").glob("*.deb"):
            control = run("dpkg-deb", "-f", file)
            fields = dict(re.findall(r"(?m)^([\w-]+): (.*)$", control))
            cls.fields[fields["Package"]] = fields
            (ROOT / "unpacked").mkdir(exist_ok=True)
            run("dpkg-deb", "-x", file, ROOT / "unpacked" / fields["Package"])
            run("dpkg-deb", "-x", file, ROOT / "together")
            cls.files[fields["Package"]] = files(ROOT / "unpacked" / fields["Package"] / "usr")

    def needs(self, package):
        return dict(re.fullmatch(r"(\S+)(?: \((.*)\))?", need).groups() for need in self.fields[package].get("Depends", "").split(", "))

    def test_names_and_versions(self):
        self.assertEqual(set(self.fields), set(PACKAGES))
        self.assertEqual({fields["Version"] for fields in self.fields.values()}, {self.version})

    def test_each_file_is_in_one_package(self):
        run(CMAKE, "--install", BUILD, "--prefix", ROOT / "installed", "--strip")
        copyright = {f"share/doc/{name}/copyright" for name in PACKAGES}
        self.assertTrue(all(f"share/doc/{name}/copyright" in self.files[name] for name in PACKAGES))
        self.assertEqual(set().union(*self.files.values()), files(ROOT / "installed") | copyright)
        self.assertEqual(sum(map(len, self.files.values())), len(set().union(*self.files.values())))

    def test_rooms(self):
        plugins = {f"{LIBDIR}/attnkit/1/{file.name}" for file in (BUILD / "lib/attnkit/1").glob("*.so")}
        self.assertEqual(self.files["attnkit-plugins"] - plugins, {"share/doc/attnkit-plugins/copyright"})
        cuda = {f"{LIBDIR}/{file.name}" for file in (BUILD / "lib").glob("libattnkit_cuda.so")}  # where nvcc is
        self.assertEqual(self.files["libattnkit1"] - cuda, {f"{LIBDIR}/libattnkit.so.1", f"{LIBDIR}/libattnkit.so.{self.version}",
                                                            f"{LIBDIR}/attnkit/attnkit-plugin-process", "share/doc/libattnkit1/copyright"})
        for name in ("include/attnkit/attnkit.h", f"{LIBDIR}/libattnkit.so", f"{LIBDIR}/pkgconfig/attnkit.pc",
                     f"{LIBDIR}/cmake/attnkit/attnkitConfig.cmake", "share/attnkit/hosts/go/go.mod"):
            self.assertIn(name, self.files["libattnkit-dev"])
        for name in ("bin/attnkit", "share/doc/attnkit/LICENSE", f"{LIBDIR}/attnkit/python/attnkit/__init__.py",
                     f"{LIBDIR}/attnkit/libattnkit-onnxruntime.so"):
            self.assertIn(name, self.files["attnkit"])

    def test_licences_are_of_every_file_that_holds_the_runtime_of_cuda(self):
        named = re.search(r"(?m)^Files: (.*)\n(?:.+\n)*?License: .*CUDA-Runtime", (SOURCE / "hosts/packages/copyright").read_text())[1].split()
        for file in set().union(*self.files.values()) | {f"{LIBDIR}/libattnkit_cuda.so", f"{LIBDIR}/attnkit/1/relu-cuda.so"}:
            if file.startswith(LIBDIR) and file.endswith("cuda.so"):
                self.assertTrue(any(fnmatch.fnmatchcase(file, pattern) for pattern in named), file)

    def test_what_they_need(self):
        same = f"= {self.version}"
        self.assertEqual(self.needs("libattnkit-dev"), {"libattnkit1": same})
        self.assertEqual(self.needs("attnkit")["libattnkit1"], same)
        self.assertEqual(self.needs("attnkit")["attnkit-plugins"], same)
        self.assertEqual({re.sub(r"\d.*", "", need) for need in self.needs("libattnkit1")},
                         {"libc", "libfmt", "libgcc-s", "libpcre", "libssl", "libstdc++", "libtbb", "libutf", "libyaml-cpp", "zlib"})
        self.assertLessEqual({re.sub(r"\d.*", "", need) for need in self.needs("attnkit-plugins")}, {"libc", "libgcc-s", "libstdc++"})

    def test_others_are_linked_to_the_library_package(self):
        shlibs = run("dpkg-deb", "-I", next((ROOT / "debian").glob("libattnkit1_*.deb")), "shlibs")
        self.assertEqual(shlibs, f"libattnkit 1 libattnkit1 (>= {self.version})\n")

    def test_what_python_keeps_goes_with_its_package(self):
        run("dpkg-deb", "-e", next((ROOT / "debian").glob("attnkit_*.deb")), ROOT / "control")
        python = ROOT / "together/usr" / LIBDIR / "attnkit/python"
        for folder in (python / "attnkit", python / "attnkit/onnx"):
            (folder / "__pycache__").mkdir()
            (folder / "__pycache__/module.pyc").touch()
        before_removal = (ROOT / "control/prerm").read_text()
        self.assertIn(" /usr/", before_removal)
        run("sh", "-c", before_removal.replace(" /usr/", f" {ROOT}/together/usr/"))
        self.assertEqual([*python.rglob("__pycache__")], [])
        self.assertTrue((python / "attnkit/__init__.py").is_file() and os.access(ROOT / "control/prerm", os.X_OK))

    def test_unpacked_they_translate(self):
        translates(self, ROOT / "together/usr")

    def test_the_same_tree_gives_the_same_bytes(self):
        # In memory, if possible: another file system lists files in another order, and has folders of other sizes.
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            umask = os.umask(0o077)
            self.addCleanup(os.umask, umask)
            pack("DEB", folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", "-D", "CPACK_COMPONENTS_ALL=library")
            again, = pathlib.Path(folder).glob("*.deb")
            again = pathlib.Path(shutil.copy(again, ROOT))
        self.assertEqual(again.read_bytes(), (ROOT / "debian" / again.name).read_bytes())


class Archive(unittest.TestCase):
    def test_works_where_it_is_unpacked(self):
        pack("TGZ", ROOT / "archive")
        archive, = (ROOT / "archive").glob("*.tar.gz")
        run("tar", "-xf", archive)
        prefix = (ROOT / archive.name.removesuffix(".tar.gz")).rename(ROOT / "some where")
        translates(self, prefix)
        self.assertIn(str(prefix), run(prefix / "bin/attnkit", "plugins", "--json"))
        self.assertTrue((prefix / "share/doc/attnkit/copyright").is_file())


class Recipes(unittest.TestCase):
    """vcpkg's and Conan's, which nothing here can run."""
    version = re.search(r"project\(attnkit VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
    # By what CMake looks for: the port of vcpkg and the package of Conan.
    names = {"fmt": ("fmt", "fmt"), "tbb": ("tbb", "onetbb"), "openssl": ("openssl", "openssl"), "nlohmann": ("nlohmann-json", "nlohmann_json"),
             "tomlplusplus": ("tomlplusplus", "tomlplusplus"), "utf8proc": ("utf8proc", "utf8proc"), "pcre2": ("pcre2", "pcre2"),
             "kissfft": ("kissfft", "kissfft"), "sndfile": ("libsndfile", "libsndfile"), "yaml": ("yaml-cpp", "yaml-cpp"), "zlib": ("zlib", "zlib")}
    files = [file for folder in ("abi", "core", "hosts", "plugins") for file in (SOURCE / folder).rglob("*") if file.is_file()]
    cmake = "".join(file.read_text() for file in files if file.name == "CMakeLists.txt")
    ports = [need for need in json.loads((SOURCE / "hosts/packages/vcpkg/vcpkg.json").read_text())["dependencies"] if isinstance(need, str)]
    conan = dict(re.findall(r'"([\w-]+)/([^"]+)"', (SOURCE / "hosts/packages/conan/conanfile.py").read_text().partition("requires = (")[2].partition(")")[0]))

    def test_libraries_are_those_of_the_build(self):
        found = {name.lower().partition("_")[0] for name in re.findall(r"(?m)^ *find_(?:package|path|library)\((\w+)", self.cmake)}
        # libmd is for what has no OpenSSL; no package has CUDA.
        self.assertEqual(found - {"md", "cudatoolkit"}, {"boost", *self.names})
        self.assertEqual(set(self.conan), {"boost", *(conan for _, conan in self.names.values())})
        self.assertEqual({port for port in self.ports if not port.startswith("boost-")}, {port for port, _ in self.names.values()})

    def test_vcpkg_has_the_parts_of_boost(self):
        sources = (file.read_text() for file in self.files if file.suffix in (".hpp", ".cpp", ".cu"))
        parts = {part for text in sources for part in re.findall(r"(?m)^#include <boost/(\w+)", text)}
        of = {"archive": "serialization"}  # whose folder has another name
        self.assertEqual({port for port in self.ports if port.startswith("boost-")}, {"boost-" + of.get(part, part).replace("_", "-") for part in parts})

    def test_vcpkg_says_where_the_command_is(self):
        port = (SOURCE / "hosts/packages/vcpkg/portfile.cmake").read_text()
        before, after = re.search(r'vcpkg_replace_string\("[^"]*/attnkitConfig.cmake" "(.*)" "(.*)"\)', port).groups()
        config = re.findall(r'(?:EXISTS|attnkit_COMMAND) "(.*)"\)', (BUILD / "abi/attnkitConfig.cmake").read_text().replace(before, after))
        self.assertEqual(config[:2], ["${PACKAGE_PREFIX_DIR}/tools/attnkit/attnkit"] * 2)

    def test_conan_asks_for_no_older_versions_than_the_build(self):
        for name, version in re.findall(r"(?m)^ *find_package\(([\w-]+) ([\d.]+)", self.cmake):
            self.assertRegex(self.conan[name.lower()], rf"^\[>={re.escape(version)}\b", name)

    def test_versions_agree(self):
        self.assertEqual(json.loads((SOURCE / "hosts/packages/vcpkg/vcpkg.json").read_text())["version"], self.version)
        recipe = (SOURCE / "hosts/packages/conan/conanfile.py").read_text()
        compile(recipe, "conanfile.py", "exec")
        self.assertIn(f'version = "{self.version}"', recipe)


class Source(unittest.TestCase):
    def test_leaves_out_what_is_built_and_what_samples_make(self):
        patterns, = re.findall(r'(?m)^set\(CPACK_SOURCE_IGNORE_FILES "(.*)"\)$', (BUILD / "CPackSourceConfig.cmake").read_text())
        installs, = re.findall(r'REGEX "(/samples/[^"]*)" EXCLUDE', (BUILD / "cmake_install.cmake").read_text())
        left_out = lambda path: any(re.search(pattern, str(path)) for pattern in patterns.split(";"))
        self.assertTrue(left_out(SOURCE / "build-test/a") and left_out(SOURCE / ".git") and left_out(SOURCE / ".git/HEAD"))
        self.assertFalse(left_out("/home/build/attnkit/README.md") or left_out(SOURCE / "docs/build.md") or left_out(SOURCE / "samples/models/run"))
        lists = sorted((SOURCE / "samples/models").glob("*/.gitignore"))
        self.assertGreater(len(lists), 2)
        for made in (path.parent / name for path in lists for name in path.read_text().split()):
            self.assertTrue(left_out(made) and left_out(made / "a"), made)
            self.assertTrue(made.name == "__pycache__" or re.search(installs, str(made)), made)


class SourceArchive(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (SOURCE / ".git").exists() or not shutil.which("git"):
            raise unittest.SkipTest("no checkout of git")
        run(CPACK, "--config", BUILD / "CPackSourceConfig.cmake", "-B", ROOT / "source")
        cls.archive, = (ROOT / "source").glob("*.tar.gz")

    def git(self, *command):
        return run("git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, *command)

    def test_is_what_git_has(self):
        packed = {name.partition("/")[2] for name in run("tar", "-tzf", self.archive).splitlines() if not name.endswith("/")}
        ours = {name for name in self.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
                if name and (SOURCE / name).exists()}
        self.assertEqual(packed, ours)

    def test_says_its_commit(self):
        head = self.git("rev-parse", "HEAD")
        self.assertEqual(run("tar", "-xzOf", self.archive, "--wildcards", "*/hosts/commit"), head)
        self.git("archive", "--output", ROOT / "head.tar", "HEAD", "hosts")
        self.assertEqual(run("tar", "-xOf", ROOT / "head.tar", "hosts/commit"), head)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="attnkit-packages-") as made:
        ROOT = pathlib.Path(made).resolve()
        unittest.main(argv=sys.argv)
