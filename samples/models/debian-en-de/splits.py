"""Training, dev and test by document, with no near-copy of what is held out in training."""
import collections
import hashlib
import random

from clean import key, words

MOST_OF_A_DOCUMENT = 10  # sentences of one document in dev or test
SHORTEST, LONGEST = 4, 60  # words of a sentence of dev and test
NEAR = 0.6  # of a held-out sentence's words in one run: what has so much of it is a near-copy
RUN = 4  # words; shorter runs in common say nothing


def deduplicated(pairs):
    """One pair for every source, with its most frequent target (the first of equals), where it stood first; pairs are (document, source,
    target)."""
    targets, place = collections.defaultdict(collections.Counter), {}
    for number, (_, source, target) in enumerate(pairs):
        targets[key(source)][target] += 1
        place.setdefault(key(source), number)
    kept = []
    for number, (document, source, _) in enumerate(pairs):
        if place[key(source)] == number:
            kept.append((document, source, targets[key(source)].most_common(1)[0][0]))
    return kept


def shares(documents, eligible, seed, parts):
    """{document: part}: parts = {"test": 0.05, ...} of the eligible documents by a hash of name and seed, the others "train"."""
    placed = {}
    for document in documents:
        at = int.from_bytes(hashlib.sha256(f"{seed}:{document}".encode()).digest()[:8], "big") / 2**64
        placed[document] = "train"
        for part, share in parts.items():
            if at < share and eligible(document):
                placed[document] = part
                break
            at -= share
    return placed


def sample(pairs, count, seed):
    """count sentences of (document, source, target), at most MOST_OF_A_DOCUMENT of a document, in the order given."""
    of, chosen = collections.Counter(), []
    for number in random.Random(seed).sample(range(len(pairs)), len(pairs)):
        document, source, _ = pairs[number]
        if len(chosen) < count and of[document] < MOST_OF_A_DOCUMENT and SHORTEST <= len(words(source)) <= LONGEST:
            of[document] += 1
            chosen.append(number)
    return [pairs[number] for number in sorted(chosen)]


class Runs:
    """The longest run of words that texts have in common with held-out sentences."""

    def __init__(self, held_out):
        """held_out: sentences; those of fewer than RUN words are compared as wholes."""
        self.held = [tuple(words(text.casefold())) for text in held_out]
        self.whole = set(self.held)
        self.of = collections.defaultdict(list)  # the first RUN words of a run to (sentence, place)
        for number, sentence in enumerate(self.held):
            for place in range(len(sentence) - RUN + 1):
                self.of[sentence[place:place + RUN]].append((number, place))
        self.longest = [0] * len(self.held)

    def common(self, text):
        """{held-out sentence: words of the longest run that text shares with it}, of runs of RUN words and more."""
        found, said = {}, tuple(words(text.casefold()))
        for begin in range(len(said) - RUN + 1):
            for number, place in self.of.get(said[begin:begin + RUN], ()):
                sentence, length = self.held[number], RUN
                if begin and place and said[begin - 1] == sentence[place - 1]:
                    continue  # a part of the run that began one word earlier
                while begin + length < len(said) and place + length < len(sentence) and said[begin + length] == sentence[place + length]:
                    length += 1
                found[number] = max(found.get(number, 0), length)
        return found

    def near(self, text):
        """Is text a near-copy of a held-out sentence?  If not, what it shares is noted in longest."""
        if tuple(words(text.casefold())) in self.whole:
            return True
        found = self.common(text)
        if any(length >= NEAR * len(self.held[number]) for number, length in found.items()):
            return True
        for number, length in found.items():
            self.longest[number] = max(self.longest[number], length)
        return False

    def histogram(self):
        """{share of the sentence, in steps of a tenth: how many sentences}, of longest."""
        counted = collections.Counter(int(10 * length / len(sentence)) / 10 for length, sentence in zip(self.longest, self.held) if sentence)
        return {f"{share:.1f}": counted[share] for share in sorted(counted)}


def without_near_copies(pairs, held_out):
    """(training pairs without those whose source or target is a near-copy of a held-out one, the Runs of sources and of targets)"""
    sides = [Runs([source for _, source, _ in held_out]), Runs([target for _, _, target in held_out])]
    return [pair for pair in pairs if not sides[0].near(pair[1]) and not sides[1].near(pair[2])], sides
