"""BLEU and chrF of placements of a supernet beside its softmax: python placements.py ATTNKIT MANIFEST TSV.

Each mechanism of the search space in one role alone, in all of them, and what --more names. Differences are paired: all placements translate
the same sentences, and every sample draws the same ones.
"""
import argparse
import json
import pathlib
import re
import tomllib

from evaluate import interval, resampled, translations
from sacrebleu.metrics import BLEU, CHRF

ROLES = ("encoder.self", "decoder.self", "decoder.cross")


def placements(space, more):
    """By role: all softmax, then one role at a time, then all roles, then those asked for."""
    yield {}
    mechanisms = [m for m in space[ROLES[0]] if m != "softmax"]
    for role in ROLES:
        yield from ({role: m} for m in mechanisms)
    yield from ({role: m for role in ROLES} for m in mechanisms)
    for text in more:
        yield dict(zip(ROLES, text.split("/")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attnkit", help="the command")
    parser.add_argument("manifest", type=pathlib.Path, help="with softmax as the default of [attention]")
    parser.add_argument("data", type=pathlib.Path, help="lines of source TAB reference")
    parser.add_argument("--lines", type=int, help="only so many, from the file's beginning")
    parser.add_argument("--more", action="append", default=[], metavar="ENCODER/SELF/CROSS", help="another placement")
    parser.add_argument("--seed", type=int, default=1, help="of the samples (%(default)s)")
    parser.add_argument("--journal", type=pathlib.Path, help="translations that are there already, and where new ones go: JSON, a line each")
    options = parser.parse_args()
    rows = [line.split("\t") for line in options.data.read_text(encoding="utf-8").splitlines()][:options.lines]
    sources, references = map(list, zip(*rows))
    # The roles' own lines make place for those of each placement.
    text, known = re.sub(r'(?m)^"(encoder|decoder)\.(self|cross)" = ".*\n', "", options.manifest.read_text(encoding="utf-8")), {}
    if options.journal and options.journal.exists():
        known = dict(map(json.loads, options.journal.read_text(encoding="utf-8").splitlines()))
    plain = 'default = "softmax"\n'
    if plain not in text:
        parser.error(f"{options.manifest}: [attention] must say {plain.strip()}")
    print(f"{len(rows)} lines\n\n| encoder.self | decoder.self | decoder.cross | BLEU (95 %) | to softmax (95 %) | chrF | to softmax (95 %) |\n|---|---|---|---|---|---|---|")
    base = {}
    for placement in placements(tomllib.loads(text)["search"]["space"], options.more):
        name = "/".join(placement.get(role, "softmax") for role in ROLES)
        if name not in known:
            placed = options.manifest.with_name(f"{options.manifest.stem}.placed.toml")
            placed.write_text(text.replace(plain, plain + "".join(f'"{role}" = "{m}"\n' for role, m in placement.items())), encoding="utf-8")
            known[name] = translations(options.attnkit, placed, sources, 1)
            placed.unlink()
            if options.journal:
                with open(options.journal, "a", encoding="utf-8") as journal:
                    journal.write(json.dumps([name, known[name]], ensure_ascii=False) + "\n")
        cells = []
        for metric in (BLEU(), CHRF()):
            score, scores = resampled(metric, known[name], references, options.seed)
            whole, sampled = base.setdefault(score.name, (score.score, scores))
            low, high = interval(scores)
            cells.append(f"{score.score:.2f} ({low:.1f} to {high:.1f})" if score.name == "BLEU" else f"{score.score:.2f}")
            low, high = interval(scores - sampled)
            cells.append(f"{score.score - whole:+.2f} ({low:+.2f} to {high:+.2f})" if placement else "")
        print(f"| {name.replace('/', ' | ')} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
