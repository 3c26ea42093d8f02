"""Changes the code in small ways, one at a time, and counts those that a test notices.

mutate.py FOLDER [--count N] [--seed S] [--room NAME] [--list]

Works on a copy of the sources in FOLDER, which is kept with the verdicts, so that a second run builds little and a run
that was stopped goes on.  See README.md.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]

# The replacements, made once in a line of code.
OPERATORS = [(re.compile(pattern), new) for pattern, new in [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" \+ 1\b", ""), (r" - 1\b", ""), (r" \+ ", " - "), (r" - ", " + "),
    (r" \* ", " + "), (r" \+= ", " -= "), (r"\bstd::max\b", "std::min"), (r"\bstd::min\b", "std::max"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"\bif \((?!constexpr)(.*)\)(?= | \{$|$)", r"if (!(\1))"),
    (r"^( +)(?:break|continue);", r"\1;"), (r"^( +)[\w.]+(?:->|\.|::)?\w+\([^;{}]*\);$", r"\1;"), (r"= 0;", "= 1;"),
    (r"\b1\b(?=[;),])", "2")]]

# Of each room: its files, how many of 100 mutants, the targets to build and the programs to run.
UNIT = ["core_tests", "api_test"]
ROOMS = {
    "session": (["core/session/*.cpp"], 25, UNIT),
    "model": (["core/model/*.cpp"], 25, UNIT),
    "manifest": (["core/manifest/*.cpp"], 15, ["core_tests"]),
    "search": (["core/search/*.cpp", "core/search/*/*.cpp"], 20, ["search_tests"]),
    "softmax": ([f"abi/include/attnkit/kernels/{name}.hpp" for name in ("attend", "dots", "exponential", "pack",
                                                                        "product", "segments")], 8, ["softmax"]),
    "linear": ([f"abi/include/attnkit/kernels/{name}.hpp" for name in ("features", "guard", "linear", "work")], 7,
               ["relu", "rope_linear"]),
}
COPIED = ("abi", "architectures", "core", "docs", "hosts", "plugins", "samples", "tests", "CMakeLists.txt")


def code_lines(text):
    """Numbers and texts of the lines that are code."""
    block = False
    for number, line in enumerate(text.splitlines()):
        code = line.split("//")[0].rstrip()
        block = block or code.lstrip().startswith("/*")
        if code.strip() and not block and not code.lstrip().startswith(("#", "template", "static_assert")):
            yield number, line, code
        block = block and "*/" not in code


def mutants(sources, files):
    """Every possible mutant: file, number of the line, the line as it is and as it becomes."""
    for path in files:
        for number, line, code in code_lines((sources / path).read_text()):
            quoted = [m.span() for m in re.finditer(r'"(?:\\.|[^"\\])*"', code)]
            for pattern, new in OPERATORS:
                for found in pattern.finditer(code):
                    inside = any(a < found.end() and found.start() < b for a, b in quoted)
                    if inside and not pattern.pattern.startswith((r"\bif", "^")) or "<<" in found[0]:
                        continue
                    changed = code[:found.start()] + found.expand(new) + code[found.end():] + line[len(code):]
                    yield path, number, line, changed


def equivalent():
    """Mutants that change nothing a caller can see: file, old, new, each with its reason in equivalent.txt."""
    entries = (SOURCE / "tests/mutation/equivalent.txt").read_text().split("\n\n")
    for entry in entries:
        lines = [line for line in entry.splitlines() if line and not line.startswith("#")]
        if lines:
            yield lines[0].strip(), lines[1].strip(), lines[2].strip()


class Verdicts:
    """The verdict of each mutant, in a file of the folder: a mutant is the code of its file and the line changed."""

    def __init__(self, sources, file):
        self.sources, self.file, self.known = sources, file, {}
        for line in file.read_text().splitlines() if file.exists() else ():
            *mutant, verdict = json.loads(line)
            self.known[tuple(mutant)] = verdict

    def key(self, mutant):
        path, number, _, changed = mutant
        lines = list(code_lines((self.sources / path).read_text()))  # comments may change
        place = [line for line, _, _ in lines].index(number)
        return path, hashlib.sha256("\n".join(code for *_, code in lines).encode()).hexdigest(), place, changed.strip()

    def of(self, mutant):
        return self.known.get(self.key(mutant))

    def add(self, mutant, verdict):
        with self.file.open("a") as file:
            file.write(json.dumps([*self.key(mutant), verdict]) + "\n")


class Copy:
    """The sources in a folder of their own, with a build tree beside them."""

    def __init__(self, folder):
        self.sources, self.build = folder / "sources", folder / "build"
        self.verdicts = Verdicts(self.sources, folder / "verdicts.jsonl")

    def prepare(self):
        for name in COPIED:
            for path in [SOURCE / name, *(SOURCE / name).rglob("*")]:
                to = self.sources / path.relative_to(SOURCE)
                if path.is_file() and not to.exists():
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, to)
                elif path.is_file() and to.read_bytes() != path.read_bytes():
                    shutil.copy(path, to)  # its time is now: a mutant of it may have been compiled
        for path in self.sources.rglob("*"):
            if path.is_file() and not (SOURCE / path.relative_to(self.sources)).exists():
                path.unlink()
        self.run("cmake", "-S", self.sources, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 "-DATTNKIT_CUDA=OFF", check=True)
        self.make([*UNIT, "search_tests", "softmax_test", "relu_test", "rope_linear_test", "attnkit_conformance"], check=True)

    def run(self, *command, **options):
        return subprocess.run([str(c) for c in command], capture_output=not options.get("check"), text=True, **options)

    def make(self, targets, **options):
        return self.run("cmake", "--build", self.build, "--target", *targets, **options).returncode == 0

    def tests(self, targets):
        """The commands that must succeed, with environments; plugins by their own test and the laws."""
        for target in targets:
            plugin = self.build / f"lib/attnkit/1/{target}.so"
            if plugin.exists():
                yield f"{target}_test", {}
                yield "attnkit_conformance", {"ATTNKIT_CONFORMANCE_PLUGINS": str(plugin)}
            else:
                yield target, {}

    def passes(self, targets, limit):
        for program, variables in self.tests(targets):
            test = subprocess.Popen([self.build / "bin" / program, "--gtest_brief=1", "--gtest_fail_fast"],
                                    env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # In steps, so that seconds in which the machine or this whole run is stopped do not count.
            step, left = 0.05, limit
            while test.poll() is None and left > 0:
                time.sleep(step)
                left -= step
            if test.poll() is None:
                print(f"{program} takes more than {limit:.0f} s", flush=True)
                test.kill()
            if test.wait() != 0:
                return False
        return True

    def verdict(self, mutant, targets, limit):
        """Survived, killed, or broken when it does not compile; those that survived are tried again, for new tests."""
        if self.verdicts.of(mutant) in ("killed", "broken"):
            return self.verdicts.of(mutant)
        path, number, _, changed = mutant
        file, original = self.sources / path, (self.sources / path).read_text()
        lines = original.splitlines()
        lines[number] = changed
        try:
            file.write_text("\n".join(lines) + "\n")
            verdict = "broken" if not self.make(targets) else "survived" if self.passes(targets, limit) else "killed"
        finally:
            file.write_text(original)
        self.verdicts.add(mutant, verdict)
        return verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", choices=list(ROOMS))
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()

    copy, killed, survivors = Copy(options.folder.resolve()), 0, []
    known = set(equivalent())
    if not options.list:
        copy.prepare()
    sources = SOURCE if options.list else copy.sources
    for room, (patterns, share, targets) in ROOMS.items():
        if options.room not in (None, room):
            continue
        files = sorted(str(f.relative_to(sources)) for pattern in patterns for f in sources.glob(pattern))
        candidates = list(mutants(sources, files))
        random.Random(f"{options.seed} {room}").shuffle(candidates)
        candidates = [m for m in candidates if (m[0], m[2].strip(), m[3].strip()) not in known]
        wanted = max(1, round(share * options.count / 100))
        if options.list:
            for path, number, line, changed in candidates[:wanted]:
                print(f"{path}:{number + 1}\n  {line.strip()}\n  {changed.strip()}")
            continue
        copy.make(targets, check=True)  # without the last mutant of another room
        begun = time.monotonic()
        if not copy.passes(targets, 600):
            sys.exit(f"{room}: its tests fail without any mutant")
        limit = 5 * (time.monotonic() - begun) + 30
        for mutant in candidates:
            if wanted == 0:
                break
            verdict = copy.verdict(mutant, targets, limit)
            if verdict == "broken":
                continue
            wanted -= 1
            path, number, line, changed = mutant
            killed += verdict == "killed"
            print(f"{verdict:8} {path}:{number + 1}  {changed.strip()}", flush=True)
            if verdict == "survived":
                survivors.append(f"{path}\n{line.strip()}\n{changed.strip()}\n")
    if not options.list:
        total = killed + len(survivors)
        print(f"{killed} of {total} killed ({100 * killed / total:.1f} %)")
        if survivors:
            print("\n" + "\n".join(survivors))
        return killed < 0.95 * total


sys.exit(main())
