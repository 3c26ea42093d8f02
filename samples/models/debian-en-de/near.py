"""Sentences of test.tsv that training has in almost the same words: python near.py FOLDER, which corpus.py made.

Two texts are alike by twice the words that they share in one order, of the words of both: splits.py compares runs, which one
other word in the middle of a sentence ends.
"""
import argparse
import collections
import math
import pathlib

from clean import words
from digests import hashes

LEAST = 0.8


def alike(a, b):
    """2 x longest common subsequence / words of both."""
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for place, other in enumerate(b, 1):
            before, row[place] = row[place], before + 1 if word == other else max(row[place], row[place - 1])
    return 2 * row[-1] / (len(a) + len(b))


def numbered(sentence):
    """Its words with how often each came before, so that a set of them counts all."""
    seen = collections.Counter()
    for word in sentence:
        yield word, seen[word]
        seen[word] += 1


def nearest(held_out, training):
    """Of each held-out text how alike the nearest training text is, 0 where none is LEAST."""
    held, trained = ([tuple(words(text.casefold())) for text in texts] for texts in (held_out, dict.fromkeys(training)))
    known = [set(numbered(text)) for text in trained]
    common = collections.Counter(word for text in known for word in text)
    of = collections.defaultdict(list)
    for number, text in enumerate(held):
        # A text that is so much alike has at least this share of these words, so one of as many of the rarest.
        missing = len(text) - math.ceil(LEAST / (2 - LEAST) * len(text) - 1e-9)
        for word in sorted(numbered(text), key=lambda word: (common[word], word))[:missing + 1]:
            of[word].append(number)
    best, own = [0.0] * len(held), [set(numbered(text)) for text in held]
    for text, members in zip(trained, known):
        for number in sorted({number for word in members if word in of for number in of[word]}):
            whole = len(text) + len(held[number])
            if 2 * len(members & own[number]) / whole >= max(LEAST, best[number]):
                like = alike(held[number], text)
                best[number] = max(best[number], like if like >= LEAST else 0)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="with train.tsv and test.tsv")
    parser.add_argument("--out", type=pathlib.Path, help="writes the lines of test.tsv here that are not among them")
    options = parser.parse_args()
    files = [options.folder / f"{name}.tsv" for name in ("train", "test")]
    train, test = ([line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()] for file in files)
    hashes(*files)
    sides = [nearest(*([pair[side] for pair in pairs] for pairs in (test, train))) for side in (0, 1)]
    for least in (0.9, LEAST):
        counts = [sum(like >= least for like in side) for side in (*sides, list(map(max, *sides)))]
        print(f"{least:.1f} alike, of {len(test)}: {counts[0]} by the source, {counts[1]} by the target, {counts[2]} by either")
    if options.out:
        options.out.write_text("".join("\t".join(pair) + "\n" for pair, *likes in zip(test, *sides) if not any(likes)), encoding="utf-8")


if __name__ == "__main__":
    main()
