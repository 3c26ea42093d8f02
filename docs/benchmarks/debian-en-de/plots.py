"""Draws the plots of ../debian-en-de.md from its tables and search.txt, by gnuplot: python3 docs/benchmarks/debian-en-de/plots.py"""
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
PAGE = (HERE.parent / "debian-en-de.md").read_text(encoding="utf-8")
NUMBER = r"([+-]?[\d.]+)"
INTERVAL = re.compile(rf"{NUMBER} \({NUMBER} to {NUMBER}\)")


def table(after, first):
    """The rows, heading included, of the first table after a line whose first column is named so."""
    text = PAGE.split(f"\n{after}")[1]
    lines = text[text.index(f"| {first} |"):].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def draw(name, size, title, commands, blocks, plot):
    data = "".join(f"$d{i} << EOD\n{block}\nEOD\n" for i, block in enumerate(blocks))
    script = f'set terminal svg size {size} noenhanced background "white"\nset output "{HERE / name}.svg"\nset title "{title}"\n' + "\n".join(commands)
    subprocess.run(["gnuplot"], input=f"{data}{script}\nplot {plot}\n", text=True, check=True)


def by_placement():
    """The difference in BLEU of each placement with its interval."""
    rows = [(" / ".join(row[:3]), *INTERVAL.search(row[4]).groups()) for row in table("## Quality by placement", "encoder.self")[1:] if row[4]]
    rows.reverse()
    block = "\n".join(f"{value} {y} {low} {high}" for y, (_, value, low, high) in enumerate(rows))
    names = ", ".join(f'"{name}" {y}' for y, (name, *_) in enumerate(rows))
    draw("bleu", "860,560", "BLEU against softmax everywhere, 2,000 sentences, greedy, 95 % intervals (paired)",
         [f"set ytics ({names})", f"set yrange [-0.7:{len(rows) - 0.3}]", "set grid xtics", "set lmargin 34", "unset key",
          'set xlabel "encoder.self / decoder.self / decoder.cross: difference in BLEU"', "set arrow from 0, graph 0 to 0, graph 1 nohead dt 2"],
         [block], "$d0 using 1:2:3:4 with xerrorbars pt 7 ps 0.7 lw 1.5")


def searched():
    """The difference in BLEU of every placement of search.txt against its speed, by the mechanism of cross attention."""
    row = re.compile(r"^ *\*?\d+ \([\d-]+\)  (\S.*?)  +\d+  +[\d.]+ +([+−-]?[\d.]+)±[\d.]+ +([\d.]+)x", re.M)
    points = {}
    for name, difference, speed in row.findall((HERE / "search.txt").read_text(encoding="utf-8")):
        points.setdefault(name.split(", ")[-1], []).append(f"{speed} {difference.replace('−', '-')}")
    draw("search", "860,560", "All 125 placements: BLEU of dev.tsv against decoding speed at 512 tokens, both beside softmax everywhere",
         ['set xlabel "times as fast"', 'set ylabel "difference in BLEU"', "set grid", 'set key outside right title "decoder.cross"'],
         ["\n".join(p) for p in points.values()], ", ".join(f'$d{i} with points pt 7 ps 0.6 title "{name}"' for i, name in enumerate(points)))


def against_lag(section, lagging, column, name, title):
    """BLEU of each placement under wait-k against a lag, the column-th of those that the table after `lagging` says."""
    quality = table(section, "placement")
    lags = {row[0]: row[1:] for row in table(lagging, "placement")}
    base, blocks, titles = [float(INTERVAL.search(cell)[1]) for cell in quality[1][1:]], [], []
    for row in quality[1:]:
        points = []
        for k, cell in enumerate(row[1:]):
            value = base[k] if row is quality[1] else base[k] + float(INTERVAL.search(cell)[1])
            points.append(f"{lags[row[0]][k].split(' / ')[column]} {value:.2f}")
        blocks.append("\n".join(points))
        titles.append(row[0])
    draw(name, "860,560", f"BLEU against {title} under wait-k, k = 1, 3, 5, 7, 9; 1,000 sentences",
         [f'set xlabel "{title}, words of the source"', 'set ylabel "BLEU"', "set grid", "set key outside right"],
         blocks, ", ".join(f'$d{i} with linespoints pt 7 ps 0.6 lw {2.5 if i == 0 else 1.3} title "{title}"' for i, title in enumerate(titles)))


by_placement()
searched()
for column, lag in enumerate(("AL", "LAAL", "DAL")):
    against_lag("## Simultaneous: wait-k", "AL, LAAL and DAL in words of the source:", column, lag.lower(), lag)
for column, (ending, lag) in enumerate((("", "LAAL"), ("-computing", "LAAL with the time of computing"))):
    against_lag("### An encoder that sees ahead", "LAAL in words of the source / with the time of computing", column, f"ahead{ending}", lag + ", an encoder that sees ahead,")
