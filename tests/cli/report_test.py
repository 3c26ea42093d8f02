"""report: the page of a search's result, from whole and from broken documents."""

import copy
import html.parser
import json
import os
import pathlib
import re
import shutil
import unittest

from command import CommandTest

RESULT = pathlib.Path(__file__).with_name("search_result.json")
VOID = {"meta", "br"}
SVG_EMPTY = {"rect", "path", "circle", "use", "polygon", "feflood", "fecomposite"}
HAS_GNUPLOT = shutil.which("gnuplot") is not None


class Page(html.parser.HTMLParser):
    """Text, elements and attributes of a page; wrong nesting is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        if self.open:
            raise AssertionError(f"never closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

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

    def said(self):
        return " ".join(" ".join(self.text).split())


class ReportTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.document = json.loads(RESULT.read_text())
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
        for fact in ["AMD EPYC 7B13", "2026-11-21", "dev.tsv, 2,000 lists", "grid", self.document["command"], "std_bench", "Wilson"]:
            self.assertIn(fact, said)

    def test_numbers_of_a_row(self):
        text = self.html(self.document, env=self.without_gnuplot)
        best = next(p for p in self.document["placements"] if p["rank"] == 1)
        row = re.search(r"<tr class=\"winner\">.*?</tr>", text, re.S)[0]
        at = next(c for c in best["cost"]["at"] if c["length"] == 512)
        for number in (best["quality"]["value"], best["quality"]["low"], best["quality"]["high"], at["decode_ratio"]):
            self.assertIn(f"{number:.2f}", row)
        self.assertIn(f"{best['rcp']:.3f}", row)

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
    def test_three_figures(self):
        text = self.html(self.document)
        page = Page(text)
        self.assertEqual(page.tags.count("svg"), 3)
        self.assertNotIn("rgb(", text)  # every colour follows light and dark
        quality, ablation, lengths = re.findall(r"<svg.*?</svg>", text, re.S)
        hints = re.findall(r"<title>(?:rank \d+: )?([^<;]*);", quality)
        ranked = [p for p in self.document["placements"] if p["status"] == "ranked"]
        self.assertEqual(len(set(hints)), len(ranked))
        for label in ("baseline: softmax", "winner: leap, relu, leap", "cosformer"):
            self.assertIn(f"<text>{label}</text>", quality)
            self.assertIn(f"<text>{label}</text>", lengths)
        by_id = {p["id"]: p for p in self.document["placements"]}
        delta = by_id["encoder.self=softmax decoder.self=softmax decoder.cross=relu"]["quality"]["value"] - \
            by_id["encoder.self=softmax decoder.self=softmax decoder.cross=softmax"]["quality"]["value"]
        self.assertIn(f"<text>\u2212{-delta:.2f}</text>", ablation)
        cells = re.findall(r"<text>([^<]*)</text>", ablation)
        self.assertEqual([cells.count(word) for word in ("baseline", "refused", "failed")], [3, 1, 1])

    def test_without_gnuplot(self):
        page = self.page(self.document, env=self.without_gnuplot)
        self.assertEqual(page.said().count("gnuplot-nox"), 3)
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
            placement.pop("cost", None)
            placement.update(rcp=None, rcp_mem=None, pareto=False)
        page = self.page(self.document)
        self.assertIn("No placement has both a quality and a cost", page.said())
        self.assertIn("RCP is n/a where", page.said())
        self.assertNotIn("RCP mem</th>", page.said())

    def test_one_placement(self):
        self.document["placements"] = [p for p in self.document["placements"] if p["baseline"]]
        page = self.page(self.document)
        self.assertIn("No measured placement differs from the baseline in one role alone", page.said())
        self.assertEqual(page.tags.count("svg"), 2 if HAS_GNUPLOT else 0)

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_perplexity(self):
        self.document["settings"]["metric"] = "perplexity"
        for placement in self.document["placements"]:
            if placement.get("quality"):
                value = placement["quality"]["perplexity"]
                placement["quality"].update(value=value, low=value - 1e-4, high=value + 1e-4)
        text = self.html(self.document)
        self.assertIn("perplexity (lower is better)", text)
        ablation = re.findall(r"<svg.*?</svg>", text, re.S)[1]
        self.assertIn("var(--bad", ablation)  # a higher one is worse
        self.assertNotIn("var(--good", ablation)
        quality = re.findall(r"<svg.*?</svg>", text, re.S)[0]
        tics = [(float(y), float(t)) for y, t in re.findall(r"translate\([\d.]+,([\d.]+)\)[^>]*text-anchor=\"end\">\s*<text> *([\d.]+)</text>", quality)]
        self.assertGreater(len(tics), 2)
        self.assertEqual(sorted(tics), sorted(tics, key=lambda tic: tic[1]))  # the best on top

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_encoder_only(self):
        self.document["model"]["kind"] = "encoder"
        for placement in self.document["placements"]:
            placement["blocks"] = {"encoder.self": placement["blocks"]["encoder.self"]}
            for at in (placement.get("cost") or {"at": []})["at"]:
                for key in ("decode", "decode_ratio", "decode_ratio_low", "decode_ratio_high", "latency", "state_bytes"):
                    del at[key]
        page = self.page(self.document)
        self.assertIn("throughput of whole sequences", page.said())
        self.assertNotIn("decode throughput", page.said())

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_by_layer(self):
        self.document["settings"]["per_layer"] = True
        other = copy.deepcopy(self.document["placements"][0])
        other.update(id="other", rank=65, blocks={r: ["softmax"] * 3 for r in other["blocks"]})
        other["blocks"]["decoder.self"][1] = "relu"
        self.document["placements"].append(other)
        text = self.html(self.document)
        ablation = re.findall(r"<svg.*?</svg>", text, re.S)[1]
        self.assertIn("decoder.self.2", ablation)
        self.assertIn("softmax / relu / softmax", text)

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
