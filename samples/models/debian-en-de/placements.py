"""BLEU and chrF, or perplexity, of placements of a supernet beside its softmax: python placements.py ATTNKIT MANIFEST TSV.

Each mechanism of the search space in one role alone, in all of them, and what --more names; --all: every placement of the space. Differences are
paired: all placements translate the same sentences, and every sample draws the same ones.
"""
import argparse
import contextlib
import itertools
import pathlib
import re
import tempfile
import tomllib

import numpy as np
from digests import hashes
from evaluate import SAMPLES, Journal, interval, resampled, surprises, translations
from sacrebleu.metrics import BLEU, CHRF

ROLES = ("encoder.self", "decoder.self", "decoder.cross")
PLAIN = 'default = "softmax"\n'


def three(text):
    """ENCODER/SELF/CROSS of a command line, as it is."""
    if len(text.split("/")) != 3 or not all(text.split("/")):
        raise argparse.ArgumentTypeError(f"{text}: give three mechanisms, ENCODER/SELF/CROSS")
    return text


def placements(space, more, only):
    """By role: all softmax, then, if not only those asked for, one role at a time and all roles, then those asked for; without `more`, every one."""
    yield {}
    if more is None:
        yield from (dict(zip(ROLES, names)) for names in itertools.product(*(space[role] for role in ROLES)) if set(names) != {"softmax"})
        return
    mechanisms = [] if only else [m for m in space[ROLES[0]] if m != "softmax"]
    for role in ROLES:
        yield from ({role: m} for m in mechanisms)
    yield from ({role: m for role in ROLES} for m in mechanisms)
    for text in more:
        yield dict(zip(ROLES, text.split("/")))


@contextlib.contextmanager
def placed(manifest, text, placement):
    """A manifest with this placement, beside the given one; several may be there at once."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=manifest.parent, prefix=f"{manifest.stem}.placed.", suffix=".toml") as file:
        file.write(text.replace(PLAIN, PLAIN + "".join(f'"{role}" = "{m}"\n' for role, m in placement.items())))
        file.flush()
        yield pathlib.Path(file.name)


class Perplexity:
    """exp of the mean surprise of a reference's token; beside softmax their ratio."""
    heading = "perplexity (95 %) | by softmax's (95 %)"

    def __init__(self, options, sources, references):
        self.options, self.data, self.base = options, (sources, references), None
        self.drawn = np.random.default_rng(options.seed).integers(0, len(sources), (SAMPLES, len(sources)))
        self.journal = Journal(options.journal)

    def cells(self, manifest):
        known = np.array(self.journal.value(surprises, self.options.attnkit, manifest, *self.data))
        sums = known[self.drawn].sum(1)
        means, mean = sums[:, 0] / sums[:, 1], known[:, 0].sum() / known[:, 1].sum()
        first, self.base = self.base is None, self.base or (mean, means)
        low, high = interval(np.exp(means))
        cells = [f"{np.exp(mean):.3f} ({low:.2f} to {high:.2f})"]
        low, high = interval(np.exp(means - self.base[1]))
        return [*cells, "" if first else f"{np.exp(mean - self.base[0]):.4f} ({low:.4f} to {high:.4f})"]


class Scores:
    """BLEU and chrF of translations; beside softmax their differences."""
    heading = "BLEU (95 %) | to softmax (95 %) | chrF | to softmax (95 %)"

    def __init__(self, options, sources, references):
        self.options, self.sources, self.references, self.base, self.journal = options, sources, references, {}, Journal(options.journal)

    def cells(self, manifest):
        made = self.journal.value(translations, self.options.attnkit, manifest, self.sources, 1)
        cells = []
        for metric in (BLEU(), CHRF()):
            score, scores = resampled(metric, made, self.references, self.options.seed)
            first = score.name not in self.base
            whole, sampled = self.base.setdefault(score.name, (score.score, scores))
            low, high = interval(scores)
            cells.append(f"{score.score:.2f} ({low:.1f} to {high:.1f})" if score.name == "BLEU" else f"{score.score:.2f}")
            low, high = interval(scores - sampled)
            cells.append("" if first else f"{score.score - whole:+.2f} ({low:+.2f} to {high:+.2f})")
        return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("manifest", type=pathlib.Path, help="with softmax as the default of [attention]")
    parser.add_argument("data", type=pathlib.Path, help="lines of source TAB reference")
    parser.add_argument("--lines", type=int, help="only so many, from the file's beginning")
    parser.add_argument("--more", type=three, action="append", default=[], metavar="ENCODER/SELF/CROSS", help="another placement")
    parser.add_argument("--all", action="store_true", help="every placement of the search space")
    parser.add_argument("--only", action="store_true", help="softmax and --more, no others")
    parser.add_argument("--seed", type=int, default=1, help="of the samples (%(default)s)")
    parser.add_argument("--journal", type=pathlib.Path, help="what was made already, and where new ones go")
    parser.add_argument("--perplexity", action="store_true", help="in place of BLEU and chrF")
    options = parser.parse_args()
    rows = [line.split("\t") for line in options.data.read_text(encoding="utf-8").splitlines()][:options.lines]
    # The roles' own lines make place for those of each placement.
    text = re.sub(r'(?m)^"(encoder|decoder)\.(self|cross)" = ".*\n', "", options.manifest.read_text(encoding="utf-8"))
    if PLAIN not in text:
        parser.error(f"{options.manifest}: [attention] must say {PLAIN.strip()}")
    measure = (Perplexity if options.perplexity else Scores)(options, *map(list, zip(*rows)))
    hashes(options.manifest, options.data)
    print(f"{len(rows)} lines\n\n| encoder.self | decoder.self | decoder.cross | {measure.heading} |\n|{'---|' * (4 + measure.heading.count('|'))}")
    for placement in placements(tomllib.loads(text)["search"]["space"], None if options.all else options.more, options.only):
        name = "/".join(placement.get(role, "softmax") for role in ROLES)
        with placed(options.manifest, text, placement) as manifest:
            print(f"| {name.replace('/', ' | ')} | {' | '.join(measure.cells(manifest))} |", flush=True)


if __name__ == "__main__":
    main()
