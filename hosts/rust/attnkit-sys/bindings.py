"""Writes the bindings of both headers in Rust from tests/abi/layout.txt, the layout that the headers are held to.

    bindings.py [--check]      from this folder; --check compares instead, and fails where they differ
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PLAIN = {"void": "c_void", "char": "c_char", "double": "f64", "uintptr_t": "usize",
         **{f"{u}int{bits}_t": f"{u or 'i'}{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)}}
HEADERS = [(ROOT / f"abi/include/attnkit/{name}").read_text() for name in ("plugin.h", "attnkit.h")]
LINES = (ROOT / "tests/abi/layout.txt").read_text().splitlines()


def rust_type(c):
    """A type of C as Rust has it."""
    if found := re.fullmatch(r"(.*)\[(\d+)\]", c):
        return f"[{rust_type(found[1])}; {found[2]}]"
    if "(*)" in c:
        return f"Option<{function_type(c.replace(' (*)', ''))}>"
    found = re.fullmatch(r"(const )?(\w+)(.*)", c)
    made, const = PLAIN.get(found[2], found[2]), bool(found[1])
    for pointer in re.findall(r"\*( const)?", found[3]):
        made, const = f"*{'const' if const else 'mut'} {made}", bool(pointer)
    return made


def parts(signature):
    result, arguments = re.fullmatch(r"(.*?)\((.*)\)", signature).groups()
    return result, [] if arguments == "void" else arguments.split(", ")


def function_type(signature):
    result, arguments = parts(signature)
    back = "" if result == "void" else f" -> {rust_type(result)}"
    return f"unsafe extern \"C\" fn({', '.join(map(rust_type, arguments))}){back}"


def names_of(function):
    """The names of a function's arguments in the header."""
    text = next(found[1] for header in HEADERS if (found := re.search(rf"\b{function}\(([^)]*)\)", header)))
    return [re.search(r"(\w+)\s*$", argument)[1] for argument in text.split(",")] if text != "void" else []


def is_unsigned(constant):
    return any(re.search(rf"#define {constant} \w+u\b", header) for header in HEADERS)



def escaped(name):
    return "r#" + name if name in ("where", "type") else name


def structs():
    """Name, size and fields (offset, size, name, type) of each struct."""
    found = []
    for line in LINES:
        if line.startswith("struct "):
            found.append((line.split()[1], int(line.split()[2]), []))
        elif line.startswith("  "):
            offset, size, name, kind = line.split(None, 3)
            found[-1][2].append((int(offset), int(size), name, kind))
    return found


def bindings():
    """src/bindings.rs."""
    out = ["// Made by bindings.py from tests/abi/layout.txt; do not edit.", "use std::marker::PhantomData;",
           "use std::os::raw::{c_char, c_void};", ""]
    known = set()
    for line in LINES:
        word, name, *_ = line.split()
        if word == "constant":
            out.append(f"pub const {name}: {'u32' if is_unsigned(name) else 'i32'} = {line.split()[2]};")
    for name, _, fields in structs():
        known.add(name)
        out += ["", "#[repr(C)]", "#[derive(Clone, Copy)]", f"pub struct {name} {{"]
        out += [f"    pub {escaped(field)}: {rust_type(kind)}," for _, _, field, kind in fields]
        out += ["}", f"{'sized' if fields[0][2] == 'struct_size' else 'zeroed'}!({name});"]
    functions = [re.fullmatch(r"function (attnkit_\w+) (.*)", line) for line in LINES if line.startswith("function attnkit_")]
    callbacks = [re.fullmatch(r"callback (\w+) (.*)", line).groups() for line in LINES if line.startswith("callback ")]
    out.append("")
    for name, signature in callbacks:
        known.add(name)
        out.append(f"pub type {name} = {rust_type(signature)};")
    handles = sorted(set(re.findall(r"\b(attn(?:kit)?_\w+)\*", "\n".join(LINES))) - known)
    for name in handles:
        out += ["", "#[repr(C)]", "#[derive(Debug)]", f"pub struct {name} {{", "    _private: [u8; 0],", "    _not_send: PhantomData<*mut u8>,", "}"]
    out += ["", "#[cfg(feature = \"link\")]", "extern \"C\" {"]
    for found in functions:
        name, signature = found.groups()
        result, arguments = parts(signature)
        listed = ", ".join(f"{escaped(n)}: {rust_type(a)}" for n, a in zip(names_of(name), arguments, strict=True))
        out.append(f"    pub fn {name}({listed}){'' if result == 'void' else f' -> {rust_type(result)}'};")
    return "\n".join([*out, "}", ""])


def layout():
    """tests/layout.rs."""
    out = ["// Made by bindings.py from tests/abi/layout.txt; do not edit.", "use attnkit_sys::*;",
           "use std::mem::{size_of, MaybeUninit};", "use std::ptr::addr_of;", "", "fn size_behind<T>(_: *const T) -> usize {",
           "    size_of::<T>()", "}", "", "macro_rules! layout {", "    ($t:ty, $size:expr, $(($offset:expr, $width:expr, $field:ident)),*) => {{",
           "        assert_eq!(size_of::<$t>(), $size, stringify!($t));", "        let value = MaybeUninit::<$t>::uninit();",
           "        let base = value.as_ptr();", "        $(", "            let field = unsafe { addr_of!((*base).$field) };",
           "            let place = (field as usize - base as usize, size_behind(field));",
           "            assert_eq!(place, ($offset, $width), \"{}.{}\", stringify!($t), stringify!($field));", "        )*", "    }};", "}",
           "", "#[test]", "fn structs_are_those_of_the_headers() {"]
    for name, size, fields in structs():
        places = ", ".join(f"({offset}, {width}, {escaped(field)})" for offset, width, field, _ in fields)
        out.append(f"    layout!({name}, {size}, {places});")
    return "\n".join([*out, "}", ""])


def main():
    differ = []
    for path, text in ((HERE / "src/bindings.rs", bindings()), (HERE / "tests/layout.rs", layout())):
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            differ.append(str(path))
    if differ:
        sys.exit(f"not what bindings.py writes, run it: {' '.join(differ)}")


main()
