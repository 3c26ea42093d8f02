"""docs/mechanisms.md says what the plugins say; ATTNKIT_WRITE_DOCS=1 rewrites its generated tables.

mechanisms_test.py SOURCE_FOLDER ATTNKIT PLUGIN_FOLDER CONFORMANCE
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, ATTNKIT, FOLDER, CONFORMANCE = pathlib.Path(sys.argv[1]), *sys.argv[2:5]
DOCUMENT = SOURCE / "docs/mechanisms.md"
ALIGN = 64
BAR = "\\|"


def attnkit(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "ATTNKIT_PLUGIN_PATH"}
    command = [ATTNKIT, *arguments, "--plugin-dir", FOLDER, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return json.loads(done.stdout)


PLUGINS = [p for p in attnkit("plugins")["plugins"] if p["device"] == "cpu"]
ORDER = ["softmax", "relu", "cosformer", "leap"]  # the shipped model's first, then by name
PLUGINS.sort(key=lambda p: (ORDER.index(p["name"]) if p["name"] in ORDER else len(ORDER), p["name"]))


def table(head, rows):
    lines = [f"| {' | '.join(str(cell).replace('|', BAR) for cell in line)} |" for line in [head, *rows]]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n" + "\n".join(lines) + "\n\n"


def lengths(place, answer):
    """Whether it works, in terms of the model: an encoder's queries are the source."""
    names = {"query": "source" if place["role"] == "encoder.self" else "target", "key": "source"}
    return "needs " + " and ".join(names[n] for n in answer["lengths"]) + " length" if answer["lengths"] else "yes"


def growing(place):
    if place["role"] == "decoder.self":
        return ""
    stream = place["stream"]
    return "yes" if stream["growing_source"] and (place["role"] == "decoder.cross" or not stream["lengths"]) else "no"


def place_rows():
    for plugin in PLUGINS:
        for place in plugin["places"]:
            stream = place["stream"]
            row = [f"`{plugin['name']}`", place["role"] + (", causal" if place["causal"] else ""),
                   lengths(place, place) if place["fits"] else "no"]
            if stream["fits"]:
                yield row + [lengths(place, stream), growing(place), stream["state_bytes"]["512"],
                             stream["state_bytes"]["4096"], place["flops"], stream["flops"]]
            else:
                yield row + ["no", "", "", "", place.get("flops", ""), ""]


def option_rows():
    for plugin in PLUGINS:
        for o in plugin["options"]:
            choices = ("true", "false") if o["type"] == "bool" else o.get("choices", ())
            allowed = ", ".join(f"`{c}`" for c in choices) or f"{o['min']:.10g} to {o['max']:.10g}"
            default = o["default"] if o["type"] == "text" else json.dumps(o["default"])
            yield f"`{plugin['name']}`", f"`{o['name']}`", o["type"], f"`{default}`", allowed, o["doc"]


def weight_rows():
    for plugin in PLUGINS:
        for t in plugin["places"][0]["tensors"]:
            shape = " × ".join(map(str, t["shape"]))
            yield f"`{plugin['name']}`", f"`{t['name']}`", t["kind"], t["dtype"], shape, t["doc"]


def manifest_refusal(name, pattern, replacement):
    """The output of validate for samples/manifests/<name>.toml after a change."""
    text = (SOURCE / f"samples/manifests/{name}.toml").read_text().replace("../models", str(SOURCE / "samples/models"))
    text, changes = re.subn(pattern, replacement, text)
    assert changes == 1, (name, pattern)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as manifest:
        manifest.write(text)
        manifest.flush()
        report = attnkit("validate", manifest.name)
    message, = {d["message"] for d in report["diagnostics"] if d["code"] == "AK203"}
    return message.split("\": ", 1)[1]


def refusal_rows():
    said = {}
    for plugin in PLUGINS:
        for place in plugin["places"]:
            for form, answer in (("whole", place), ("stream", place["stream"])):
                if not answer["fits"]:
                    sentence = answer["refusal"].removeprefix(plugin["name"] + ": ")
                    what = f"{place['role']}{', causal' if place['causal'] else ''}, {form}"
                    said.setdefault((what, sentence), []).append(f"`{plugin['name']}`")
    for (what, sentence), names in said.items():
        yield ", ".join(names), what, sentence
    yield "`cosformer`", "decoding without `[length]`", manifest_refusal("cosformer", r"(?s)\[length\].*", "")
    yield "`leap`", "`factor = 3`, 32 wide heads", manifest_refusal("leap", "factor = 4", "factor = 3")


def measured():
    """The findings of the laws of gradients: by plugin and place, the error and the bytes that are saved."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        files = ":".join(f"{FOLDER}/{plugin['name']}.so" for plugin in PLUGINS)
        environment = os.environ | {"ATTNKIT_CONFORMANCE_PLUGINS": files}
        subprocess.run([CONFORMANCE, "--gtest_filter=gradient_differences.*:gradient_saves_linearly.*",
                        f"--gtest_output=json:{report.name}"], env=environment, capture_output=True, check=True)
        suites = json.load(report)["testsuites"]
    for case in (case for suite in suites for case in suite["testsuite"]):
        for key, number in case.items():
            place, _, kind = key.partition(".")
            if kind in ("gradient_error", "saved_bytes"):
                yield case["name"], place, kind, float(number)


def gradient_rows(stated):
    """stated: the errors that the document has, which stay while they are upper bounds, of at most 1000 times what is found: a new
    one is 2 to 20 times that, and the rest is for other processors."""
    found = {}
    for plugin, place, kind, number in measured():
        found.setdefault((plugin, kind), {})[place] = number
    for plugin in PLUGINS:
        name = plugin["name"]
        if not (errors := found.get((name, "gradient_error"))):
            yield f"`{name}`", "no gradients", "", "", ""
            continue
        worst = max(errors.values(), key=lambda error: (math.isnan(error), error))
        bound = stated.get(name, "0")
        if not worst <= float(bound) <= 1000 * worst:  # a NaN has no bound, and ends this
            bound = f"1e{math.ceil(math.log10(2 * worst)):03d}"
        saved = found[name, "saved_bytes"]
        yield f"`{name}`", bound, *(f"{saved[place]:.0f}" if place in saved else ""
                                    for place in ("encoder_self", "decoder_self", "decoder_cross"))


ROW = re.compile(r"(?m)^\| (output|state|flops|weights|letters)((?:, [a-z.]+)*) \| (.*) \|$")


class Formulas:
    """The rows of a plugin's README that say what it computes and costs; the test asks d_model 128 and 4 heads."""

    def __init__(self, name):
        self.name = name
        self.rows = {}
        for kind, tags, text in ROW.findall((SOURCE / "plugins" / name / "README.md").read_text()):
            self.rows.setdefault(kind, []).append((frozenset(tags.split(", ")[1:]), text))
        self.letters = {"H": 4, "D": 32, "E": 32}
        for _, text in self.rows.get("letters", []):
            for letter, expression in re.findall(r"`(\w+) = ([^`]+)`", text):
                self.letters[letter] = value(expression, **self.letters)

    def row(self, kind, *tags):
        """The row whose tags all apply and that has most of them."""
        fitting = [(len(own), text) for own, text in self.rows.get(kind, []) if own <= set(tags)]
        assert fitting, f"plugins/{self.name}/README.md has no row \"{kind}\" for {', '.join(tags)}"
        return max(fitting)[1]

    def value(self, kind, *tags, **names):
        return value(re.search("`([^`]+)`", self.row(kind, *tags))[1], **self.letters, **names)


def value(formula, **names):
    """The value of a formula in which blanks between factors multiply."""
    allowed = {"__builtins__": {}, "min": min, "max": max, "ceil": math.ceil, "log2": math.log2}
    return eval(re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula), allowed, names)


def tagged(text, tags):
    return f"{', '.join(sorted(tags))}: {text}" if tags else text


def output_rows():
    for plugin in PLUGINS:
        for tags, text in Formulas(plugin["name"]).rows["output"]:
            yield f"[`{plugin['name']}`](../plugins/{plugin['name']})", tagged(text, tags)


def cost_rows():
    for plugin in PLUGINS:
        formulas = Formulas(plugin["name"])
        cells = ["; ".join(tagged(text, tags) for tags, text in formulas.rows.get(kind, []))
                 for kind in ("state", "flops", "weights", "letters")]
        yield f"`{plugin['name']}`", *cells


def list_rows():
    """The table of `attnkit plugins`, with what each mechanism is."""
    environment = {k: v for k, v in os.environ.items() if k != "ATTNKIT_PLUGIN_PATH"}
    text = subprocess.run([ATTNKIT, "plugins", "--plugin-dir", FOLDER], env=environment, capture_output=True,
                          text=True).stdout
    lines = [re.split(r"  +", line.strip()) for line in text.split("\n\n")[0].splitlines()]
    cells = {line[0]: line[2:] for line in lines[1:] if line[1] == "cpu"}
    for plugin in PLUGINS:
        name = plugin["name"]
        yield f"[`{name}`](plugins/{name})", plugin["summary"], *cells[name]


class Mechanisms(unittest.TestCase):
    maxDiff = None

    def section(self, name, expected, document=DOCUMENT):
        text = document.read_text()
        begin, end = f"<!-- {name}: generated, see tests/docs/mechanisms_test.py -->\n", f"<!-- end of {name} -->"
        start, stop = text.index(begin) + len(begin), text.index(end)
        if os.environ.get("ATTNKIT_WRITE_DOCS"):
            document.write_text(text[:start] + expected + text[stop:])
        else:
            self.assertEqual(text[start:stop], expected)

    def test_places(self):
        self.section("places", table(["mechanism", "place", "whole", "stream", "growing source", "state bytes at 512",
                                      "at 4096", "flops, 512", "one more"], place_rows()))

    def test_weights(self):
        self.section("weights", table(["mechanism", "name", "kind", "type", "shape", "meaning"], weight_rows()))

    def test_gradients(self):
        stated = dict(re.findall(r"(?m)^\| `(\w+)` \| (1e-\d+) \|", DOCUMENT.read_text()))
        self.section("gradients", table(["mechanism", "error below", "saved, encoder.self", "decoder.self, causal",
                                         "decoder.cross"], gradient_rows(stated)))

    def test_refusals(self):
        self.section("refusals", table(["mechanism", "asked for", "answer"], refusal_rows()))

    def test_list(self):
        self.section("mechanisms", table(["mechanism", "what it is", "sits in", "causal", "streams", "state at 512",
                                          "at 4096", "flops, 512 tokens", "one more"], list_rows()),
                     SOURCE / "README.md")

    def test_outputs(self):
        self.section("outputs", table(["mechanism", "output"], output_rows()))

    def test_costs(self):
        self.section("costs", table(["mechanism", "state", "flops per head", "weights of its own", "letters"],
                                    cost_rows()))

    def test_formulas(self):
        for plugin in PLUGINS:
            formulas = Formulas(plugin["name"])
            for place in plugin["places"]:
                if not place["fits"]:
                    continue
                tags = [place["role"]] + ["causal"] * place["causal"]
                where = f"{plugin['name']} in {' '.join(tags)}"
                pairs = 512 * 513 // 2 if place["causal"] else 512 * 512
                self.assertEqual(place["flops"], 4 * formulas.value("flops", *tags, N=512, M=512, C=512, P=pairs), where)
                owned = sum(math.prod(t["shape"]) for t in place["tensors"])
                self.assertEqual(owned, formulas.value("weights", *tags), where)
                stream = place["stream"]
                if not stream["fits"]:
                    continue
                tags.append("stream")
                self.assertEqual(stream["flops"], 4 * formulas.value("flops", *tags, N=1, M=1, C=512, P=512), where)
                for length in (512, 4096):
                    needed = 4 * formulas.value("state", *tags, M=length)
                    self.assertEqual(stream["state_bytes"][str(length)], -(-needed // ALIGN) * ALIGN, where)

    def test_options(self):
        self.section("options", table(["mechanism", "option", "type", "default", "allowed", "meaning"], option_rows()))
        for plugin in PLUGINS:
            readme = (SOURCE / "plugins" / plugin["name"] / "README.md").read_text()
            named = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", readme)
            defaults = {name: default for name, default in named}
            for option in plugin["options"]:
                self.assertIn(option["name"], defaults, plugin["name"])
                stated, default = defaults[option["name"]], option["default"]
                same = stated == default if option["type"] == "text" else json.loads(stated) == default
                self.assertTrue(same, f"{plugin['name']}: {option['name']} is {default} by default, not {stated}")

    def test_crossovers(self):
        """From which length on a constant state is smaller than softmax's."""
        def state(name, length):
            return Formulas(name).value("state", M=length)

        def crossover(name):
            return next(m for m in range(1, 1000) if state(name, m) < state("softmax", m))

        self.assertEqual([crossover(name) for name in ("relu", "cosformer", "leap")], [17, 34, 34])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
