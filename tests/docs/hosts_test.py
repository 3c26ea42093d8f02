"""docs/hosts.md against attnkit.h and the bindings: every call has a wrapper in each language, which is there and leads to the call.

hosts_test.py SOURCE_FOLDER
"""
import functools
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1])
HEADER = (SOURCE / "abi/include/attnkit/attnkit.h").read_text()
# Wrappers of Go that give what another function has fetched.
GO_NAMES = {"Block.Ports": "NewBlock", "Model.Info": "FromText"}
CALLS = re.findall(r"ATTNKIT_API [^;]*?\b(attnkit_\w+)\(", HEADER)
# Sources of each language, what a wrapper looks like there, and where a call is named.
LANGUAGES = {
    "C": (["samples/c/*.c", "samples/c/*.h"], None),
    "C++": (["abi/include/attnkit/attnkit.hpp"], r"\b{name}\("),
    "Rust": (["hosts/rust/attnkit/src/*.rs"], r"\bfn {name}\b"),
    "Go": (["hosts/go/*.go", "hosts/go/shim.h"], r"(?m)^func (?:\(\w+ \*?[\w.\[\]]+\) )?{name}\b"),
    "Python": (["hosts/python/attnkit/*.py"], r"\bdef {name}\("),
}


@functools.lru_cache(maxsize=None)
def sources(language):
    return [f.read_text() for pattern in LANGUAGES[language][0] for f in sorted(SOURCE.glob(pattern)) if f.name != "_abi.py"]


@functools.lru_cache(maxsize=None)
def functions_of_go():
    """Bodies of the module's functions and of those of shim.h by name, methods of exported types as Type.Name."""
    bodies = {}
    for source in sources("Go"):
        for kind, name, body in re.findall(r"(?ms)^func (?:\(\w+ \*?(\w+)[^)]*\) )?(\w+)(.*?)(?=^func |\Z)", source):
            bodies.setdefault(f"{kind}.{name}" if kind and name[0].isupper() else name, []).append(body)
        for name, body in re.findall(r"(?ms)^static inline \w+ (shim_\w+)(.*?)^}", source):
            bodies.setdefault(name, []).append(body)
    return bodies


def calls_of_go(wrapper):
    """The calls that a wrapper leads to, by itself and by the helpers that it uses."""
    seen, left, calls = set(), [wrapper], set()
    while left:
        for body in functions_of_go().get(left.pop(), []):
            calls |= set(re.findall(r"\battnkit_\w+", body)) & set(CALLS)
            used = {name for name in re.findall(r"\b\w+\b", body) if not name[0].isupper() and name in functions_of_go()} - seen
            seen |= used
            left += used
    return calls


def table():
    """The rows of the table: a call and its cells by language."""
    text = (SOURCE / "docs/hosts.md").read_text()
    lines = text[text.index("| call |"):].splitlines()
    head = [cell.strip() for cell in lines[0].strip("|").split("|")]
    return [dict(zip(head, (cell.strip().strip("`") for cell in line.strip("|").split("|")))) for line in lines[2:]]


class Hosts(unittest.TestCase):
    rows = table()

    def test_has_every_call_in_the_header_s_order(self):
        self.assertGreater(len(CALLS), 40)
        self.assertEqual([row["call"] for row in self.rows], CALLS)

    def test_no_cell_is_empty(self):
        for row in self.rows:
            self.assertEqual([language for language in LANGUAGES if not row[language]], [], row["call"])

    def test_every_language_calls_it(self):
        for language in LANGUAGES:
            text = "\n".join(sources(language))
            self.assertEqual([call for call in CALLS if not re.search(rf"\b{call}\b", text)], [], language)

    def test_wrappers_are_there(self):
        for language, (_, form) in LANGUAGES.items():
            text = "\n".join(sources(language))
            for row in self.rows:
                cell = row[language]
                if form is None:
                    self.assertTrue((SOURCE / "samples/c" / cell).is_file(), cell)
                    self.assertRegex((SOURCE / "samples/c" / cell).read_text(), rf"\b{row['call']}\b", f"{cell}: {row['call']}")
                    continue
                kind, _, name = cell.rpartition("::" if language in ("C++", "Rust") else ".")
                for part in filter(None, (kind, "" if name in ("drop", "~") else name)):
                    found = re.search(form.format(name=re.escape(part)), text) or re.search(rf"\b(?:class|struct|type|namespace) {part}\b", text)
                    self.assertTrue(found, f"{language} has no {part}: {row['call']}")
                if name in ("drop", "~", "Close", "close"):
                    continue
                if language == "Go":
                    self.assertIn(row["call"], calls_of_go(GO_NAMES.get(cell, cell)), cell)
                    continue
                # In one file with its wrapper.
                together = [source for source in sources(language) if re.search(form.format(name=re.escape(name)), source)
                            or re.search(rf"\bclass {name}\b", source)]
                self.assertTrue(any(re.search(rf"\b{row['call']}\b", source) for source in together), f"{language}: {cell} and {row['call']}")

    def test_cpp_samples_show_every_wrapper(self):
        shown = "\n".join(f.read_text() for f in (SOURCE / "samples/cpp").glob("*.?pp"))
        for cell in [*(row["C++"] for row in self.rows), "Session::step", "Model::translate"]:
            kind, _, name = cell.rpartition("::")
            if kind == "detail" or name == "~":
                continue  # of the other wrappers, and of every object
            used = r"\b(?:attnkit::)?{0}(?: \w+)?[({{]" if name == kind else r"(?:\.|->|::){1}\(" if kind else r"attnkit::{1}\("
            self.assertRegex(shown, used.format(kind, name), cell)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
