"""Readers of the formats in which packages bring English and German: each yields (document, English, German), raw, in the document's order."""
import collections
import gzip
import html.parser
import math
import re
import struct
import xml.etree.ElementTree as ET

PARAGRAPH = re.compile(r"\n\s*\n|<br\s*/?>|</p>")
BAND = 12      # blocks that one language may be ahead, beside the difference in number
MOST = 200_000  # steps of an alignment: what needs more is too large or too different
GAP = 2.5      # what it costs to leave a block without a partner
OTHER_TAG = 3.0


def aligned(english, german):
    """Pairs of texts of two lists of (tag, text) that are translations of each other, by tags and lengths; none if they differ too much."""
    left, right = [tag for tag, _ in english], [tag for tag, _ in german]
    if left == right:
        return [(e, g) for (_, e), (_, g) in zip(english, german)]
    n, m = len(english), len(german)
    if (collections.Counter(left) & collections.Counter(right)).total() < 0.8 * max(n, m):
        return []
    band = abs(n - m) + BAND
    if n * band > MOST:
        return []
    logs = [math.log(1.1 * len(text) + 5) for _, text in english], [math.log(len(text) + 5) for _, text in german]
    best, back = {0: 0.0}, []  # of one row: the cost up to each column; for each row: the step that led to it
    for i in range(n + 1):
        row, steps = {}, {}
        for j in range(max(0, i - band), min(m, i + band) + 1):
            cost, step = (0.0, None) if i == j == 0 else (math.inf, None)
            if i and j and j - 1 in best:
                cost, step = best[j - 1] + 3 * abs(logs[0][i - 1] - logs[1][j - 1]) + (OTHER_TAG if left[i - 1] != right[j - 1] else 0), (1, 1)
            if i and j in best and best[j] + GAP < cost:
                cost, step = best[j] + GAP, (1, 0)
            if j - 1 in row and row[j - 1] + GAP < cost:
                cost, step = row[j - 1] + GAP, (0, 1)
            row[j], steps[j] = cost, step
        best = row
        back.append(steps)
    pairs, i, j = [], n, m
    while i or j:
        down, along = back[i][j]
        i, j = i - down, j - along
        if down and along and left[i] == right[j]:
            pairs.append((english[i][1], german[j][1]))
    return pairs[::-1] if len(pairs) >= 0.7 * max(n, m) else []


# Message catalogues.

def messages(data):
    """{msgid, with its context before "\\x04": msgstr} of the bytes of a .mo file; of plural forms the singular."""
    order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(data[:4])
    if not order:
        return {}
    count, ids, texts = struct.unpack_from(order + "3I", data, 8)
    found = {}
    for number in range(count):
        sides = []
        for table in (ids, texts):
            length, begin = struct.unpack_from(order + "2I", data, table + 8 * number)
            sides.append(data[begin:begin + length].split(b"\0")[0].decode("utf-8", "replace"))
        found[sides[0]] = sides[1]
    return found


def catalogue(name, data):
    """The paragraphs of a .mo file's messages."""
    for message, translation in messages(data).items():
        message = message.rpartition("\x04")[2]
        if not message or "\ufffd" in translation or re.search(r"^ +-|^\s*\S+\t", message, re.M):
            continue
        if re.match(r"[\w :|-]{1,40}\^", message):  # Wesnoth's way to tell equal words apart
            message = message.partition("^")[2]
        left, right = PARAGRAPH.split(message), PARAGRAPH.split(translation)
        if len(left) == len(right):
            for english, german in zip(left, right):
                yield name, english, german


# Descriptions of packages.

def stanzas(text):
    """Paragraphs of "Key: value" with their continuations, as dictionaries."""
    for paragraph in text.split("\n\n"):
        fields, name = {}, None
        for line in paragraph.split("\n"):
            if line.startswith((" ", "\t")):
                fields[name] += "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


def blocks_of_description(text):
    """The short description and the paragraphs and points of the long one."""
    short, *lines = text.split("\n")
    blocks, running = [("short", short)], ""
    for line in [*lines, " ."]:
        point = re.match(r"\s{1,5}[-*+o•]\s+(.*)", line)
        if line == " ." or point or re.match(r" {3,}", line) and not running:
            if running:
                blocks.append(("point" if running[0] == "\0" else "text", running.strip("\0 ")))
            running = "\0" + point[1] if point else ""
        else:
            running += " " + line.strip()
    return blocks


def descriptions(english, german, source_of):
    """source_of: of a binary package its source package, which is the document."""
    originals = {(s["Package"], s["Description-md5"]): s["Description-en"] for s in stanzas(english) if "Description-en" in s}
    for stanza in stanzas(german):
        package = stanza.get("Package")
        original = originals.get((package, stanza.get("Description-md5")))
        if original and "Description-de" in stanza:
            for pair in aligned(blocks_of_description(original), blocks_of_description(stanza["Description-de"])):
                yield source_of.get(package, package), *pair


# HTML.

class _Blocks(html.parser.HTMLParser):
    BLOCK = frozenset("p h1 h2 h3 h4 h5 h6 li dt dd td th caption title div section article body ul ol dl table tr blockquote figcaption".split())
    SKIPPED = frozenset("script style pre code nav head svg tt kbd samp".split()) - {"code", "tt", "kbd", "samp"}

    def __init__(self):
        super().__init__()
        self.blocks, self.tag, self.name, self.text, self.skipped = [], None, None, [], 0

    def _end(self):
        text = " ".join("".join(self.text).split())
        if text and self.tag:
            self.blocks.append((self.tag, self.name, text))
        self.text = []

    def handle_starttag(self, tag, attributes):
        if tag in self.SKIPPED:
            self._end()
            self.skipped += 1
        elif tag in self.BLOCK:
            self._end()
            self.tag, self.name = tag, dict(attributes).get("id")
        elif tag == "br":
            self.text.append(" ")

    def handle_endtag(self, tag):
        if tag in self.SKIPPED:
            self.skipped = max(0, self.skipped - 1)
        elif tag in self.BLOCK:
            self._end()
            self.tag, self.name = tag, None

    def handle_data(self, data):
        if not self.skipped:
            self.text.append(data)


def html_blocks(text):
    """[(tag, id, text)] of a page; what is preformatted is left out."""
    parser = _Blocks()
    parser.feed(text)
    parser.close()
    return parser.blocks


def page(name, english, german):
    """Two pages of one structure."""
    for pair in aligned(*([(tag, text) for tag, _, text in html_blocks(side)] for side in (english, german))):
        yield name, *pair


def page_by_ids(name, english, german):
    """Two pages whose paragraphs have the same ids, as LibreOffice's help has."""
    known = {identity: text for _, identity, text in html_blocks(english) if identity}
    for _, identity, text in html_blocks(german):
        if identity in known:
            yield name, known[identity], text


# XML: Mallard and DocBook.

TEXTS = frozenset("p title desc para simpara term td entry subtitle".split())
LEFT_OUT = frozenset("code screen programlisting synopsis info credit license bookinfo articleinfo legalnotice".split())


def xml_blocks(element):
    """[(tag, text)] of the elements that hold running text and no others that do."""
    tag = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
    if tag in LEFT_OUT and tag != "info":
        return []
    inner = [block for child in element for block in xml_blocks(child)]
    if tag in TEXTS and not inner:
        return [(tag, " ".join("".join(element.itertext()).split()))]
    return inner


def xml_page(name, english, german):
    try:
        sides = [xml_blocks(ET.fromstring(re.sub(r"<!DOCTYPE[^\[>]*(\[.*?\]\s*)?>", "", re.sub(r"&(?!#|amp;|lt;|gt;|quot;|apos;)[\w.-]+;", " ", side), flags=re.S)))
                 for side in (english, german)]
    except ET.ParseError:
        return
    for pair in aligned(*sides):
        yield name, *pair


# Manual pages.

BREAKS = frozenset(".SH .SS .TP .PP .P .LP .IP .HP .RS .RE .TQ .sp .br".split())
FONTS = frozenset(".B .I .BR .BI .IR .IB .RB .RI .SM .SB .UR .MR".split())
ESCAPES = [(re.compile(pattern), by) for pattern, by in (
    (r'\\".*', ""), (r"\\f(?:\(..|\[[^\]]*\]|.)", ""), (r"\\s[-+]?\d", ""), (r"\\\*\([lr]q|\\\([lr]q|\\\(dq", '"'), (r"\\\(aq|\\\(cq|\\\(oq", "'"),
    (r"\\\(em|\\\(en", "–"), (r"\\\(bu", "•"), (r"\\\(co", "©"), (r"\\-", "-"), (r"\\[&|^)/,%:c]", ""), (r"\\[ ~0]", " "), (r"\\e", "\\\\"))]


def _plain(text):
    for pattern, by in ESCAPES:
        text = pattern.sub(by, text)
    return text


def man_blocks(text):
    """[(macro, text)] of a page written with man(7); None of one written with mdoc(7)."""
    if re.search(r"^\.Dd ", text, re.M):
        return None
    blocks, macro, running, literal, term = [], None, [], False, False

    def end():
        if macro and running:
            blocks.append((macro, " ".join(running)))
        running.clear()

    for line in text.replace("\\\n", "").split("\n"):
        name, _, rest = line.partition(" ")
        name = name.rstrip("\t").replace("'", ".", 1) if line[:1] in ".'" else ""
        if name in (".nf", ".EX", ".TS"):
            end()
            literal = True
        elif name in (".fi", ".EE", ".TE"):
            literal = False
        elif literal or line.startswith(('.\\"', "'\\\"")):
            continue
        elif name in BREAKS:
            end()
            macro, term = name, name in (".TP", ".TQ")
            if name in (".SH", ".SS") and rest:
                running.append(_plain(rest).strip('" '))
        elif name in FONTS or not name:
            if line.strip():
                shown = _plain(rest if name else line)
                running.append(_joined(name, shown) if name else shown.strip())
                if term:
                    end()
                    macro, term = ".TP text", False
            else:
                end()
                macro = ".PP"
        if name in (".SH", ".SS") and running:
            end()
            macro = name + " text"
    end()
    return blocks


def _joined(name, rest):
    """.BR a b is "ab", .B a b is "a b"."""
    parts = [quoted.replace('""', '"') if quoted else bare for quoted, bare in re.findall(r'"((?:[^"]|"")*)"|(\S+)', rest)]
    return ("" if len(name) == 3 and name != ".SM" else " ").join(parts)


def manual_page(name, english, german):
    sides = [man_blocks(side) for side in (english, german)]
    if all(sides):
        for pair in aligned(*sides):
            yield name, *pair


def text_of(path):
    """A file's text, unpacked if need be; what is no UTF-8 is read as Latin-1."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
