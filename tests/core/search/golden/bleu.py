"""Writes bleu.json beside itself: scores and 13a tokens from sacreBLEU.  Needs: pip install sacrebleu==2.6.0"""

import json
import pathlib

import sacrebleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

PINNED = "2.6.0"

# Name: pairs of hypothesis and reference.
CASES = {
    "perfect": [("the cat sat on the mat", "the cat sat on the mat")],
    "none": [("alpha beta gamma delta epsilon", "one two three four five")],
    "one of many": [("the big black dog ran away", "the cat sat on the mat")],
    "short hypothesis": [("two words", "two words")],
    "three tokens of a long reference": [("the cat sat", "the cat sat on the mat all day")],
    "four tokens of a long reference": [("the cat sat on", "the cat sat on the mat all day")],
    "longer than the reference": [("the cat sat on the mat on the mat on the mat", "the cat sat on the mat")],
    "clipped repetitions": [("the the the the the the the", "the cat is on the mat the end")],
    "smoothed twice": [("a b x c d y e f", "a b c d e f g h")],
    "smoothed three times": [("a x b y c z d", "d c b a e f g h")],
    "empty hypothesis": [("", "the cat sat on the mat")],
    "empty reference": [("the cat sat on the mat", "")],
    "both empty": [("", "")],
    "white space alone": [("  \t \n", "the cat sat on the mat")],
    "punctuation": [
        (
            "Hello, world! (It's \"fine\"; isn't it?) [a/b] {c} <d> x=y a+b 50% $5 #1 @me ^ _ ` | ~ * \\ : end.",
            "Hello world! (It's 'fine'; isn't it?) [a/b] {c} <d> x=y a+b 50% $5 #1 @me ^ _ ` | ~ * \\ : end...",
        )
    ],
    "full stops": [("etc... and so on., e.g.,this .5 5. .,. a.b", "etc. and so on. e.g., this .5 5. a.b c d")],
    "numbers": [
        (
            "1,234,567.89 and 3.14 or 10-12, 2024-01-31 and well-known -5 a-1 1-a 7, 8. x,9 9,x 1.,2 1,.2 5.-6",
            "1,234,567.89 and 3.15 or 10-12, 2024-01-30 and well-known -5 a-1 1-a 7, 8. x,9 9,x 1.,2 1,.2 5.-6",
        )
    ],
    "entities": [
        (
            "&quot;A &amp; B&quot; &lt;tag&gt; &amp;lt; &amp;quot; &apos;x&apos; &nbsp;",
            "\"A & B\" <tag> &lt; &quot; 'x' and more",
        )
    ],
    "umlauts": [
        (
            "„Schöne Grüße“, sagte Ä. Müller – für 5 € ärgerlich…",
            "„Schöne Grüße“, sagte Ö. Müller – für 5 € ärgerlich...",
        )
    ],
    "stops beside letters that are not ASCII": [("ä.ö,ü 5.ä ä.5 é-5 5-é 五.五,五 5.五", "ä.ö,ü 5.ä ä.5 é-5 5-é 五.五,五 5.6")],
    "Chinese and Japanese": [("我们 喜欢 这只猫。 很 好,真 的!", "我们 喜欢 那只猫。 很 好,真 的!")],
    "Unicode white space": [
        (
            "one\u00a0two\u3000three\u2003four\u2028five\u0085six\u1680seven\u205feight\u202fnine\x1cten\x1feleven",
            "one two three four five six seven eight nine ten eleven",
        )
    ],
    "marks that are no white space": [("zero\u200bwidth joi\u200dner b\ufeffom so\u00adft", "zero width joi\u200dner b\ufeffom so\u00adft")],
    "skipped": [("<skipped> the cat <skipped>sat on the<skipped> mat", "the cat sat on <skipped> the mat")],
    "newlines": [("the cat\nsat on the hearth-\nrug all day-\n", "the cat sat on the hearthrug all\nday-")],
    "trailing hyphen and white space": [("the cat sat on the mat-\n \u3000\t", "the cat sat on the mat-")],
    "outside the basic plane": [("so good \U0001f600 really \U0001f44d\U0001f3fd!", "so good \U0001f600 really \U0001f44d!")],
    "corpus": [
        ("eine katze sitzt auf der matte .", "eine Katze sitzt auf der Matte."),
        ("Das Haus ist sehr groß.", "Das Haus ist groß."),
        ("Wir haben 1.234,56 Euro bezahlt.", "Wir haben 1.234,56 Euro gezahlt."),
        ("Ja.", "Ja."),
        ("", "Nein."),
        ("Am 3. Mai 2021 um 10:30 Uhr kam er nach Hause.", "Am 3. Mai 2021 kam er um 10:30 Uhr nach Hause."),
    ],
    "corpus of short pairs": [("yes", "yes"), ("no no", "no"), ("a b c", "a b c"), ("x y z", "x y")],
}


def case(name, pairs):
    hypotheses, references = zip(*pairs)
    metric = sacrebleu.BLEU()
    result = metric.corpus_score(list(hypotheses), [list(references)])
    tokenize = Tokenizer13a()
    return {
        "name": name,
        "hypotheses": hypotheses,
        "references": references,
        "tokens": [tokenize(text).split(" ") if tokenize(text) else [] for text in hypotheses + references],
        "matches": result.counts,
        "totals": result.totals,
        "lengths": [result.sys_len, result.ref_len],
        "score": result.score,
    }


def signature():
    metric = sacrebleu.BLEU()
    metric.corpus_score(["a"], [["a"]])
    return metric.get_signature().format()


def main():
    assert sacrebleu.__version__ == PINNED, sacrebleu.__version__
    # A line per case, so that a change of one shows as one.
    cases = ",\n".join(json.dumps(case(name, pairs)) for name, pairs in CASES.items())
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(f'{{"signature": {json.dumps(signature())}, "cases": [\n{cases}\n]}}\n', encoding="ascii")


if __name__ == "__main__":
    main()
