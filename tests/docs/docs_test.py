"""Links, names, quoted code and quoted output of the documents, and the manifests of samples/.

docs_test.py SOURCE_FOLDER ATTNKIT DECODE
"""
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest

SOURCE, ATTNKIT, DECODE = pathlib.Path(sys.argv[1]), *sys.argv[2:4]
DOCUMENTS = [SOURCE / "README.md", *(SOURCE / "docs").rglob("*.md"), *(SOURCE / "plugins").rglob("*.md"),
             *(SOURCE / "samples").rglob("*.md")]


def read(path):
    return (SOURCE / path).read_text()


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
        known = set(re.findall(r"\w+", "\n".join(f.read_text() for f in [*code, SOURCE / "CMakeLists.txt"])))
        for document in DOCUMENTS:
            for name in re.findall(r"\b(?:ATTN_|ATTNKIT_|attn_|attnkit_)\w+\b", document.read_text()):
                self.assertTrue(name in known, f"{document}: {name}")

    def test_readme_shows_the_cpp_sample(self):
        self.assertIn(read("samples/cpp/translate.cpp"), blocks(read("README.md"), "cpp"))

    def test_tutorial_shows_the_plugin(self):
        tutorial, code = read("docs/writing-a-plugin.md"), read("samples/hello_plugin/mean.cpp")
        self.assertEqual(blocks(tutorial, "cmake"), [read("samples/hello_plugin/CMakeLists.txt")])
        place = 0
        for excerpt in blocks(tutorial, "cpp"):
            place = code.find(excerpt, place)
            self.assertGreaterEqual(place, 0, f"mean.cpp does not have, in this order:\n{excerpt}")

    def test_contract_shows_what_decode_prints(self):
        printed = subprocess.run([DECODE, "relu"], capture_output=True, text=True, check=True).stdout
        self.assertIn(printed, blocks(read("docs/contract.md"), ""))

    def test_contributing_is_short(self):
        self.assertLess(len(read("docs/contributing.md").splitlines()), 60)


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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
