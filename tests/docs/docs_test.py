"""Links, names, quoted code and quoted output of the documents, the rooms, and the manifests of samples/.

docs_test.py SOURCE_FOLDER ATTNKIT DECODE
"""
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

SOURCE, ATTNKIT, DECODE = pathlib.Path(sys.argv[1]), *sys.argv[2:4]
VENVS = [file.parent for file in SOURCE.rglob("pyvenv.cfg")]  # what a README says to make beside a sample


def ours(paths):
    return [path for path in paths if not any(path.is_relative_to(venv) for venv in VENVS)]


DOCUMENTS = ours([SOURCE / "README.md", *(SOURCE / "docs").rglob("*.md"), *(SOURCE / "plugins").rglob("*.md"),
                  *(SOURCE / "samples").rglob("*.md"), *(SOURCE / "hosts").rglob("*.md"), *(SOURCE / "tests").rglob("*.md")])


def read(path):
    return (SOURCE / path).read_text()


def lines(text):
    return [line for line in text.splitlines() if line]


def blocks(text, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)


class Documents(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for document in DOCUMENTS:
            prose = re.sub(r"(?ms)^```.*?^```$", "", document.read_text())
            for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
                if "://" not in link:
                    self.assertTrue((document.parent / link).exists(), f"{document}: {link}")

    def test_names_exist(self):
        code = [f for folder in ("abi", "core", "plugins", "hosts", "tests") for f in (SOURCE / folder).rglob("*")
                if f.suffix in (".h", ".hpp", ".cpp", ".cmake", ".txt", ".in")]
        known = set(re.findall(r"\w+", "\n".join(f.read_text() for f in [*code, *(SOURCE / ".ci").glob("*.cmake"), SOURCE / "CMakeLists.txt"])))
        for document in DOCUMENTS:
            for name in re.findall(r"\b(?:ATTN_|ATTNKIT_|attn_|attnkit_)\w+\b", document.read_text()):
                self.assertTrue(name in known, f"{document}: {name}")

    def test_readme_shows_the_cpp_sample(self):
        self.assertIn(read("samples/cpp/translate.cpp"), blocks(read("README.md"), "cpp"))

    def test_tutorial_shows_the_plugin(self):
        tutorial, code = read("docs/writing-a-plugin.md"), read("samples/hello_plugin/mean.cpp")
        self.assertEqual(blocks(tutorial, "cmake"), [read("samples/hello_plugin/CMakeLists.txt")])
        self.assertEqual(lines("".join(blocks(tutorial, "cpp"))), lines(code))

    def test_contract_shows_what_decode_prints(self):
        printed = subprocess.run([DECODE, "relu"], capture_output=True, text=True, check=True).stdout
        self.assertIn(printed, blocks(read("docs/contract.md"), ""))

    def test_stream_shows_what_it_prints(self):
        page = read("docs/stream.md")
        command, printed = (text.splitlines() for text in re.search(r"(?ms)^```sh\n(.*?)^```$.*?^```\n(.*?)^```$", page).groups())
        done = subprocess.run([ATTNKIT, *shlex.split(command[0])[1:], "--events", "-"], cwd=SOURCE, capture_output=True, text=True, check=True)
        events, shown = ([re.sub('"seconds":[^}]*', "", line) for line in lines(text)] for text in
                         (done.stdout, "\n".join(re.findall(r'(?m)^    (\{"input".*)$', page))))
        self.assertEqual([event for event in shown if event not in events], [])
        self.assertGreater(len(shown), 2)
        self.assertIn(printed[0], done.stdout)
        timed = ("wait-k", "and computed")
        self.assertEqual([line for line in printed[1:] if not line.startswith(timed)],
                         [line for line in lines(done.stderr) if not line.startswith(timed)])

    def test_files_exist(self):
        name = re.compile(r"(?<![\w/.-])(?:abi|core|hosts|plugins|samples|tests|docs)/(?:[\w.-]+/)*[\w.-]+\.\w+")
        for document in DOCUMENTS:
            for path in name.findall(document.read_text()):
                self.assertTrue((SOURCE / path).exists(), f"{document}: {path}")

    def test_functions_of_a_run_are_where_it_passes(self):
        passed = re.search(r"(?s)## How a run travels\n(.*?)\nLoading", read("docs/contributing.md"))[1]
        places = re.findall(r"`([\w/]+\.[ch]pp)`\s+\(((?:`[\w:]+`(?:, )?)+)\)", passed)
        self.assertGreater(len(places), 12)
        for path, names in places:
            file = [f for f in (SOURCE / path, SOURCE / "abi/include/attnkit" / path) if f.exists()][0].read_text()
            for name in re.findall(r"`([\w:]+)`", names):
                self.assertRegex(file, rf"\b{name.rpartition('::')[2]}\(", f"{path}: {name}")

    def test_contributing_is_short(self):
        self.assertLess(len(read("docs/contributing.md").splitlines()), 150)


class Headers(unittest.TestCase):
    def test_headings_begin_their_lines(self):
        heading = re.compile(r"(?m)^(.*?)\b(Shapes|Numbers|Errors|Threads|Lifetime|Order|Text|Growth)  ")
        for header in ("plugin.h", "attnkit.h"):
            for before, name in heading.findall(read(f"abi/include/attnkit/{header}")):
                self.assertRegex(before, r"^ +\* $", f"{header}: {name}")


class Comments(unittest.TestCase):
    def test_open_with_their_subject(self):
        opens = re.compile(r'(?m)^\s*(?://+|/?\*|#|""") ?(?:What|How|Where) .*')
        for folder in ("abi", "core", "hosts", "plugins"):
            for source in (f for f in (SOURCE / folder).rglob("*") if f.suffix in (".h", ".hpp", ".cpp", ".cu", ".py", ".go", ".rs", ".cmake")):
                if not {"build", "target"} & set(source.relative_to(SOURCE).parts):
                    self.assertEqual(opens.findall(source.read_text()), [], source)


class Rooms(unittest.TestCase):
    """The tree of docs/contributing.md and the includes that docs/decisions/rooms.md allows."""
    tree = re.findall(r"(?m)^([\w/]+/)  +\w", read("docs/contributing.md"))

    def test_tree_names_the_folders(self):
        rooms = [path for room in ("core", "hosts", "hosts/cli") for path in (SOURCE / room).iterdir()]
        top = [SOURCE / name for name in ("abi", "architectures", "core", "plugins", "hosts", "samples", "tests", "docs")]
        folders = {f"{path.relative_to(SOURCE)}/" for path in [*rooms, *top] if path.is_dir() and path.name[0] not in "_."}
        self.assertEqual(folders - set(self.tree) - {"abi/"}, set())
        for folder in self.tree:
            self.assertTrue((SOURCE / folder).is_dir(), folder)

    def test_every_room_has_a_first_file(self):
        said = dict(re.findall(r"(?m)^((?:core|hosts/cli)/[\w/]*)  +\w.*: (\w+\.[ch]pp)$", read("docs/contributing.md")))
        alike = {"core/", "core/base/formats/", "core/without/", "hosts/cli/", "hosts/cli/commands/"}  # each file is a beginning
        for room in (f for f in self.tree if f.startswith(("core/", "hosts/cli/")) and f not in alike):
            named = [f"{pathlib.Path(room).name}.{kind}" for kind in ("hpp", "cpp")]
            self.assertTrue(any((SOURCE / room / name).exists() for name in ([said[room]] if room in said else named)), room)

    def test_rooms_are_not_crowded(self):
        tops = [f for f in SOURCE.iterdir() if f.is_dir() and not f.name.startswith((".", "build"))]
        for folder in ours([SOURCE, *(f for top in tops for f in top.glob("**/"))]):
            files = [f for f in folder.iterdir() if f.is_file()]
            self.assertLessEqual(len(files), 45 if folder not in (SOURCE / "core", SOURCE / "hosts/cli") else 30, folder)

    def test_includes(self):
        allowed = {"abi": (), "plugins": (), "core/base": ("core/base/",), "core/search": ("core/base/", "core/search/"),
                   "core/stream": ("core/base/", "core/stream/"), "core/import": ("core/base/", "core/import/"),
                   "core/conformance": ("core/base/", "core/plugin/", "core/conformance/"), "core": ("core/",),
                   "hosts": ("hosts/", "core/base/", "core/import/", "core/search/", "core/stream/")}
        for room in allowed:
            for source in (f for f in (SOURCE / room).rglob("*") if f.suffix in (".h", ".hpp", ".c", ".cpp", ".cu")):
                if "_test." in source.name or room == "core" and f"core/{source.relative_to(SOURCE).parts[1]}" in allowed:
                    continue
                for name in re.findall(r'(?m)^#include [<"]((?:abi|core|hosts|plugins|samples|tests)/[^>"]*)', source.read_text()):
                    self.assertTrue(name.startswith(allowed[room] or "no folder"), f"{source} includes {name}")

    def test_core_names_no_mechanism(self):
        # Words of their own in a host: the activation relu, a linear layer, a local variable or connection.
        names = {f.name for f in (SOURCE / "plugins").iterdir() if f.is_dir()} - {"relu", "linear", "local"}
        for source in (f for f in (SOURCE / "core").rglob("*") if f.suffix in (".hpp", ".cpp")):
            self.assertEqual(names & set(re.findall(r"\w+", source.read_text())), set(), source)


class Manifests(unittest.TestCase):
    model = tomllib.loads(read("samples/models/numbers-en-de/model.toml"))

    def test_describe_the_shipped_model(self):
        for path in (SOURCE / "samples/manifests").glob("*.toml"):
            text = path.read_text().replace("../models/numbers-en-de/", "")
            manifest = tomllib.loads(text)
            if "file" not in manifest["weights"]:
                continue  # untrained
            self.assertEqual(manifest["model"], self.model["model"], path)
            self.assertEqual(manifest["weights"]["file"], self.model["weights"]["file"], path)
            if "length" in manifest:
                self.assertAlmostEqual(manifest["length"]["alpha"], self.model["length"]["alpha"], delta=0.1)

    def test_are_valid_without_warnings(self):
        for path in (SOURCE / "samples/manifests").glob("*.toml"):
            done = subprocess.run([ATTNKIT, "validate", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, "warning" in done.stdout + done.stderr), (0, False), done.stderr)

    def test_of_the_page_do_what_it_says(self):
        page = read("docs/manifest.md")
        example, stream = blocks(page, "toml")[:2]
        said = re.search(r"(?m)^model\.toml:.*AK203.*\n  help: .*$", page)[0]
        refused = example.replace('{ use = "leap", factor = 4 }', '"cosformer"') + stream
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(SOURCE / "samples/models/numbers-en-de/vocab.txt", folder)
            for text, code, quoted in ((example, 0, "model.toml: ok"), (refused, 3, said)):
                (pathlib.Path(folder) / "model.toml").write_text(text)
                done = subprocess.run([ATTNKIT, "validate", "model.toml"], cwd=folder, capture_output=True, text=True)
                self.assertEqual(done.returncode, code, done.stderr)
                for line in lines(quoted):
                    self.assertIn(line.removesuffix("..."), done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
