"""Which pairs of English and German are worth training on, and in what form."""
import html
import re
import unicodedata

LONGEST = 250  # words of a pair
WORD = re.compile(r"\w+")
# The text that programs put in at run time: %s, %1, %(name)s, {0}, $(ARG1), ${name}, $name, %PRODUCTNAME, @1@.
PLACEHOLDER = re.compile(r"%\([^)]*\)[a-z]|%[-+0#]*[\d.*]*(?:l|ll|h|z|j)?[sdiufgxXcpo]\b|%\d+(?:\$\w)?|%[A-Z]{3,}|\{[^{}]{0,40}\}|\$[({][^)}]*[)}]|\$\w+|@\w+@?")
INNER = re.compile(r"\w*[^\W_][_~&][^\W_]\w*")  # of a name, which both sides have, or of a word with the marker of a shortcut
TAG = re.compile(r"<[/!?]?[A-Za-z][^<>]{0,200}>")
QUOTES = str.maketrans({**dict.fromkeys("“”„‟«»″", '"'), **dict.fromkeys("‘’‚‛‹›′`´", "'"), **dict.fromkeys("‐‑", "-"), "—": "–", "…": "...",
                        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", None)})

ENGLISH = frozenset("the of and to is in for this that with are be you it can or not from by an as will your on if which has have when was use at all "
                    "but any no may other then more does than also into its there these they been we only".split())
GERMAN = frozenset("der die das und ist in für mit den von zu des ein eine dem nicht wird auf sie werden einen oder im sind auch als dieses diese kann "
                   "aus bei wenn es an nach zum einer wie zur dieser wurde eines sich über um durch ihre sie können haben hat dass nur vom noch keine".split())
SHARED = ENGLISH & GERMAN

# A full stop that does not end a sentence.
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|Mr|Dr|No|z\.\s?B|d\.\s?h|bzw|usw|u\.\s?a|ggf|evtl|ca|Nr|Abs|vgl|inkl|max|min|Std|St|s|engl|sog|"
                          r"o\.\s?ä|[A-Za-zÄÖÜ]|\d+))\.$")
SENTENCE_END = re.compile(r"[.!?][\"')]*\s+(?=[\"'(]?[A-ZÄÖÜ])")


def clean(text, markup=True):
    """One line of plain text: no tags, no markers of keyboard shortcuts, one form of quotes, dashes and spaces."""
    if markup:
        text = html.unescape(TAG.sub("", text))
    text = unicodedata.normalize("NFC", text).translate(QUOTES)
    text = re.sub(r"(?<!\S)(\W?)[_~&](?=[^\W_])", r"\1", text) if markup else text
    text = re.sub(r"''|``", '"', text)
    return " ".join(text.split())


def words(text):
    return WORD.findall(text)


def key(text):
    """The words that two texts share which differ in case, punctuation and spaces alone."""
    return " ".join(words(text.casefold()))


def refusal(english, german):
    """Why a cleaned pair is left out, in two words; None: it is kept."""
    source, target = words(english), words(german)
    if len(source) < 2 or not target:
        return "too short"
    if max(len(source), len(target)) > LONGEST:
        return "too long"
    if key(english) == key(german):
        return "not translated"
    if TAG.search(english) or TAG.search(german) or "\\" in english + german or "=" * 3 in english:
        return "has markup"
    if sorted(PLACEHOLDER.findall(english)) != sorted(PLACEHOLDER.findall(german)):
        return "other placeholders"
    if sorted(INNER.findall(english)) != sorted(INNER.findall(german)):
        return "shortcut in a word"
    if min(_letters(english), _letters(german)) < 0.65:
        return "few letters"
    if len(english) > 2.2 * len(german) + 12 or len(german) > 2.4 * len(english) + 12:
        return "length ratio"
    if sorted(re.findall(r"\d{2,}", english)) != sorted(re.findall(r"\d{2,}", german)):
        return "other numbers"
    if not _is_german(source, target):
        return "other language"
    return None


def _letters(text):
    return sum(c.isalpha() or c.isspace() for c in text) / len(text)


def _is_german(source, target):
    """Function words say of which language each side is; a short pair may have none."""
    def share(of, which):
        return sum(word.casefold() in which for word in of) / len(of)
    english, german = ENGLISH - SHARED, GERMAN - SHARED
    if share(source, german) > share(source, english) or share(target, english) > share(target, german):
        return False
    if len(target) >= 8 and (not share(target, german) or not share(source, ENGLISH)):
        return False
    common = {word.casefold() for word in source} & {word.casefold() for word in target}
    return len(common) <= 0.7 * len({word.casefold() for word in source})


def sentences(text):
    """The sentences of a paragraph."""
    parts, begin = [], 0
    for end in SENTENCE_END.finditer(text):
        if not ABBREVIATION.search(text[begin:end.start() + 1]):
            parts.append(text[begin:end.end()].strip())
            begin = end.end()
    return [*parts, text[begin:].strip()]


def split_pair(english, german):
    """Sentence by sentence where both sides have as many and each pair stands; else the whole."""
    left, right = sentences(english), sentences(german)
    if len(left) == len(right) > 1 and not any(refusal(*pair) for pair in zip(left, right)):
        return list(zip(left, right))
    return [(english, german)]
