"""Placements trained by themselves beside the same placements of the shared weights: python alone.py ATTNKIT RUN TSV ENCODER/SELF/CROSS ...

RUN is train.sh's OUT.  BLEU, chrF and perplexity of both, their paired differences, and Kendall's tau between the two orders of three placements or
more, each with 95 % percentiles over resampled sentences, the same samples everywhere: of what RUN/alone and RUN/longer have.  What RUN/distilled has is
compared with both; of what RUN/longer and RUN/scratch have, the latter from random weights, the placements are compared with the first one, and so are
those of the shared weights.  What RUN/converted and RUN/taught have, which began with the weights of softmax in RUN/scratch, is compared with it.
"""
import argparse
import itertools
import pathlib
import re

import numpy as np
from digests import hashes
from evaluate import SAMPLES, Journal, interval, resampled, surprises, translations
from placements import ROLES, placed, three
from sacrebleu.metrics import BLEU, CHRF

MODEL = pathlib.Path(__file__).resolve().parent / "model.toml"
DIGITS = {"BLEU": 2, "chrF": 2, "perplexity": 3}
METRICS = tuple(DIGITS)
SOFTMAX = "softmax/softmax/softmax"
KINDS = ("alone", "longer", "distilled", "scratch", "converted", "taught")  # folders of train.sh


def tau(one, other):
    """Kendall's, of two lists of values; a pair that is tied in either counts for neither side."""
    pairs = list(itertools.combinations(range(len(one)), 2))
    return sum(order(one[a], one[b]) * order(other[a], other[b]) for a, b in pairs) / len(pairs)


def order(a, b):
    return int(a > b) - int(a < b)


def measured(attnkit, manifest, sources, references, translated):
    return {"surprises": surprises(attnkit, manifest, sources, references), "output": translations(attnkit, manifest, sources[:translated], 1)}


def scores(of, references, seed):
    """{metric: (value, that of each sample)}"""
    known = np.array(of["surprises"])
    sums = known[np.random.default_rng(seed).integers(0, len(known), (SAMPLES, len(known)))].sum(1)
    made = {"perplexity": (np.exp(known[:, 0].sum() / known[:, 1].sum()), np.exp(sums[:, 0] / sums[:, 1]))}
    for name, metric in (("BLEU", BLEU()), ("chrF", CHRF())):
        score, sampled = resampled(metric, of["output"], references[:len(of["output"])], seed)
        made[name] = score.score, sampled
    return made


def difference(one, other, digits):
    low, high = interval(one[1] - other[1])
    return f"{one[0] - other[0]:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def compared(first, second, heading):
    names = [name for name in second if name in first]
    if not names:
        return
    print(f"\n| placement | {heading} |\n|{'---|' * (1 + 3 * len(METRICS))}")
    for name in names:
        cells = (f"{first[name][m][0]:.{DIGITS[m]}f} | {second[name][m][0]:.{DIGITS[m]}f} | "
                 f"{difference(second[name][m], first[name][m], DIGITS[m])}" for m in METRICS)
        print(f"| {name} | {' | '.join(cells)} |")


def beside_first(values, names, heading):
    """Each placement beside the first one: BLEU and chrF by differences, perplexity by its ratio."""
    first = values[names[0]]
    print(f"\n| placement | {' | '.join(f'{m}, {heading} | to the first (95 %)' for m in METRICS)} |\n|{'---|' * (1 + 2 * len(METRICS))}")
    for name in names:
        cells = []
        for m in METRICS:
            of = values[name][m]
            if m == "perplexity":
                low, high = interval(of[1] / first[m][1])
                beside = f"{of[0] / first[m][0]:.3f} ({low:.3f} to {high:.3f})"
            else:
                beside = difference(of, first[m], DIGITS[m])
            cells.append(f"{of[0]:.{DIGITS[m]}f} | {beside if name != names[0] else ''}")
        print(f"| {name} | {' | '.join(cells)} |")


def orders(one, other, names):
    """Kendall's tau of two orders of three placements or more, by each metric."""
    if len(names) < 3:
        return
    print(f"\n| Kendall's tau of {len(names)} placements | value (95 %) |\n|---|---|")
    for metric in METRICS:
        both = [[values[name][metric] for name in names] for values in (one, other)]
        sampled = [tau(*([v[1][sample] for v in values] for values in both)) for sample in range(SAMPLES)]
        low, high = interval(sampled)
        print(f"| {metric} | {tau(*([v[0] for v in values] for values in both)):.2f} ({low:.2f} to {high:.2f}) |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("run", type=pathlib.Path, help="what train.sh wrote")
    parser.add_argument("data", type=pathlib.Path, help="lines of source TAB reference")
    parser.add_argument("placements", type=three, nargs="+", metavar="ENCODER/SELF/CROSS")
    parser.add_argument("--lines", type=int, help="only so many, from the file's beginning")
    parser.add_argument("--translated", type=int, help="only so many of these are translated, for BLEU and chrF; all of them are for perplexity")
    parser.add_argument("--seed", type=int, default=1, help="of the samples (%(default)s)")
    parser.add_argument("--journal", type=pathlib.Path, help="what is there already, and where new outputs go")
    options = parser.parse_args()
    rows = [line.split("\t") for line in options.data.read_text(encoding="utf-8").splitlines()][:options.lines]
    sources, references = map(list, zip(*rows))
    journal = Journal(options.journal)

    def of(manifest):
        return scores(journal.value(measured, options.attnkit, manifest, sources, references, options.translated), references, options.seed)

    text = re.sub(r'(?m)^"(encoder|decoder)\.(self|cross)" = ".*\n', "", MODEL.read_text(encoding="utf-8"))
    shared, trained, found = {}, {kind: {} for kind in KINDS}, []
    for name in options.placements:
        with placed(MODEL, text, dict(zip(ROLES, name.split("/")))) as manifest:
            shared[name] = of(manifest)
        for kind in KINDS:
            manifest = options.run / kind / name.replace("/", "-") / "model/model.toml"
            if manifest.exists():
                trained[kind][name] = of(manifest)
                found.append(manifest)
    hashes(MODEL, *found, options.data)
    print(f"{len(rows)} lines, {len(sources[:options.translated])} of them translated")
    pairs = [(shared, "shared", "alone"), (shared, "shared", "longer"), (shared, "shared", "distilled"), (trained["alone"], "alone", "distilled")]
    for values, name, kind in pairs:
        compared(values, trained[kind], " | ".join(f"{m}, {name} | {kind} | difference (95 %)" for m in METRICS))
    orders(shared, trained["alone"], list(trained["alone"]))
    for kind in ("longer", "scratch"):
        names = list(trained[kind])
        for values, heading in ((trained[kind], kind), (shared, "shared")) if names else ():
            beside_first(values, names, heading)
        orders(shared, trained[kind], names)
    for kind in ("converted", "taught"):
        if trained[kind] and SOFTMAX in trained["scratch"]:
            beside_first({SOFTMAX: trained["scratch"][SOFTMAX], **trained[kind]}, [SOFTMAX, *trained[kind]], kind)


if __name__ == "__main__":
    main()
