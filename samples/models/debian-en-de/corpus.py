"""Makes the corpus: python corpus.py [--folder FOLDER].  Packages are those of corpus.json, and so must be all files that come out.

corpus.py --record writes corpus.json anew, of the newest versions that the mirror has: for whoever keeps this sample.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import sys

import clean
import packages
import readers
import splits

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path.home() / ".cache/attnkit/debian-en-de"
NEW = "new"  # a folder of that, for a corpus until it is compared with corpus.json
SEED = 20261122
PIECES = 8000
PARTS = {"test": 0.05, "dev": 0.025, "documents": 0.03}
DEV, TEST = 1000, 2000
DOCUMENT = range(512, 2049)  # tokens of a document of documents.tsv
LARGEST = 300  # pairs of a message catalogue that may be held out: it would be most of a set
LICENCE_OF_DESCRIPTIONS = {"English": "that of each package, in its own copyright file",
                           "German": "not clear: derived from the English, and Debian's index of the translations states none"}
JOINED, WIDEST = 0.12, 480  # a share of training again, as runs of neighbouring sentences up to so many words


def english_paths(path):
    """The places at which the English original of a German page may be."""
    text = str(path)
    for german, english in (("/help/de/", "/help/en-US/"), ("/man/de/", "/man/"), ("/help/de/", "/help/C/"), ("/de-DE/", "/en-US/"), ("/de/", "/en/"),
                            (".de.html", ".en.html"), (".de.html", ".html"), ("/de/", "/")):
        if german in text:
            yield text.replace(german, english)
            yield text.replace(german, english).replace(".de.html", ".en.html")


def read_files(roots):
    """(package, document, English, German) of all files of the packages that are in German and have an original."""
    files = {}
    for package, root in roots.items():
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                files.setdefault("/" + str(path.relative_to(root)), (package, path))
    for name in sorted(files):
        package, path = files[name]
        if name.endswith(".mo"):
            if "/de/LC_MESSAGES/" in name:
                for document, *pair in readers.catalogue(path.name, path.read_bytes()):
                    yield package, "mo:" + document, *pair
            continue
        original = next((files[e][1] for e in english_paths(name) if e != name and e in files), None)
        if not original or original.suffix not in (".html", ".page", ".docbook", ".xml", ".gz"):
            continue
        reader = readers.xml_page
        if name.endswith(".html"):
            reader = readers.page_by_ids if "/libreoffice/help/" in name else readers.page
        elif name.endswith(".gz"):
            if "/man/" not in name:
                continue
            reader = readers.manual_page
        for document, *pair in reader(name, readers.text_of(original), readers.text_of(path)):
            yield package, document, *pair


def read_descriptions(apt):
    source_of = {s["Package"]: s.get("Source", s["Package"]).split()[0] for s in readers.stanzas(apt.index("packages")) if "Package" in s}
    for document, *pair in readers.descriptions(apt.index("english"), apt.index("german"), source_of):
        yield "descriptions", "description:" + document, *pair


def cleaned(raw):
    """([(document, English, German)], {package: counts}, reasons)"""
    pairs, of, reasons = [], collections.defaultdict(collections.Counter), collections.Counter()
    for package, document, english, german in raw:
        of[package]["read"] += 1
        english, german = clean.clean(english), clean.clean(german)
        reason = clean.refusal(english, german)
        if reason:
            reasons[reason] += 1
            continue
        for pair in clean.split_pair(english, german):
            if clean.refusal(*pair) is None:
                pairs.append((f"{package} {document}", *pair))
    return pairs, of, reasons


def joined(pairs, share, seed):
    """Runs of neighbouring sentences of one document, about share of all pairs in total, so that long texts are learnt as well."""
    drawn, runs, begin = random.Random(seed), [], 0
    while begin < len(pairs):
        document, most, end, length = pairs[begin][0], drawn.randint(40, WIDEST), begin, 0
        while end < len(pairs) and pairs[end][0] == document and length < most:
            length += len(clean.words(pairs[end][1]))
            end += 1
        if end - begin > 1 and drawn.random() < share and not document.split()[1].startswith("mo:"):
            runs.append((document, " ".join(p[1] for p in pairs[begin:end]), " ".join(p[2] for p in pairs[begin:end])))
        begin = end
    return runs


def pieces(folder, pairs):
    """SentencePiece's model of all training text."""
    import sentencepiece
    text = folder / "pieces.txt"
    text.write_text("".join(f"{source}\n{target}\n" for _, source, target in pairs), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "pieces"), vocab_size=PIECES, model_type="unigram", character_coverage=0.9998, byte_fallback=True,
        normalization_rule_name="identity", max_sentence_length=20000, num_threads=1, hard_vocab_limit=True, minloglevel=1,
        seed_sentencepiece_size=200000)
    text.unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.model"))


def whole_documents(pairs, processor):
    """Documents of as many source tokens as DOCUMENT says, sentences put together in their order."""
    by = collections.defaultdict(list)
    for document, source, target in pairs:
        by[document].append((source, target))
    for document, rows in by.items():
        source, target = (" ".join(side) for side in zip(*rows))
        if len(processor.encode(source)) + 1 in DOCUMENT and len(processor.encode(target)) + 1 < DOCUMENT.stop:
            yield document, source, target


def unchanged(apt, record):
    """{package: its file}, of the record's digests, which are entered where it has none; Changed names all that are not."""
    files, wrong = {}, []
    for entry in record["packages"]:
        try:
            file = files[entry["name"]] = apt.deb(entry["name"], entry["version"])
            found = packages.digest(file.read_bytes())
            if entry.setdefault("sha256", found) != found:
                wrong.append(f"{entry['name']} {entry['version']} has changed: {file} has sha256 {found}, corpus.json {entry['sha256']}")
        except packages.Changed as e:
            wrong.append(str(e))
    for name in packages.INDEXES:
        try:
            found = packages.digest(apt.index(name).encode("utf-8"))
            if record["indexes"].setdefault(name, found) != found:
                wrong.append(f"the mirror's index of {name} has changed: sha256 {found}, corpus.json {record['indexes'][name]}")
        except packages.Changed as e:
            wrong.append(str(e))
    if wrong:
        total = len(record["packages"]) + len(packages.INDEXES)
        raise packages.Changed("\n".join([f"{len(wrong)} of {total} packages and indexes are not those of corpus.json:", *wrong]))
    return files


def make(folder, record):
    """Writes the corpus into the folder's NEW; returns what corpus.json says of it."""
    apt, new = packages.Apt(folder), folder / NEW
    new.mkdir(exist_ok=True)
    listed, made = record["packages"], []
    files = unchanged(apt, record)
    roots = {name: packages.unpacked(file, folder / "unpacked") for name, file in files.items()}
    for entry in listed:
        entry["licence"] = packages.licences(roots[entry["name"]], entry["name"]) or entry.get("licence", [])
    pairs, counts, reasons = cleaned([*read_descriptions(apt), *read_files(roots)])
    print(f"{sum(c['read'] for c in counts.values())} pairs read, {len(pairs)} clean; left out: {dict(reasons.most_common())}")
    read, pairs = pairs, splits.deduplicated(pairs)
    sizes = collections.Counter(document for document, _, _ in pairs)
    placed = splits.shares(sizes, lambda d: sizes[d] <= LARGEST or " mo:" not in d, SEED, PARTS)
    part = {name: [pair for pair in pairs if placed[pair[0]] == name] for name in ("train", *PARTS)}
    held = {"dev": splits.sample(part["dev"], DEV, SEED), "test": splits.sample(part["test"], TEST, SEED)}
    part["documents"] = [pair for pair in read if placed.get(pair[0]) == "documents"]  # whole, with what other documents say as well
    train, runs = splits.without_near_copies(part["train"], [*held["dev"], *held["test"], *part["documents"]])
    for document, *_ in train:
        counts[document.split()[0]]["training"] += 1
    for name, kept in held.items():
        for document, *_ in kept:
            counts[document.split()[0]][name] += 1
    processor = pieces(new, train)
    held["documents"] = list(whole_documents(part["documents"], processor))
    long = joined(train, JOINED, SEED)
    for name, rows in {"train": [*train, *long], **held}.items():
        data = "".join(f"{source}\t{target}\n" for _, source, target in rows).encode("utf-8")
        (new / f"{name}.tsv").write_bytes(data)
        made.append({"name": f"{name}.tsv", "lines": len(rows), "sha256": packages.digest(data)})
    # Not pieces.model, in which SentencePiece writes the folder's name.
    made.append({"name": "pieces.vocab", "sha256": packages.digest((new / "pieces.vocab").read_bytes())})
    (new / "test.documents").write_text("".join(f"{d}\n" for d, *_ in held["test"]), encoding="utf-8")
    for entry in listed:
        entry["pairs"] = dict(counts[entry["name"]])
    return {"packages": listed, "indexes": record["indexes"], "descriptions": {"licence": LICENCE_OF_DESCRIPTIONS, **counts["descriptions"]},
            "files": made, "pairs": len(train), "runs": len(long),
            "longest common run, share of the held-out sentence": {"English": runs[0].histogram(), "German": runs[1].histogram()}}


def newest(folder, names):
    """The record that --record begins with: the packages of names, {name: licences}, in the versions that the mirror has now."""
    apt = packages.Apt(folder)
    apt.update()
    there = {s["Package"]: s["Version"] for s in readers.stanzas(apt.index("packages")) if "Package" in s}
    if missing := [n for n in names if n not in there]:
        raise packages.Changed(f"the mirror has no package {', '.join(missing)}: take it out of corpus.json")
    return {"packages": [{"name": n, "version": there[n], "licence": licence} for n, licence in names.items()], "indexes": {}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=FOLDER, help="where everything goes (%(default)s)")
    parser.add_argument("--update", action="store_true", help="fetches the mirror's indexes anew")
    parser.add_argument("--record", action="store_true", help="writes corpus.json")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    known = json.loads((HERE / "corpus.json").read_text(encoding="utf-8"))
    try:
        if options.record:
            begun = newest(options.folder, {p["name"]: p.get("licence", []) for p in known["packages"]})
        else:
            begun = json.loads(json.dumps(known))
            if options.update or not any((options.folder / "lists").glob("*Packages*")):
                packages.Apt(options.folder).update()
        result = make(options.folder, begun)
    except packages.Changed as e:
        sys.exit(f"error: {e}")
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    print(json.dumps({key: value for key, value in result.items() if key != "packages"}, indent=1, ensure_ascii=False))
    if options.record:
        (HERE / "corpus.json").write_text(text, encoding="utf-8")
    elif result["files"] != known["files"]:
        sys.exit(f"error: the corpus in {options.folder / NEW} differs from corpus.json's: " + ", ".join(
            f"{m['name']} has sha256 {m['sha256']}" for m in result["files"] if m not in known["files"]))
    for file in (options.folder / NEW).iterdir():
        os.replace(file, options.folder / file.name)


if __name__ == "__main__":
    main()
