"""The shared vocabulary and its greedy longest-match tokeniser; writes vocab.txt when run."""
from functools import lru_cache
from pathlib import Path

from phrases import MONTHS, english, german

HERE = Path(__file__).resolve().parent
WORD = "\u2581"
PAD, BOS, EOS = 0, 1, 2
SPECIAL = ["<pad>", "<s>", "</s>"]


def _english_words():
    units = [english(n) for n in range(1, 10)]
    words = [english(n) for n in range(21)] + [english(n) for n in range(30, 100, 10)]
    ordinals = ("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
                "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth").split()
    words += ["hundred", "thousand", "million", "and", "oh"] + ordinals + [en for en, _ in MONTHS]
    words += "the of o'clock half quarter past to euro euros cent cents".split()
    return [WORD + w for w in words] + ["-" + w for w in units + ordinals[:9]]


def _german_pieces():
    # "sech" and "sieb" serve sechzehn and siebzehn; sechzig and siebzig are whole like the other tens.
    both = [german(n) for n in range(1, 13)] + ["ein", "sech", "sieb"]
    both += [german(n) for n in range(20, 100, 10)]
    initial = ["null", "eine", "erste", "dritte", "Million", "Millionen", "der", "Uhr", "halb", "Viertel", "vor", "nach",
               "Euro", "Cent", "und"] + [de for _, de in MONTHS]
    return [WORD + w for w in both + initial] + both + ["und", "hundert", "tausend", "te", "ste", "e"]


def build():
    return list(dict.fromkeys(SPECIAL + [WORD + ";"] + _english_words() + _german_pieces()))


def load(path=HERE / "vocab.txt"):
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


class Tokenizer:
    def __init__(self, tokens):
        self.tokens = tokens
        self.ids = {t: i for i, t in enumerate(tokens) if i >= len(SPECIAL)}
        self.longest = max(map(len, tokens))

    def encode(self, text):
        """Ids without <s> and </s>. Word by word: the mark only ever starts a token."""
        return [i for word in text.split() for i in self._word(word)]

    @lru_cache(maxsize=None)
    def _word(self, word):
        text, ids, at = WORD + word, [], 0
        while at < len(text):
            for end in range(min(len(text), at + self.longest), at, -1):
                if text[at:end] in self.ids:
                    ids.append(self.ids[text[at:end]])
                    at = end
                    break
            else:
                raise ValueError(f"no token matches {text[at:]!r} in {word!r}")
        return ids

    def decode(self, ids):
        return "".join(self.tokens[i] for i in ids if i >= len(SPECIAL)).replace(WORD, " ").strip()


if __name__ == "__main__":
    (HERE / "vocab.txt").write_text("\n".join(build()) + "\n", encoding="utf-8")
