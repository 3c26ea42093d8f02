"""A result of attnkit search as the command writes it, from a simulated race: every number follows from outcomes and
timings that are drawn here, so that what the page prints can be computed again.  As a program it prints the document."""

import copy
import itertools
import json
import math
import random
import statistics

ROLES = ("encoder.self", "decoder.self", "decoder.cross")
CHOICES = ("softmax", "cosformer", "relu", "leap")
LISTS, BUCKETS, LENGTH, MIB = 2000, (412, 640, 948), 512, 1 << 20
SPREAD = .01  # of the timing blocks
STAGES = ((500, 2), (1000, 3), (LISTS, 4))  # examples, timing blocks
Z95 = 1.959963984540054

# Of each mechanism in each role: the share of wrong lists and the time that it adds to the baseline's, its memory in MiB.
WRONG = {"softmax": (0, 0, 0), "cosformer": (.005, .0005, .0038), "relu": (.008, .003, .009), "leap": (.006, .001, .0035)}
TIME = {"softmax": (0, .32, .44), "cosformer": (0, .012, .02), "relu": (0, .008, .012), "leap": (0, .02, .03)}
PEAK = {"softmax": (.22, 1.15, 1.6), "cosformer": (.21, .1, .12), "relu": (.17, .06, .08), "leap": (.21, .1, .12)}

# The fields that documents of version 0.1.0 lack.
NEW = {"settings": ("effort", "confidence"), "answer": ("tied",), "machine": ("compiler", "commit"),
       "model": ("weights_sha256", "data_sha256", "test_sha256"),
       "quality": ("baseline", "difference_low", "difference_high", "p"),
       "placement": ("screened", "to_winner", "test", "throughput", "memory", "rcp_low", "rcp_high", "rcp_mem_low",
                     "rcp_mem_high", "rank_low", "rank_high", "top")}


def wilson(right, n):
    share, z2 = right / n, Z95 * Z95
    middle, half = share + z2 / (2 * n), Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return 100 * (middle - half) / (1 + z2 / n), 100 * (middle + half) / (1 + z2 / n)


def count(wrong, start, end):
    """Of the lists [start, end); `wrong` has a bit for each."""
    return bin(wrong >> start & (1 << end - start) - 1).count("1")


def paired(own, other, n):
    """Of the first n lists: the difference of two shares in points, its deviation with two pseudo-pairs, McNemar's p."""
    won, lost = count(other & ~own, 0, n), count(own & ~other, 0, n)
    deviation = math.sqrt(won + 1 + lost + 1 - (won - lost) ** 2 / (n + 2)) / (n + 2)
    tail = sum(math.comb(won + lost, k) for k in range(min(won, lost) + 1)) / 2 ** (won + lost)
    return 100 * (won - lost) / n, 100 * deviation, min(1, 2 * tail)


def share_json(wrong, start, end):
    n = end - start
    right = n - count(wrong, start, end)
    low, high = wilson(right, n)
    return {"value": 100 * right / n, "low": low, "high": high, "lists": n}


def compared_json(wrong, baseline, n):
    difference, deviation, p = paired(wrong, baseline, n)
    return {**share_json(wrong, 0, n), "baseline": share_json(baseline, 0, n)["value"], "difference": difference,
            "difference_low": difference - Z95 * deviation,
            "difference_high": difference + Z95 * deviation, "p": p}


def id_of(layers):
    return " ".join(f"{role}={choice}" for role, choice in zip(ROLES, layers))


class Placement:
    def __init__(self, layers, draw, luck):
        self.layers, self.id = layers, id_of(layers)
        names = [choice.split("{")[0] for choice in layers]
        rate = .002 + sum(WRONG[name][r] for r, name in enumerate(names)) + .05 * any("{" in choice for choice in layers)
        # A list is as hard for one placement as for another, but for a little.
        self.data, self.test = (
            sum(1 << i for i, at in enumerate(lists) if at < 4 * rate and at * math.exp(.12 * draw.gauss(0, 1)) < rate)
            for lists in luck)
        time = .24 + sum(TIME[name][r] for r, name in enumerate(names))
        self.peak = round((2.99 + sum(PEAK[name][r] for r, name in enumerate(names))) * MIB)
        self.blocks = [math.exp(math.log(1 / time) + SPREAD * draw.gauss(0, 1)) for _ in range(STAGES[-1][1])]
        self.stage = 0

    def lists(self):
        return STAGES[self.stage][0]

    def speed(self):
        return statistics.median(self.blocks[:STAGES[self.stage][1]])


class Race:
    def __init__(self, seed=12):
        draw = random.Random(seed)
        luck = [[draw.random() for _ in range(LISTS)] for _ in range(2)]
        spaces = [(a, b, c) for a in CHOICES for b in CHOICES for c in CHOICES]
        self.all = [Placement(layers, draw, luck) for layers in spaces]
        self.baseline = self.all[0]
        self.baseline.blocks = [1.0] * STAGES[-1][1]
        self.homogeneous = [{"id": p.id, "quality": share_json(p.data, 0, LISTS)["value"]}
                            for p in self.all if len(set(p.layers)) == 1]
        self.std_bench = statistics.stdev(h["quality"] for h in self.homogeneous)
        self.limited = Placement(("leap{factor = 2}", "softmax", "softmax"), draw, luck)
        self.stages, left = [], list(self.all)
        for s, (examples, blocks) in enumerate(STAGES):
            for p in left:
                p.stage = s
            self.baseline.stage = s
            leader = max(left, key=self.value)
            z = statistics.NormalDist().inv_cdf(1 - .05 / (len(self.all) * len(STAGES)))
            kept = [p for p in left if p is leader or self.log_ratio(p, leader)[0] + z * self.log_ratio(p, leader)[1] >= 0]
            self.stages.append({"examples": examples, "blocks": blocks, "raced": len(left), "kept": len(kept)})
            left = kept
        self.baseline.stage = self.limited.stage = len(STAGES) - 1
        self.top = sorted(left, key=self.value, reverse=True)

    def denominator(self, p):
        return 1 - paired(p.data, self.baseline.data, p.lists())[0] / self.std_bench

    def gain(self, p):
        return (p.speed() + self.baseline.peak / p.peak) / 2

    def value(self, p):
        return self.gain(p) / self.denominator(p)

    def log_deviation(self, p, spread):
        """Of the logarithm of the rank value: timings, and a deviation of quality in points."""
        time = p.speed() / self.gain(p) / 2 * SPREAD / math.sqrt(STAGES[p.stage][1])
        return math.hypot(time, spread / self.std_bench / self.denominator(p)) if p is not self.baseline else 0

    def log_ratio(self, p, other):
        difference, spread, _ = paired(p.data, other.data, p.lists())
        return math.log(self.value(p) / self.value(other)), math.hypot(self.log_deviation(p, spread), SPREAD / 2)

    def throughput(self, p):
        blocks = p.blocks[:STAGES[p.stage][1]]
        half = Z95 * SPREAD / math.sqrt(len(blocks)) if p is not self.baseline else 0
        value, quartiles = p.speed(), statistics.quantiles(blocks, n=4, method="inclusive")
        return {"value": value, "low": value * math.exp(-half), "high": value * math.exp(half), "quartile_low": quartiles[0],
                "quartile_high": quartiles[2], "blocks": len(blocks)}

    def costs(self, p, lengths):
        at = []
        for length in lengths:
            grown = 1 + (p.speed() - 1) * {64: .12, 512: 1, 4096: 6}[length]
            speed = 8000 * {64: 1.9, 512: 1, 4096: .16}[length] * grown
            state = sum(3 << 20 if c == "softmax" else 66 << 10 for c in p.layers) * length // LENGTH
            at.append({"length": length, "decode": speed, "decode_ratio": grown, "decode_ratio_low": grown * .99,
                       "decode_ratio_high": grown * 1.01, "latency": 1 / speed, "prefill": speed * 9, "prefill_ratio": 1.02,
                       "peak_bytes": p.peak * length // LENGTH, "baseline_peak_bytes": self.baseline.peak * length // LENGTH,
                       "state_bytes": state, "flops": 10 ** 9, "step_flops": 10 ** 6})
        return {"at": at}

    def placement_json(self, p):
        is_top, base = p in self.top, self.baseline
        named = is_top or p is base or len(set(p.layers)) == 1
        n = p.lists()
        quality = compared_json(p.data, base.data, n)
        if p is base:
            quality.update(difference_low=0.0, difference_high=0.0, p=None)
        ends = [end * n // LISTS for end in itertools.accumulate(BUCKETS, initial=0)]
        buckets = [share_json(p.data, start, end) for start, end in zip(ends, ends[1:])]
        quality.update(accuracy=100 - (100 - quality["value"]) / 12, perplexity=math.exp((100.5 - quality["value"]) / 500),
                       buckets=buckets)
        memory, speed = p.peak / base.peak, self.throughput(p)
        spread = self.log_deviation(p, paired(p.data, base.data, n)[1])
        json_ = {"id": p.id, "blocks": {role: [choice] * 3 for role, choice in zip(ROLES, p.layers)},
                 "status": "ranked", "reason": None, "rank": None, "pareto": False, "baseline": p is base, "finalist": is_top,
                 "screened": p is not base and n < LISTS, "top": is_top, "quality": quality,
                 "to_winner": None, "test": None, "throughput": speed,
                 "memory": {"value": memory, "peak_bytes": p.peak, "baseline_peak_bytes": base.peak},
                 "cost": self.costs(p, (64, LENGTH, 4096) if named else (LENGTH,))}
        for name, gain in (("rcp", p.speed()), ("rcp_mem", self.gain(p))):
            value = gain / self.denominator(p)
            json_.update({name: value, f"{name}_low": value * math.exp(-Z95 * spread),
                          f"{name}_high": value * math.exp(Z95 * spread)})
        if p is not self.limited and p is not self.top[0]:
            winner = self.top[0]
            difference, deviation, _ = paired(p.data, winner.data, n)
            ratio, wide = self.log_ratio(p, winner)
            json_["to_winner"] = {"lists": n, "difference": difference, "difference_low": difference - Z95 * deviation,
                                  "difference_high": difference + Z95 * deviation, "rank_ratio": math.exp(ratio),
                                  "rank_ratio_low": math.exp(ratio - Z95 * wide), "rank_ratio_high": math.exp(ratio + Z95 * wide)}
        if is_top or p is base:
            json_["test"] = compared_json(p.test, base.test, LISTS)
            if p is base:
                json_["test"].update(difference_low=0.0, difference_high=0.0, p=None)
            decoded = {name: {"exact": m["value"], "low": m["low"], "high": m["high"], "bleu": m["value"] + .3, "lists": LISTS}
                       for name, m in (("data", quality), ("test", json_["test"]))}
            json_["greedy"] = decoded
        return json_

    def placements(self):
        ranked = sorted(self.all, key=lambda p: (-p.stage, -self.value(p)))
        ranked.sort(key=lambda p: p not in self.top)
        rows = [self.placement_json(p) for p in ranked]
        for i, row in enumerate(rows):
            row["rank"] = i + 1
            row["rank_low"] = 1 + sum(other["rcp_mem_low"] > row["rcp_mem_high"] for other in rows)
            row["rank_high"] = len(rows) - sum(other["rcp_mem_high"] < row["rcp_mem_low"] for other in rows)
        full = [row for row in rows if row["quality"]["lists"] == LISTS]
        point = lambda row: (row["quality"]["value"], row["throughput"]["value"], -row["memory"]["value"])
        for row in full:
            row["pareto"] = not any(all(a >= b for a, b in zip(point(o), point(row))) and point(o) != point(row) for o in full)
        limited = self.placement_json(self.limited)
        limited.update(status="limited", reason="min_quality_ratio: 0.9373 is below 0.95")
        lost = [("failed", "softmax", "leap{factor = 2}", "softmax",
                 'time-out: no reply to "quality" within 60 s, twice; the worker was ended'),
                ("refused", "softmax", "softmax", "leap{factor = 2}",
                 "model.toml: decoder.cross: leap with factor = 2 needs d_head of at least 64, this model has 32")]
        rows.append(limited)
        for status, *layers, reason in lost:
            rows.append({"id": id_of(layers), "blocks": {role: [c] * 3 for role, c in zip(ROLES, layers)}, "status": status,
                         "reason": reason, "rank": None, "pareto": False, "baseline": False, "finalist": False})
        return rows


def document():
    race = Race()
    winner, base = race.top[0], race.baseline
    command = "attnkit search samples/models/numbers-en-de/model.toml --min-quality-ratio 0.95 --jobs 2 -o search"
    kept = (LISTS - count(winner.test, 0, LISTS)) / (LISTS - count(base.test, 0, LISTS))
    text = (f"At {LENGTH} tokens {' / '.join(winner.layers)} keeps {100 * kept:.1f} % of softmax's exact "
            f"match on the test set at {winner.speed():.2f} times its decode throughput; {len(race.top) - 1} others are not "
            "distinguishable from it.")
    digest = lambda name: random.Random(name).randbytes(32).hex()
    return {
        "schema": "attnkit.search/1", "status": "done",
        "answer": {"text": text, "placement": winner.id, "length": LENGTH, "crossover": 101, "tied": len(race.top)},
        "top_group": [p.id for p in race.top],
        "race": {"stages": race.stages, "decided": len(race.top) == 1},
        "noise": {"ratio_low": .988, "ratio_high": 1.013, "repetitions": 9, "drift": .031, "load": .42},
        "settings": {
            "strategy": "grid", "per_layer": False, "metric": "exact", "rank": "rcp_mem", "length": LENGTH,
            "lengths": [64, LENGTH, 4096], "limits": {"min_quality_ratio": .95, "max_latency": 25e-6},
            "exponents": {"throughput": 1, "quality": 1, "memory": 1}, "quality_weight": 1, "trials": 200, "seed": 7,
            "screen": 500, "finalists": 8, "repetitions": 9, "jobs": 2, "threads": 1, "trial_timeout": 60.0,
            "trial_memory": 4 << 30, "data": "dev.tsv", "test": "test.tsv", "baseline": base.id,
            "lists": {"data": LISTS, "test": LISTS}, "effort": "default", "confidence": .95},
        "space": {role: [*CHOICES, "leap{factor = 2}"] for role in ROLES},
        "buckets": ["1-8", "9-12", "13+"], "std_bench": race.std_bench,
        "homogeneous": race.homogeneous,
        "placements": race.placements(),
        "refused": [{"block": "encoder.self", "choice": "s4d", "reason": "s4d is causal; encoder.self is not"}],
        "version": "0.1.0", "command": command, "seconds": 41.6, "date": "2026-11-22",
        "model": {"name": "numbers-en-de", "kind": "encoder-decoder", "head": {"type": "lm"},
                  "manifest": "samples/models/numbers-en-de/model.toml",
                  "weights_sha256": digest("weights"), "data_sha256": digest("data"), "test_sha256": digest("test"),
                  "encoder_layers": 3, "decoder_layers": 3},
        "machine": {"cpu": "AMD EPYC 7B13", "processors": 2, "threads": 1, "compiler": "gcc 12.2.0",
                    "commit": digest("commit")[:40]},
        "files": {"winner": "search/winner.toml", "report": "search/report.html", "journal": "search/journal.jsonl"}}


def without_new(result):
    """The document as version 0.1.0 wrote it."""
    old = copy.deepcopy(result)
    for key in ("race", "noise", "top_group"):
        del old[key]
    for part in ("settings", "answer", "machine", "model"):
        for key in NEW[part]:
            del old[part][key]
    for placement in old["placements"]:
        for key in NEW["placement"]:
            placement.pop(key, None)
        for key in NEW["quality"]:
            placement.get("quality", {}).pop(key, None)
    return old


if __name__ == "__main__":
    print(json.dumps(document(), indent=1))
