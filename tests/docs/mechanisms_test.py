"""docs/mechanisms.md says what the plugins say; ATTNKIT_WRITE_DOCS=1 rewrites its generated tables.

mechanisms_test.py SOURCE_FOLDER ATTNKIT PLUGIN_FOLDER
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

SOURCE, ATTNKIT, FOLDER = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
DOCUMENT = SOURCE / "docs/mechanisms.md"
ALIGN = 64
BAR = "\\|"


def attnkit(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "ATTNKIT_PLUGIN_PATH"}
    command = [ATTNKIT, *arguments, "--plugin-dir", FOLDER, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return json.loads(done.stdout)


PLUGINS = [p for p in attnkit("plugins")["plugins"] if p["device"] == "cpu"]
PLUGINS.sort(key=lambda p: ["softmax", "relu", "cosformer", "leap", p["name"]].index(p["name"]))


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
    """What validate says of samples/manifests/<name>.toml after a change."""
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


def value(formula, **names):
    """The value of a formula in which blanks between factors multiply."""
    return eval(re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula), {"__builtins__": {}}, names)


class Mechanisms(unittest.TestCase):
    maxDiff = None

    def section(self, name, expected):
        text = DOCUMENT.read_text()
        begin, end = f"<!-- {name}: generated, see tests/docs/mechanisms_test.py -->\n", f"<!-- end of {name} -->"
        start, stop = text.index(begin) + len(begin), text.index(end)
        if os.environ.get("ATTNKIT_WRITE_DOCS"):
            DOCUMENT.write_text(text[:start] + expected + text[stop:])
        else:
            self.assertEqual(text[start:stop], expected)

    def test_places(self):
        self.section("places", table(["mechanism", "place", "whole", "stream", "growing source", "state bytes at 512",
                                      "at 4096", "flops, 512", "one more"], place_rows()))

    def test_options(self):
        self.section("options", table(["mechanism", "option", "type", "default", "allowed", "meaning"], option_rows()))

    def test_weights(self):
        self.section("weights", table(["mechanism", "name", "kind", "type", "shape", "meaning"], weight_rows()))

    def test_refusals(self):
        self.section("refusals", table(["mechanism", "asked for", "answer"], refusal_rows()))

    def test_formulas(self):
        rows = re.findall(r"(?m)^\| `(\w+)` \| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", DOCUMENT.read_text())
        formulas = {name: rest for name, *rest in rows}
        self.assertEqual(sorted(formulas), sorted(p["name"] for p in PLUGINS))
        width = {"H": 4, "D": 32, "E": 32, "r": 32 // 4}
        for plugin in PLUGINS:
            state, flops, weights = formulas[plugin["name"]]
            for place in plugin["places"]:
                if not place["fits"]:
                    continue
                pairs = 512 * 513 // 2 if place["causal"] else 512 * 512
                self.assertEqual(place["flops"], 4 * value(flops, N=512, M=512, P=pairs, **width), plugin["name"])
                owned = [math.prod(t["shape"]) for t in place["tensors"]]
                self.assertEqual(sum(owned), value(weights, **width), plugin["name"])
                if not place["stream"]["fits"]:
                    continue
                self.assertEqual(place["stream"]["flops"], 4 * value(flops, N=1, M=1, P=512, **width), plugin["name"])
                for length in (512, 4096):
                    needed = 4 * value(state, M=length, **width)
                    stated = place["stream"]["state_bytes"][str(length)]
                    self.assertEqual(stated, -(-needed // ALIGN) * ALIGN, plugin["name"])

        def state_floats(name, length):
            return value(formulas[name][0], M=length, **width)

        def crossover(name):
            return next(m for m in range(1, 1000) if state_floats(name, m) < state_floats("softmax", m))

        self.assertEqual([crossover(name) for name in ("relu", "cosformer", "leap")], [17, 34, 34])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
