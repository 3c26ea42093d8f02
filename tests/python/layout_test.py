"""attnkit._abi against tests/abi/layout.txt, which the headers make."""

import ctypes
import os
import pathlib
import re
import unittest

from attnkit import _abi

LINES = pathlib.Path(os.environ["ATTNKIT_LAYOUT"]).read_text(encoding="utf-8").splitlines()
CONSTANTS = {name: int(value) for name, value in (line.split()[1:] for line in LINES if line.startswith("constant "))}
FUNCTIONS = dict(re.fullmatch(r"function (\w+) (.*)", line).groups() for line in LINES if line.startswith("function attnkit_"))
CALLBACKS = dict(re.fullmatch(r"callback (\w+) (.*)", line).groups() for line in LINES if line.startswith("callback attnkit_"))

PLAIN = {"void": None, "char": ctypes.c_char, "double": ctypes.c_double, "uintptr_t": _abi.uintptr_t, "const char*": ctypes.c_char_p,
         **{f"{u}int{bits}_t": getattr(ctypes, f"c_{u}int{bits}") for u in ("", "u") for bits in (8, 16, 32, 64)}}


def structs():
    """Of every struct its size and its fields (name, offset, size, C type)."""
    found = {}
    for line in LINES:
        words = line.split(" ")
        if words[0] == "struct":
            fields = []
            found[words[1]] = int(words[2]), fields
        elif line.startswith("  "):
            offset, size, name, kind = line.split(None, 3)
            fields.append((name, int(offset), int(size), kind))
    return found


STRUCTS = structs()
OURS = {name: value for name, value in vars(_abi).items() if isinstance(value, type) and issubclass(value, ctypes.Structure)
        and value is not ctypes.Structure}


def python_type(kind):
    """The type in _abi of a C type.  Handles are void pointers; pointers to structs and numbers are typed."""
    if kind in PLAIN:
        return PLAIN[kind]
    if found := re.fullmatch(r"(.*)\[(\d+)\]", kind):
        return python_type(found[1]) * int(found[2])
    if kind in CALLBACKS:
        return getattr(_abi, kind)
    if kind.endswith("* const*") or kind.endswith("**"):
        return ctypes.POINTER(PLAIN.get(kind.removesuffix(" const*"), ctypes.c_void_p))
    target = kind.removeprefix("const ").removesuffix("*")
    if target in OURS:
        return ctypes.POINTER(OURS[target])
    if kind.endswith("*"):
        return ctypes.POINTER(PLAIN[target]) if target in PLAIN and target != "void" else ctypes.c_void_p
    raise AssertionError(f"what is {kind} in Python?")


def signature(text):
    """"int32_t(const attnkit_model*, uint32_t)" as Python types, the result first."""
    result, arguments = re.fullmatch(r"([^(]*?)(?: \(\*\))?\((.*)\)", text).groups()
    return (python_type(result), *map(python_type, [] if arguments == "void" else arguments.split(", ")))


class Layout(unittest.TestCase):
    def test_structs(self):
        self.assertGreater(len(OURS), 7)
        for name, struct in OURS.items():
            size, fields = STRUCTS[name]
            mine = [(field, getattr(struct, field).offset, getattr(struct, field).size, kind) for field, kind in struct._fields_]
            # Fields past the header's end are those of a later minor.
            self.assertEqual(mine[:len(fields)], [(*field[:3], python_type(field[3])) for field in fields], name)
            self.assertTrue(len(mine) == len(fields) and ctypes.sizeof(struct) == size or
                            len(mine) > len(fields) and mine[len(fields)][1] >= size, name)

    def test_constants(self):
        ours = {name: value for name, value in vars(_abi).items() if name.startswith(("ATTN_", "ATTNKIT_"))}
        self.assertGreater(len(ours), 15)
        self.assertEqual(ours, {name: CONSTANTS[name] for name in ours})

    def test_functions(self):
        self.assertGreater(len(_abi.FUNCTIONS), 25)
        for name, (result, *arguments) in _abi.FUNCTIONS.items():
            expected = list(signature(FUNCTIONS[name]))
            if name.endswith("_data"):
                expected[0] = ctypes.c_void_p  # bytes that may hold NUL
            self.assertEqual([result, *arguments], expected, name)

    def test_callbacks(self):
        for name, text in CALLBACKS.items():
            callback = getattr(_abi, name)
            self.assertEqual((callback._restype_, *callback._argtypes_), signature(text), name)


if __name__ == "__main__":
    unittest.main()
