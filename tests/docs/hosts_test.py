"""docs/hosts.md against attnkit.h and the bindings: every call has a wrapper in each language, which is there and leads to the call.

hosts_test.py SOURCE_FOLDER
"""
import ast
import functools
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1])
HEADER = (SOURCE / "abi/include/attnkit/attnkit.h").read_text()
# Wrappers that give what another function has fetched.
FETCHED = {
    "Rust": {"Block::ports": "Block::new", "Model::info": "Model::load"},
    "Go": {"Block.Ports": "NewBlock", "Model.Info": "FromText"},
}
CALLS = re.findall(r"ATTNKIT_API [^;]*?\b(attnkit_\w+)\(", HEADER)
# Sources of each language, what a wrapper looks like there, and where a call is named.
LANGUAGES = {
    "C": ["samples/c/*.c", "samples/c/*.h"],
    "C++": ["abi/include/attnkit/attnkit.hpp"],
    "Rust": ["hosts/rust/attnkit/src/*.rs"],
    "Go": ["hosts/go/*.go", "hosts/go/shim.h"],
    "Python": ["hosts/python/attnkit/*.py"],
}
# A head of a type in front of its brace, and one of a function: the type that has it, if it says so, and its name.
HEADS = {
    ".hpp": (r"\b(?:class|struct) (\w+)", r"()(~?\w+)\("),
    ".h": (r"(?!)", r"()(\w+)\("),
    ".rs": (r"\bimpl\b.*?(\w+)(?:<[^<>]*>)? $", r"()\bfn (\w+)"),
    ".go": (r"(?!)", r"\bfunc (?:\(\w+ \*?(\w+)[^)]*\) )?(\w+)"),
}


@functools.lru_cache(maxsize=None)
def sources(language):
    return [(f.suffix, f.read_text()) for pattern in LANGUAGES[language] for f in sorted(SOURCE.glob(pattern)) if f.name != "_abi.py"]


def in_braces(suffix, text):
    """Functions of C, C++, Rust or Go: the type that has it or "", its name and its body."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"'(?:\\.|[^'\\])'", "' '", text)

    def after(at):
        depth = 0
        for brace in re.finditer("[{}]", text[at:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return at + brace.end()
        raise ValueError(f"a brace that nothing closes: {text[at:at + 80]}")

    of_type, of_function = HEADS[suffix]
    types, start, at = [], 0, 0
    while at < len(text):
        if text[at] == "{":
            head = " ".join(text[start:at].split()) + " "
            function = re.search(of_function, head)
            if head.count("(") > head.count(")"):  # a default value
                at = after(at)
                continue
            kind = "(" not in head and re.search(of_type, head)
            if kind or not function:
                types.append(kind[1] if kind else "")
            else:
                end = after(at)
                yield function[1] or "".join(types[-1:]), function[2], text[start:end]
                at = end - 1
            start = at + 1
        elif text[at] == "}":
            types[-1:] = []
            start = at + 1
        elif text[at] == ";":
            start = at + 1
        at += 1


def of_python(text):
    for node in ast.parse(text).body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                yield node.name if isinstance(node, ast.ClassDef) else "", function.name, ast.get_source_segment(text, function)


@functools.lru_cache(maxsize=None)
def functions(language):
    """Bodies by name, those of a type as Type.name too."""
    bodies = {}
    for suffix, text in sources(language):
        for kind, name, body in of_python(text) if suffix == ".py" else in_braces(suffix, text):
            for key in {name, f"{kind}.{name}"}:
                bodies.setdefault(key, []).append(body)
    return bodies


def calls_of(language, wrapper):
    """The calls that a wrapper leads to, by itself and by helpers, which no cell names."""
    named = {re.split(r"::|\.", row[language])[-1] for row in Hosts.rows}
    seen, left, calls = set(), [wrapper], set()
    while left:
        for body in functions(language).get(left.pop(), []):
            words = set(re.findall(r"\b\w+\b", body))
            calls |= words & set(CALLS)
            helpers = words - named - {"__init__"}
            used = {name for word in helpers for name in (word, f"{word}.__init__") if name in functions(language)} - seen
            seen |= used
            left += used
    return calls


def table():
    """The rows of the table: a call and its cells by language."""
    text = (SOURCE / "docs/hosts.md").read_text()
    lines = text[text.index("| call |"):].splitlines()
    head = [cell.strip() for cell in lines[0].strip("|").split("|")]
    return [dict(zip(head, (cell.strip().strip("`") for cell in line.strip("|").split("|")))) for line in lines[2:]]


class Documents(unittest.TestCase):
    # Give a table of the manifest, under the names that its keys have there.
    tables = {"ties_json", "head_json", "decode_json", "stream_json", "rotary_json"}

    def test_every_key_is_named(self):
        page = (SOURCE / "docs/hosts.md").read_text()
        named = set(re.findall(r"`(\w+)`", page[page.index("## The JSON documents"):page.index("## Every call")]))
        found = set()
        for path in ("core/api/describe.cpp", "core/plugin/probe.cpp", "core/api/verify.cpp"):
            for function in re.split(r"(?m)^(?=\w.*\) \{$)", (SOURCE / path).read_text()):
                if (re.match(r".*?(\w+)\(", function) or [""] * 2)[1] not in self.tables:
                    found |= {a or b for a, b in re.findall(r'\{"(\w+)", [^"]|\["(\w+)"\]', function)}
        self.assertGreater(len(found), 120)
        self.assertEqual(found - named, set())


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
            text = "\n".join(text for _, text in sources(language))
            self.assertEqual([call for call in CALLS if not re.search(rf"\b{call}\b", text)], [], language)

    def test_wrappers_lead_to_their_calls(self):
        for row in self.rows:
            self.assertRegex((SOURCE / "samples/c" / row["C"]).read_text(), rf"\b{row['call']}\b", row["C"])
            for language in list(LANGUAGES)[1:]:
                cell = FETCHED.get(language, {}).get(row[language], row[language])
                kind, name = ([""] + re.split(r"::|\.", cell))[-2:]
                if language == "Python" and name[0].isupper():
                    kind, name = name, "__init__"
                elif kind == "detail":
                    kind = ""
                with self.subTest(language=language, cell=row[language], call=row["call"]):
                    if name not in ("drop", "~", "Close", "close"):  # of what all handles have in common
                        self.assertIn(row["call"], calls_of(language, f"{kind}.{name}"))

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
