"""report: the page of a search's result, from whole and from broken documents."""

import copy
import html.parser
import itertools
import json
import math
import os
import re
import shutil
import unittest

import search_result
from command import CommandTest

VOID = {"meta", "br"}
SVG_EMPTY = {"rect", "path", "circle", "use", "polygon", "feflood", "fecomposite"}
HAS_GNUPLOT = shutil.which("gnuplot") is not None
NUMBER = r"[+\u2212-]?\d[\d,]*\.?\d*"


class Page(html.parser.HTMLParser):
    """Text, elements, attributes and tables of a page; wrong nesting is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.tables = []  # of each its class and its rows, which are lists of texts
        self.feed(text)
        self.close()
        if self.open:
            raise AssertionError(f"never closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append((dict(attrs).get("class"), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
        elif tag == "br":
            self.handle_data(" ")

    def handle_startendtag(self, tag, attrs):
        if tag not in SVG_EMPTY:
            raise AssertionError(f"<{tag}/> is not closed in HTML")
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes another element")

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)
        if "tr" in self.open and self.tables[-1][1][-1]:
            self.tables[-1][1][-1][-1] += data

    def said(self):
        return " ".join(" ".join(self.text).split())

    def table(self, name):
        """The rows of the first table of that class, by the titles of its columns."""
        head, *rows = next(rows for kind, rows in self.tables if kind == name)
        return [dict(zip(head, row)) for row in rows]


def number(text):
    """The first number of a text, and by how much rounding may have changed it."""
    digits = re.search(NUMBER, text)[0].replace(",", "").replace("\u2212", "-")
    return float(digits), 0.5 * 10.0 ** -len(digits.partition(".")[2])


class ReportTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.document = search_result.document()
        self.without_gnuplot = {"PATH": str(self.folder / "nothing")}

    def write(self, document):
        path = self.folder / "result.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    def html(self, document, **options):
        result = self.run_ok("report", self.write(document), **options)
        self.assertEqual((result.out, result.err), ("", f"{self.folder}/report.html\n"))
        return (self.folder / "report.html").read_text()

    def page(self, document, **options):
        return Page(self.html(document, **options))


class Content(ReportTest):
    def test_answer_and_every_placement(self):
        text = self.html(self.document, env=self.without_gnuplot)
        said = Page(text).said()
        self.assertIn(self.document["answer"]["text"], said)
        rows = {tuple(re.findall(r"<td(?: class=\"same\")?>([^<]*)</td>", row)) for row in re.findall(r"<tr.*?</tr>", text, re.S)}
        for placement in self.document["placements"]:
            if placement["status"] in ("ranked", "limited"):
                self.assertIn(tuple(layers[0] for layers in placement["blocks"].values()), rows)
            else:
                self.assertIn(placement["id"], said)
                self.assertIn(placement["reason"], said)
        for fact in ["2026-11-22", "dev.tsv, 2,000 examples", "grid", self.document["command"], "std_bench", "Wilson", "25.0 \u00b5s",
                     "seed 7", "AMD EPYC 7B13, 2 processors, 1 thread", "gcc 12.2.0", self.document["machine"]["commit"],
                     "attnkit 0.1.0", "0.988 to 1.013 times as fast", "up to 3.1 %", "load 0.42",
                     *(self.document["model"][f"{what}_sha256"] for what in ("weights", "data", "test"))]:
            self.assertIn(fact, said)
        self.assertNotRegex(said, r"\d us\b")

    def test_what_is_tied(self):
        said = self.page(self.document, env=self.without_gnuplot).said()
        tied = self.document["top_group"][1:]
        self.assertGreater(len(tied), 2)
        names = re.search(r"Tied with it: ([^.]*)\.", said)[1].split("; ")
        self.assertEqual(names, [", ".join(part.split("=")[1] for part in id_.split()) for id_ in tied])
        for placement in self.document["placements"][1:]:
            placement["top"] = False
        said = self.page(self.document, env=self.without_gnuplot).said()
        self.assertIn("Nothing is tied with it.", said)

    def test_screening(self):
        self.assertNotIn("This is a screening", self.page(self.document, env=self.without_gnuplot).said())
        self.document["settings"]["effort"] = "quick"
        for placement in self.document["placements"]:
            placement["screened"] = "quality" in placement
        said = self.page(self.document).said()
        self.assertIn("No Pareto front" if HAS_GNUPLOT else "", said)
        self.assertLess(said.index("This is a screening: every placement was measured on the first 500 examples"),
                        said.index(self.document["answer"]["text"]))

    def test_decided_early(self):
        for placement in self.document["placements"]:
            placement["screened"] = "quality" in placement
        for row in self.page(self.document, env=self.without_gnuplot).table("ranks"):
            self.assertEqual("screened" in row["mark"], row["n"] != "2,000")

    def test_race(self):
        page = self.page(self.document, env=self.without_gnuplot)
        for row, stage in zip(page.table("race"), self.document["race"]["stages"]):
            self.assertEqual([int(cell.replace(",", "")) for cell in row.values()],
                             [*stage.values(), stage["raced"] - stage["kept"]])
        first, second, _ = self.document["race"]["stages"]
        said = page.said()
        self.assertIn(f"All 64 placements were measured on 500 examples and 2 timing blocks; {64 - first['kept']} were dropped. "
                      f"{second['raced']} went on to 1,000 examples and 3 timing blocks", said)
        self.assertIn("At the end 7 placements are tied with the winner.", said)
        self.assertIn("when its RCP mem is worse than the leader\u2019s with 95 % confidence, corrected", said)
        for after in ("500", "1,000"):
            lists = int(after.replace(",", ""))
            names = re.search(rf"Dropped after {after} examples ([^.]*?)(?= Dropped|$| How)", said)[1].split("; ")
            self.assertEqual(len(names), sum(p["screened"] and p["quality"]["lists"] == lists
                                             for p in self.document["placements"] if p["rank"]))

    def test_without_a_unit_of_quality(self):
        self.document["std_bench"] = None
        for p in self.document["placements"]:
            if p.get("quality") and p["quality"]["difference"] != 0:
                p["rcp"] = p["rcp_mem"] = None
        said = self.page(self.document, env=self.without_gnuplot).said()
        self.assertIn("when its exact match is worse than the leader\u2019s", said)
        self.assertIn("so that it decides alone", said)
        self.assertIn("when std_bench is unknown or zero, where the quality is not the baseline\u2019s", said)

    def test_test_set(self):
        page = self.page(self.document, env=self.without_gnuplot)
        rows = page.table("tested")
        read = [p for p in self.document["placements"] if p.get("test")]
        self.assertEqual(len(rows), len(self.document["top_group"]) + 1)
        for row, p in zip(rows, read):
            cells = list(row.values())
            self.assertIn(", ".join(dict.fromkeys(layers[0] for layers in p["blocks"].values())), cells[2])
            self.assertEqual(cells[3], f"{p['test']['lists']:,}")
            self.assertAlmostEqual(number(cells[4])[0], p["test"]["value"], delta=.00501)
            self.assertAlmostEqual(number(cells[5])[0], p["test"]["difference"], delta=.00501)
            self.assertAlmostEqual(number(cells[6])[0], p["quality"]["value"], delta=.00501)
        self.assertIn("These numbers are free of it", page.said())
        self.document["model"]["test_sha256"] = self.document["model"]["data_sha256"]
        self.assertIn("these numbers are not free of it", self.page(self.document, env=self.without_gnuplot).said())
        for p in read:
            p["test"] = None
        self.assertEqual([kind for kind, _ in self.page(self.document, env=self.without_gnuplot).tables if kind == "tested"], [])

    def test_colours_begin_beyond_the_interval(self):
        text = self.html(self.document, env=self.without_gnuplot)
        table = re.search(r'<table class="blocks">.*?</table>', text, re.S)[0]
        cells = re.findall(r"<td( style[^>]*)?>([^<]*) <small>([^<]*) to ([^<]*)</small>", table)
        for colour, _, low, high in cells:
            self.assertEqual(bool(colour), number(low)[0] > 0 or number(high)[0] < 0, (low, high))
            if colour:
                self.assertIn("bad" if number(high)[0] < 0 else "good", colour)
        self.assertEqual({bool(colour) for colour, *_ in cells}, {True, False})
        for word in ("refused", "failed"):
            self.assertEqual(len(re.findall(rf"<td[^>]*>{word}</td>", table)), 1)
        hollow = re.findall(r"<small>\u25cb n = ([\d,]+)</small>", table)
        self.assertGreater(len(hollow), 0)
        self.assertNotIn("2,000", hollow)

    def test_stands_alone(self):
        text = self.html(self.document)
        bare = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
        self.assertNotRegex(bare, r"https?:|//[a-z]+\.|@import|<link|\bsrc=|NaN|nan\b|>inf\b")
        ids = re.findall(r"""\bid=["']([^"']+)""", text)
        self.assertEqual(len(ids), len(set(ids)))
        for name in re.findall(r"""["'(]#([\w]+)["')]""", text):
            self.assertIn(name, ids)
        for name in re.findall(r"var\(--(\w+)\)", text):
            self.assertEqual(len(re.findall(rf"--{name}:", text)), 2, f"{name} in light and in dark")

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_figures(self):
        text = self.html(self.document)
        self.assertEqual(Page(text).tags.count("svg"), 4)
        self.assertNotIn("rgb(", text)  # every colour follows light and dark
        figures = re.findall(r"<svg.*?</svg>", text, re.S)
        for figure in figures:  # wide and narrow
            alternative = re.search(r'role="img" aria-labelledby="(\w+)" aria-describedby="(\w+)"', figure)
            self.assertIn(f'<title id="{alternative[1]}">', figure)
            self.assertRegex(figure, rf'<desc id="{alternative[2]}">[^<]{{80}}')
        ranked = [p for p in self.document["placements"] if p["status"] == "ranked"]
        for quality in figures[:2]:
            hints = re.findall(r"<title>((?:rank \d+: )?[^<;]*;[^<]*)", quality)
            self.assertEqual(len(set(hints)), len(ranked))
            self.assertEqual(sum("screened" in hint for hint in set(hints)), sum(p["screened"] for p in ranked))
            hollow = re.findall(r"<g id=\"f1n?gnuplot_plot_\d+\"\s*><title>[^<]*screened[^<]*</title>.*?</g>", quality, re.S)
            self.assertGreater(len(hollow), 0)
        winner = "winner: " + ", ".join(layers[0] for layers in self.document["placements"][0]["blocks"].values())
        for label in ("baseline: softmax", winner, "cosformer"):
            self.assertIn(f"<text>{label}</text>", figures[0])
            self.assertIn(f"<text>{label}</text>", figures[2])
        ranks = {str(p["rank"]) for p in ranked if p["top"] and p["rank"] > 1}
        self.assertLessEqual(ranks, set(re.findall(r"<text>(\d+)</text>", figures[0])))

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_front_of_what_is_comparable(self):
        def corners(document):
            figure = re.search(r"<svg.*?</svg>", self.html(document), re.S)[0]
            path = re.search(r"Pareto front</title>.*?<path [^>]*d='([^']*)'", figure, re.S)
            return len(re.findall(r"[ML ]\s*[\d.]+,[\d.]+", path[1])) if path else 0

        front = [(p["throughput"]["value"], p["quality"]["value"]) for p in self.document["placements"] if p["pareto"]]
        best = [a for a in front if not any(b[0] >= a[0] and b[1] >= a[1] and a != b for b in front)]
        self.assertEqual(corners(self.document), len(best))
        lucky = next(p for p in self.document["placements"] if p.get("screened"))
        lucky["pareto"] = True
        lucky["quality"]["value"] = 100.0
        self.assertEqual(corners(self.document), len(best))

    def test_without_gnuplot(self):
        page = self.page(self.document, env=self.without_gnuplot)
        self.assertEqual(page.said().count("gnuplot-nox"), 2)
        self.assertNotIn("svg", page.tags)

    def test_escapes(self):
        evil = "<b onload='x()'>&\"amp; %s\u0007"
        text = json.dumps(self.document).replace("leap{factor = 2}", json.dumps(evil)[1:-1]).replace("numbers-en-de", json.dumps(evil)[1:-1])
        document = json.loads(text)
        for place in (document["machine"], document["answer"], document["settings"], document):
            place.update(cpu=evil, text=evil, data=evil, command=evil, date=evil)
        document["placements"][-1]["reason"] = document["placements"][0]["blocks"]["encoder.self"][0] = evil
        html_text = self.html(document)
        page = Page(html_text)
        self.assertNotIn("b", page.tags)
        self.assertNotIn("onload", [name for name, _ in page.attributes])
        self.assertNotIn("\u0007", html_text)
        self.assertIn(evil.replace("\u0007", ""), page.said())


class Numbers(ReportTest):
    """Every number can be computed from others."""

    def setUp(self):
        super().setUp()
        self.settings = self.document["settings"]
        self.settings["exponents"] = {"throughput": 1, "quality": 1, "memory": 1}

    def values(self, speed, memory, loss, s):
        """RCP and RCP_mem for a loss of quality against the baseline."""
        a, b, c = (self.settings["exponents"][key] for key in ("throughput", "quality", "memory"))
        denominator = (1 + self.settings["quality_weight"] * loss / s) ** b
        return speed ** a / denominator, (speed ** a + memory ** -c) / 2 / denominator

    def loss(self, value, baseline):
        """Of quality, higher is better."""
        return math.log(value) - math.log(baseline) if self.settings["metric"] == "perplexity" else baseline - value

    def use(self, exponents, weight, metric="exact"):
        """Ranks the document by other exponents, another weight and another metric."""
        self.settings.update(exponents=dict(zip(("throughput", "quality", "memory"), exponents)), quality_weight=weight,
                             metric=metric)
        measured = [p for p in self.document["placements"] if p.get("quality")]
        if metric == "perplexity":
            for p in measured:
                q = p["quality"]
                q.update(value=q["perplexity"], low=q["perplexity"] - .001, high=q["perplexity"] + .001,
                         baseline=math.exp((100.5 - q["baseline"]) / 500))
                for end, shift in (("", 0), ("_low", -.0004), ("_high", .0004)):
                    q[f"difference{end}"] = q["value"] - q["baseline"] + shift
            self.document["std_bench"] /= 500
        for p in measured:
            q = p["quality"]
            p["rcp"], p["rcp_mem"] = self.values(p["throughput"]["value"], p["memory"]["value"],
                                                 self.loss(q["value"], q["baseline"]), self.document["std_bench"])

    def check_result(self):
        rows = [p for p in self.document["placements"] if p.get("quality")]
        self.assertEqual(len(rows), 65)
        for p in rows:
            q = p["quality"]
            self.assertAlmostEqual(q["difference"], q["value"] - q["baseline"], delta=1e-9)
            self.assertAlmostEqual(p["memory"]["value"], p["memory"]["peak_bytes"] / p["memory"]["baseline_peak_bytes"], delta=1e-9)
            expected = self.values(p["throughput"]["value"], p["memory"]["value"], self.loss(q["value"], q["baseline"]),
                                   self.document["std_bench"])
            for key, value in zip(("rcp", "rcp_mem"), expected):
                self.assertAlmostEqual(p[key], value, delta=1e-9 * value)

    def check_page(self):
        """From the page alone: what is printed lies where its rounded operands put it."""
        page = self.page(self.document, env=self.without_gnuplot)
        constants = dict(re.findall(r"\b([sabcw]) = ([\d.]*\d)", page.said()))
        self.assertEqual(set(constants), set("sabcw"))
        exponents = [float(constants[key]) for key in "abc"]
        self.assertEqual(exponents, list(self.settings["exponents"].values()))
        self.assertEqual(float(constants["w"]), self.settings["quality_weight"])
        rows = page.table("ranks")
        self.assertEqual(len(rows), 65)
        quality = next(title for title in rows[0] if title.endswith(" (dev)"))
        baseline = next(row for row in rows if "baseline" in row["mark"])
        for row in rows:
            operands = [number(row["\u00d7 decode"]), number(row["\u00d7 peak"]), number(row["difference from the baseline"]),
                        number(constants["s"]), number(row[quality])]
            corners = [self.values(speed, memory, self.loss(value, value - difference), s)
                       for speed, memory, difference, s, value in itertools.product(*[(v - r, v + r) for v, r in operands])]
            for title, found in zip(("RCP", "RCPmem"), zip(*corners)):
                printed, rounding = number(row[title])
                self.assertLessEqual(min(found) - rounding, printed, row)
                self.assertGreaterEqual(max(found) + rounding, printed, row)
                self.assertLess(max(found) - min(found), .06 * printed, "the page rounds so much that nothing is shown")
            (own, half), (other, other_half) = number(row["peak"]), number(baseline["peak"])
            self.assertAlmostEqual(own / other, number(row["\u00d7 peak"])[0],
                                   delta=half / other + own * other_half / other ** 2 + 1e-4)

    def test_default(self):
        self.check_result()
        self.check_page()

    def test_exponents_and_weight(self):
        self.use((1.5, .5, 2), .25)
        self.check_result()
        self.check_page()

    def test_perplexity(self):
        self.use((1, 1, 1), 1, "perplexity")
        self.check_result()
        self.check_page()

    def test_a_wrong_number_is_found(self):
        self.document["placements"][5]["rcp_mem"] *= 1.05
        self.assertRaises(AssertionError, self.check_result)
        self.assertRaises(AssertionError, self.check_page)

    def test_rows(self):
        rows = self.page(self.document, env=self.without_gnuplot).table("ranks")
        for row, p in zip(rows, self.document["placements"]):
            q, cells = p["quality"], list(row.values())
            self.assertEqual(row["n"], f"{q['lists']:,}")
            for title, text, value in (
                    ("exact match, % (dev)", "{:.2f} {:.2f}\u2013{:.2f}", [q["value"], q["low"], q["high"]]),
                    ("difference from the baseline", "{:+.2f} {:+.2f} to {:+.2f}", [q[f"difference{end}"] for end in ("", "_low", "_high")]),
                    ("\u00d7 decode", "{:.3f} {:.3f}\u2013{:.3f}", [p["throughput"][key] for key in ("value", "low", "high")]),
                    ("RCP", "{:.3f} {:.3f}\u2013{:.3f}", [p[f"rcp{end}"] for end in ("", "_low", "_high")]),
                    ("RCPmem", "{:.3f} {:.3f}\u2013{:.3f}", [p[f"rcp_mem{end}"] for end in ("", "_low", "_high")])):
                if p["baseline"] and "to" in text:
                    text = "{:+.2f}"
                expected = re.sub(r"[+-](0\.0+)(?=\D|$)", r"\1", text.format(*value)).replace("-", "\u2212")
                self.assertEqual(row[title], expected, p["id"])
            if p["rank"]:
                self.assertEqual(cells[0], f"{p['rank']} ({p['rank_low']}\u2013{p['rank_high']})")
            marks = {"winner": p["id"] == self.document["answer"]["placement"], "tied": p["top"] and p["rank"] > 1,
                     "baseline": p["baseline"], "limited": p["status"] == "limited", "screened": p["screened"]}
            self.assertEqual(re.findall(r"\w+", row["mark"]), [mark for mark, is_so in marks.items() if is_so])
            self.assertEqual(row["mark"][:1] == "\u25cb", p["screened"])
            self.assertEqual(row["mark"][:1] == "\u25cf", p["pareto"])

    def test_terminal(self):
        path = self.write(self.document)
        out = self.run_ok("report", path, "--table").out
        self.assertFalse((self.folder / "report.html").exists())
        self.assertLessEqual(max(map(len, out.splitlines())), 100)
        self.assertTrue(out.startswith(self.document["answer"]["text"][:60]))
        first = self.document["placements"][0]
        row = next(line for line in out.splitlines() if line.endswith("winner"))
        for text in (f"*1 (1-{first['rank_high']})", "2000", f"{first['quality']['value']:.2f}",
                     f"\u2212{-first['quality']['difference']:.2f}\u00b1", f"{first['rcp_mem']:.2f}\u00b1"):
            self.assertIn(text, row)
        self.assertEqual(sum(line.endswith("tied") for line in out.splitlines()), len(self.document["top_group"]) - 1)
        said = " ".join(out.split())
        self.assertIn("tied with the winner, not worse with 95 % confidence: softmax, ", said)
        self.document["settings"]["effort"] = "quick"
        self.assertTrue(self.run_ok("report", self.write(self.document), "--table").out.startswith("This is a screening"))
        self.run_code(2, "report", path, "--table", "-o", self.folder / "page.html")


class Old(ReportTest):
    def test_documents_of_version_0_1_0(self):
        old = search_result.without_new(self.document)
        page = self.page(old)
        said = page.said()
        self.assertNotIn("race", [kind for kind, _ in page.tables])
        self.assertNotIn("Tied with it", said)
        rows = page.table("ranks")
        self.assertEqual(len(rows), 65)
        for row, p in zip(rows, old["placements"]):
            self.assertEqual(row["RCPmem"], f"{p['rcp_mem']:.3f}")
            self.assertEqual("screened" in row["mark"], p["quality"]["lists"] < 2000)
        self.assertEqual(len(page.table("tested")), len(self.document["top_group"]) + 1)
        self.run_ok("report", self.write(old), "--table")


class Missing(ReportTest):
    def test_nothing_but_the_schema(self):
        page = self.page({"schema": "attnkit.search/1"})
        self.assertNotIn("svg", page.tags)
        self.assertIn("No placement was measured", page.said())

    def test_parts(self):
        for key in self.document:
            if key != "schema":
                self.page({k: v for k, v in self.document.items() if k != key}, env=self.without_gnuplot)

    def test_wrong_types(self):
        def places(node, path):
            if isinstance(node, (dict, list)):
                for key in list(node)[:3] if path == ("placements",) else node if isinstance(node, dict) else range(min(len(node), 2)):
                    yield from places(node[key] if isinstance(node, dict) or isinstance(key, int) else key, path + (key,))
            yield path

        small = copy.deepcopy(self.document)
        small["placements"] = small["placements"][:1] + small["placements"][-1:]
        targets = [p for p in places({k: v for k, v in small.items() if k != "placements"}, ()) if p] + \
            [("placements", 0, *p) for p in places(small["placements"][0], ())]
        for n, path in enumerate(targets[::3]):  # a third of them, to be quick
            if path == ("schema",):
                continue
            document = copy.deepcopy(small)
            node = document
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = [None, "text", -1e300, [], {}, [[1]], {"a": 1}, True][n % 8]
            self.page(document, env=self.without_gnuplot)

    def test_no_costs(self):
        for placement in self.document["placements"]:
            for key in ("cost", "throughput", "memory", "rcp", "rcp_mem"):
                placement[key] = None
            placement["pareto"] = False
        page = self.page(self.document)
        self.assertIn("No placement has both a quality and a cost", page.said())
        self.assertIn("RCP is n/a where", page.said())
        self.assertNotIn("RCPmem", page.said())

    def test_one_placement(self):
        self.document["placements"] = [p for p in self.document["placements"] if p["baseline"]]
        page = self.page(self.document)
        self.assertIn("No measured placement differs from the baseline in one role alone", page.said())
        self.assertEqual(page.tags.count("svg"), 4 if HAS_GNUPLOT else 0)

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_perplexity(self):
        self.document["settings"]["metric"] = "perplexity"
        for placement in self.document["placements"]:
            if placement.get("quality"):
                value = placement["quality"]["perplexity"]
                placement["quality"].update(value=value, low=value - 1e-4, high=value + 1e-4, difference=.004, difference_low=.003,
                                            difference_high=.005)
        text = self.html(self.document)
        self.assertIn("perplexity (lower is better)", text)
        blocks = re.search(r'<table class="blocks">.*?</table>', text, re.S)[0]
        self.assertIn("var(--bad", blocks)  # a higher one is worse
        self.assertNotIn("var(--good", blocks)
        quality = re.findall(r"<svg.*?</svg>", text, re.S)[0]
        tics = [(float(y), float(t)) for y, t in re.findall(r"translate\([\d.]+,([\d.]+)\)[^>]*text-anchor=\"end\">\s*<text> *([\d.]+)</text>", quality)]
        self.assertGreater(len(tics), 2)
        self.assertEqual(sorted(tics), sorted(tics, key=lambda tic: tic[1]))  # the best on top

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_encoder_only(self):
        self.document["model"]["kind"] = "encoder"
        self.document["answer"]["text"] = "An answer."
        for placement in self.document["placements"]:
            placement["blocks"] = {"encoder.self": placement["blocks"]["encoder.self"]}
            for at in (placement.get("cost") or {"at": []})["at"]:
                for key in ("decode", "decode_ratio", "decode_ratio_low", "decode_ratio_high", "latency", "state_bytes"):
                    del at[key]
        page = self.page(self.document)
        self.assertIn("throughput of whole sequences", page.said())
        self.assertNotIn("decode throughput", page.said())

    def test_by_layer(self):
        self.document["settings"]["per_layer"] = True
        other = copy.deepcopy(self.document["placements"][0])
        other.update(id="other", rank=65, blocks={r: ["softmax"] * 3 for r in other["blocks"]})
        other["blocks"]["decoder.self"][1] = "relu"
        self.document["placements"].append(other)
        page = self.page(self.document, env=self.without_gnuplot)
        self.assertIn("decoder.self.2", [row["layer"] for row in page.table("blocks")])
        self.assertIn("softmax / relu / softmax", page.said())

    def test_lengths_that_could_not_be_timed(self):
        winner = self.document["placements"][0]
        self.assertNotIn("Not timed", self.page(self.document, env=self.without_gnuplot).said())
        winner["cost"]["untimed"] = [{"length": 4096, "reason": "killed by <signal> 11"}, {"length": None}, 3]
        said = self.page(self.document, env=self.without_gnuplot).said()
        self.assertIn(f"4096 {winner['id']} killed by <signal> 11", said)
        self.assertIn("no reason was recorded", said)

    def test_interrupted(self):
        self.document["status"] = "interrupted"
        self.assertIn("was interrupted", self.page(self.document, env=self.without_gnuplot).said())


class Files(ReportTest):
    def test_output(self):
        path = self.write(self.document)
        env = self.without_gnuplot
        self.run_ok("report", path, "-o", self.folder / "page.html", env=env)
        page = (self.folder / "page.html").read_text()
        self.assertEqual(self.run_ok("report", path, "-o", "-", env=env).out, page)
        self.assertEqual(self.run_ok("report", "-", "-o", "-", env=env, stdin=path.read_bytes()).out, page)
        self.assertEqual(self.run_ok("report", path, "--json", env=env).json()["report"], f"{self.folder}/report.html")
        self.run_code(2, "report", "-", stdin=path.read_bytes())

    def test_relative_path(self):
        self.write(self.document)
        self.assertEqual(self.run_ok("report", "result.json", cwd=self.folder, env=self.without_gnuplot).err, "report.html\n")

    def test_never_replaces_inputs(self):
        path = self.write(self.document)
        before = path.read_bytes()
        os.symlink(path, self.folder / "report.html")
        (self.folder / "winner.toml").write_text("winner")
        (self.folder / "journal.jsonl").write_text("journal")
        self.run_code(2, "report", path)
        for output in ("result.json", "report.html", "winner.toml", "journal.jsonl"):
            self.run_code(2, "report", path, "-o", self.folder / output)
        self.run_code(6, "report", path, "-o", self.folder)
        self.run_code(6, "report", path, "-o", self.folder / "nowhere" / "page.html")
        self.assertEqual(path.read_bytes(), before)
        self.assertEqual((self.folder / "journal.jsonl").read_text(), "journal")

    def test_what_is_no_result(self):
        for content, words in [("no json", "is no JSON"), ("", "is no JSON"), ('{"schema": 1e999}', "is no JSON"),
                               ("[]", "has no schema"), ('{"schema": 3}', "has no schema"),
                               ('{"schema": "attnkit.search/2"}', "attnkit.search/2"),
                               ('{"schema": "attnkit.bench/1"}', "benches are not in this version")]:
            result = self.run_code(6, "report", self.write(content))
            self.assertIn(words, result.err)
            self.assertEqual(result.err.count("attnkit: "), 1)
            self.assertFalse((self.folder / "report.html").exists())
        for path in (self.folder, self.folder / "missing.json", ""):
            self.run_code(6, "report", path)
        self.run_code(2, "report")


if __name__ == "__main__":
    unittest.main()
