"""libabigail compares the types of every export with those of the last contract that was frozen.

    abidiff_test.py HEADERS FROZEN C_COMPILER

The library by itself says no types.  What is compared is a library of empty functions with the declarations of both headers, which
layout_test.cpp and install_test.py hold the real ones to.  ATTNKIT_WRITE_ABI=1 writes FROZEN, when a minor has got an export.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HEADERS, FROZEN, COMPILER = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
# The contract allows that structs that begin with struct_size grow at their end.  A field of one that grows may change its
# type unseen here: layout.txt has the types.
GROWTH = """[suppress_type]
type_kind = struct
name_regexp = ^({})$
has_size_change = yes
has_data_member_inserted_at = end
"""


def text_of(headers):
    return (headers / "attnkit/attnkit.h").read_text() + (headers / "attnkit/plugin.h").read_text()


def growing(headers):
    """The names of the structs that begin with struct_size."""
    return re.findall(r"struct (\w+) \{\s*uint32_t struct_size\b", text_of(headers))


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def library(folder, headers):
    """Both headers' functions, each empty."""
    functions = re.findall(r"(?ms)^(?:ATTNKIT_API )?([a-z][^;{}()#]*\b(?:attnkit|attn_plugin_main)_\w+\([^;{}]*?\));", text_of(headers))
    code = "#include <attnkit/attnkit.h>\n" + "".join(f"{function} {{ __builtin_trap(); }}\n" for function in functions)
    (folder / "stubs.c").write_text(code)
    made = folder / "libattnkit.so"
    done = run(COMPILER, "-std=gnu99", "-w", "-g", "-O0", "-fPIC", "-shared", f"-I{headers}", "-Wl,-soname,libattnkit.so.1", folder / "stubs.c", "-o", made)
    assert done.returncode == 0, done.stderr
    return made, len(functions)


class Abi(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="attnkit-abi-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def differences(self, headers):
        (self.folder / "growth.suppr").write_text(GROWTH.format("|".join(growing(headers))))
        made, _ = library(self.folder, headers)
        return run("abidiff", "--no-added-syms", "--suppressions", self.folder / "growth.suppr", FROZEN, made)

    def test_nothing_that_was_frozen_has_changed(self):
        made, count = library(self.folder, HEADERS)
        declared = re.findall(r"ATTNKIT_API .*?(attnkit_\w+)\(", (HEADERS / "attnkit/attnkit.h").read_text())
        self.assertEqual(count, len(declared) + 1)
        if os.environ.get("ATTNKIT_WRITE_ABI"):
            run("abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--out-file", FROZEN, made)
        done = self.differences(HEADERS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        frozen = FROZEN.read_text()
        self.assertEqual([name for name in declared if f"<elf-symbol name='{name}'" not in frozen], [], "write FROZEN again")

    def test_structs_of_the_host_and_of_plugins_grow(self):
        self.assertGreater(len(growing(HEADERS)), 15)
        self.assertNotIn("attn_tensor", growing(HEADERS))

    def changed(self, header, before, after):
        """The output of abidiff for headers with one change."""
        folder = self.folder / "include/attnkit"
        folder.mkdir(parents=True)
        for name in ("attnkit.h", "plugin.h"):
            text = (HEADERS / "attnkit" / name).read_text()
            if name == header:
                self.assertIn(before, text)
                text = text.replace(before, after, 1)
            (folder / name).write_text(text)
        return self.differences(folder.parent)

    def test_a_changed_type_is_found(self):
        self.assertEqual(self.changed("attnkit.h", "const char* path, attnkit_diagnose", "uint64_t path, attnkit_diagnose").returncode & 5, 4)  # 1 is an error, 4 a change

    def test_a_lost_function_is_found(self):
        self.assertEqual(self.changed("attnkit.h", "ATTNKIT_API uint32_t attnkit_abi_minor(void);", "").returncode & 5, 4)  # 1 is an error, 4 a change

    def test_growth_at_the_end_is_allowed(self):
        done = self.changed("plugin.h", "} attn_host;", "  uint32_t more, yet;\n} attn_host;")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_growth_of_a_struct_without_a_size_is_found(self):
        self.assertEqual(self.changed("plugin.h", "} attn_tensor;", "  uint64_t more;\n} attn_tensor;").returncode & 5, 4)  # 1 is an error, 4 a change

    def test_growth_in_the_middle_is_found(self):
        self.assertEqual(self.changed("plugin.h", "abi_minor, oldest_plugin_minor", "before, also, abi_minor, oldest_plugin_minor").returncode & 5, 4)  # 1 is an error, 4 a change


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
