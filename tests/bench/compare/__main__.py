"""Everything that is compared with what users run today, by one command; the tables and plots of docs/benchmarks.

    python3 tests/bench/compare [--only ops,mechanisms,encoder,translation,import] [--rounds 7] [--build build] [--folder FOLDER] [--page PAGE] [--venv VENV]

Makes a virtual environment with the libraries of requirements.txt, once; each part then runs the same work in attnkit and in the others, in
turns, and adds what it measured to a file of JSON lines in the folder.  A part that was stopped goes on where it was.  docs/benchmarks/compared.md
and its plots are made anew of all lines there are; --only none makes them alone.  Every part is a script of its own with options for more.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

sys.dont_write_bytecode = True
from common import Lines, quartiles, table  # noqa: E402
from mechanisms import MECHANISMS  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PAGE = ROOT / "docs/benchmarks/compared.md"
# The runs of a part, and what its page says of it.
PARTS = {
    "ops": ("One block beside PyTorch, ONNX Runtime and OpenVINO", [
        ["--length", "128,1024,4096", "--form", "causal,full"],
        ["--length", "1024", "--form", "causal,full", "--shape", "4x4x32,1x32x128,1x1x64"],
        ["--length", "8192", "--form", "causal,full", "--block", "linear"],
        ["--length", "1024,4096", "--form", "causal,full", "--type", "bf16"],
        ["--length", "16,100,512,4096", "--form", "decode", "--batch", "1,8"],
        ["--length", "512", "--form", "decode", "--type", "bf16", "--block", "softmax"],
        ["--length", "128", "--form", "full", "--idle", "50"]]),
    "mechanisms": ("Mechanisms, and their share of the machine's limit", [[]]),
    "encoder": ("Sentence vectors beside ONNX Runtime and OpenVINO", [[], ["--batch", "1", "--length", "16", "--idle", "50"]]),
    "translation": ("Translation beside CTranslate2", [[], ["--batch", "1", "--idle", "50"]]),
    "import": ("Imported models beside transformers, ONNX Runtime, llama.cpp and CTranslate2", [[]]),
}


def made(folder):
    """The python of a virtual environment with all that is compared, made now if it is not there whole."""
    python, wanted, installed = folder / "bin/python", HERE / "requirements.txt", folder / "requirements.txt"
    if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "--quiet", "install", "-r", wanted], check=True)
        shutil.copy(wanted, installed)
    return python


def run(part, python, build, folder, rounds):
    environment = {**os.environ, "PYTHONPATH": str(build / "lib/attnkit/python"), "ATTNKIT": str(build / "bin/attnkit")}
    for options in PARTS[part][1]:
        command = [python, "-B", HERE / f"{part}.py", "--rounds", str(rounds), *options]
        if part == "import":  # its own tables
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            (folder / "import.md").write_text(done.stdout)
        else:
            subprocess.run([*command, "--results", folder / f"{part}.jsonl"], env=environment, check=True)


def shares(lines):
    """Of each mechanism and length the time, and the share of the multiply-adds of as many threads."""
    columns = sorted({r["length"] for line in lines for r in line["bench"]["results"]})
    text = f"| mechanism | form | threads |{''.join(f' {n:,} tokens (quartiles), of the limit |' for n in columns)} softmax is dearer from |\n" + "|---" * (len(columns) + 4) + "|\n"
    for line in lines:
        of = {r["length"]: r for r in line["bench"]["results"]}
        cells = [f"{1e3 * r['median_seconds']:.3g} ms ({1e3 * r['first_quartile_seconds']:.3g} .. {1e3 * r['third_quartile_seconds']:.3g}), {100 * r['share']:.0f} %" if r else ""
                 for r in map(of.get, columns)]
        crossover = line["bench"].get("crossover", {}).get("text", "")
        text += f"| {' | '.join(map(str, line['case'].values()))} | {' | '.join(cells)} | {crossover} |\n"
    return text


def absent(lines):
    """The mechanisms that have no row of a form."""
    there = {(line["case"]["mechanism"], line["case"]["form"]) for line in lines}
    return "Without a row, for want of the form or of a run: " + "; ".join(
        f"{form}: {', '.join(m for m in MECHANISMS if (m, form) not in there)}" for form in ("causal", "full")) + ".\n"


def plot(page, name, title, x, y, curves):
    """An SVG of curves {label: [(x, y) ...]}, both axes logarithmic, in a folder beside the page that has its name."""
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    script = [f'set terminal svg size 860,560 noenhanced background "white"; set output "{folder / name}.svg"; set title "{title}"; set xlabel "{x}"; set ylabel "{y}"',
              "set logscale xy; set key outside right; set grid lc rgb '#dddddd'; set linetype cycle 20"]
    script += [f"$d{i} << EOD\n" + "".join(f"{a} {b}\n" for a, b in sorted(points)) + "EOD" for i, points in enumerate(curves.values())]
    script.append("plot " + ", ".join(f'$d{i} with linespoints lw {4 if label == "softmax" else 1.5} title "{label}"' for i, label in enumerate(curves)))
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    return f"![{title}]({folder.name}/{name}.svg)\n\n"


def plots_of_mechanisms(page, lines):
    text = ""
    for form in ("causal", "full"):
        for threads in (1, 2):
            drawn = [line for line in lines if line["case"]["form"] == form and line["case"]["threads"] == threads]
            curves = {line["case"]["mechanism"]: [(r["length"], 1e3 * r["median_seconds"]) for r in line["bench"]["results"]] for line in drawn}
            if drawn:  # each was timed in turns with softmax
                curves.setdefault("softmax", [(r["length"], 1e3 * r["against_median_seconds"]) for r in drawn[0]["bench"]["results"] if "against_median_seconds" in r])
            if len(curves) > 1:
                text += plot(page, f"{form}-{threads}", f"Whole sequences, {form}, threads {threads}", "tokens", "ms", curves)
    return text


def plots_of_batches(page, lines):
    text = ""
    for threads in (1, 2):
        curves = {}
        for line in lines:
            case = line["case"]
            if case["threads"] == threads and not case["idle, ms"]:
                for who, values in line["samples"].items():
                    curves.setdefault(f"{who}, {case['weights']}", []).append((case["batch"], quartiles(values)[1]))
        if any(len(points) > 1 for points in curves.values()):
            text += plot(page, f"translation-{threads}", f"Translation, threads {threads}", "sources at once", "tokens a second", curves)
    return text


def write_page(folder, page):
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())
    up = os.path.relpath(PAGE.parent, page.parent)
    text = ("# Compared with what users run today\n\n    python3 tests/bench/compare\n\n"
            f"Generated by that command (tests/bench/compare), part by part, from what it measured; what it says is read in [blocks.md]({up}/blocks.md) and [rivals.md]({up}/rivals.md).\n"
            f"Machine: {os.cpu_count()} cores of \"{processor}\". Times are medians over the rounds with quartiles, ratios are paired by round; all libraries have the same number of threads. Idle: milliseconds without work before every call.\n")
    for part, (title, _) in PARTS.items():
        lines = Lines(folder / f"{part}.jsonl").all
        other = folder / f"{part}.md"
        if not lines and not other.exists():
            continue
        text += f"\n## {title}\n\n"
        if lines:
            text += f"Measured {' and '.join(sorted({line['date'] for line in lines}))} by `tests/bench/compare/{part}.py`.\n\n"
        if part == "mechanisms":
            text += "8 heads of width 64, one sequence, f32, timed in turns with softmax. The limit is multiply-adds of f32 in registers, measured in the same process.\n\n" + plots_of_mechanisms(page, lines) + shares(lines) + "\n" + absent(lines)
        else:
            text += (plots_of_batches(page, lines) if part == "translation" else "") + (other.read_text().strip() if other.exists() else table(lines)) + "\n"
    page.write_text(text)


def main():
    parser = argparse.ArgumentParser(prog="python3 tests/bench/compare", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="%(default)s")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="of attnkit (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/attnkit/compare", help="of what was measured (%(default)s)")
    parser.add_argument("--page", type=Path, default=PAGE, help="that is written (%(default)s)")
    parser.add_argument("--venv", type=Path, help="with the other libraries (FOLDER/venv)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    parts = [part for part in options.only.split(",") if part != "none"]
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}: {', '.join(PARTS)}")
    python = made((options.venv or options.folder / "venv").absolute()) if parts else None
    for part in parts:
        run(part, python, options.build.absolute(), options.folder, options.rounds)
        write_page(options.folder, options.page.absolute())
    if not parts:
        write_page(options.folder, options.page.absolute())


if __name__ == "__main__":
    main()
