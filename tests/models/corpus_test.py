"""The corpus of debian-en-de: reading, cleaning and splitting of made-up files, and what is refused.  corpus_test.py SOURCE."""
import contextlib
import io
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

SAMPLE = pathlib.Path(sys.argv.pop(1)) / "samples/models/debian-en-de"
sys.path.insert(0, str(SAMPLE))

import clean  # noqa: E402
import corpus  # noqa: E402
import near  # noqa: E402
import packages  # noqa: E402
import readers  # noqa: E402
import splits  # noqa: E402


def mo(messages):
    """The bytes of a catalogue."""
    sides = [[text.encode("utf-8") for text in side] for side in zip(*sorted(messages.items()))]
    at, tables, data = 28 + 16 * len(messages), b"", b""
    for side in sides:
        for text in side:
            tables += struct.pack("<2I", len(text), at + len(data))
            data += text + b"\0"
    return struct.pack("<7I", 0x950412de, 0, len(messages), 28, 28 + 8 * len(messages), 0, 0) + tables + data


class Cleaning(unittest.TestCase):
    def test_markup_and_marks_go(self):
        self.assertEqual(clean.clean("Click <b>_Save</b> &amp; go…\n now"), "Click Save & go... now")
        self.assertEqual(clean.clean("„Datei“ ~Öffnen – jetzt"), '"Datei" Öffnen – jetzt')
        self.assertEqual(clean.clean("the file my_file_name"), "the file my_file_name")

    def test_what_is_refused(self):
        good = "Opens the selected file in the editor.", "Öffnet die ausgewählte Datei im Editor."
        self.assertIsNone(clean.refusal(*good))
        for english, german, why in (
                ("File", "Datei", "too short"),
                ("Open the file", "Open the file!", "not translated"),
                (good[0], "Opens the selected files in the editor.", "other language"),
                (good[1], good[0], "other language"),
                (good[0], "Datei", "length ratio"),
                ("Removes %d files from the list.", "Entfernt Dateien aus der Liste.", "other placeholders"),
                ("Removes 25 files from the list.", "Entfernt 52 Dateien aus der Liste.", "other numbers"),
                ("Export only the notes", "Nu_r Notizen exportieren", "shortcut in a word"),
                ("-- 1 -- 2 -- a", "-- 1 -- 2 -- b", "few letters"),
                ("word " * 300, "Wort " * 300, "too long")):
            self.assertEqual(clean.refusal(english, german), why, english)

    def test_sentences_in_pairs(self):
        self.assertEqual(clean.sentences("Use e.g. Vim. It is there, i.e. installed. Done?"), ["Use e.g. Vim.", "It is there, i.e. installed.", "Done?"])
        pair = "This is the first. And this is the second.", "Dies ist der erste. Und dies ist der zweite."
        self.assertEqual(clean.split_pair(*pair), [("This is the first.", "Dies ist der erste."), ("And this is the second.", "Und dies ist der zweite.")])
        whole = pair[0], "Dies ist der erste und dies ist der zweite."
        self.assertEqual(clean.split_pair(*whole), [whole])


class Reading(unittest.TestCase):
    def test_a_catalogue(self):
        data = mo({"": "Content-Type: text/plain; charset=UTF-8\n", "menu\x04Open it": "Öffne es", "a file\0files": "eine Datei\0Dateien",
                   "wrong": "wr\ufffdng", "One\n\nTwo": "Eins\n\nZwei", "One more\n\nTwo": "Eins"})
        self.assertEqual(sorted(readers.catalogue("x.mo", data)),
                         [("x.mo", "One", "Eins"), ("x.mo", "Open it", "Öffne es"), ("x.mo", "Two", "Zwei"), ("x.mo", "a file", "eine Datei")])
        self.assertEqual(list(readers.catalogue("x.mo", b"no catalogue")), [])

    def test_descriptions_of_one_version(self):
        english = "Package: cat\nDescription-md5: 1\nDescription-en: a cat\n Feeds it.\n .\n  * with fish\n  * with meat"
        german = "Package: cat\nDescription-md5: {}\nDescription-de: eine Katze\n Füttert sie.\n .\n  * mit Fisch\n  * mit Fleisch"
        pairs = [("pets", "a cat", "eine Katze"), ("pets", "Feeds it.", "Füttert sie."), ("pets", "with fish", "mit Fisch"), ("pets", "with meat", "mit Fleisch")]
        self.assertEqual(list(readers.descriptions(english, german.format(1), {"cat": "pets"})), pairs)
        self.assertEqual(list(readers.descriptions(english, german.format(2), {"cat": "pets"})), [])

    def test_pages_by_ids_and_by_structure(self):
        english = '<h1 id="a">Top</h1><pre>x</pre><p id="b">One <b>two</b></p><p id="c">Alone</p>'
        german = '<p id="b">Eins <b>zwei</b></p><h1 id="a">Oben</h1>'
        self.assertEqual(list(readers.page_by_ids("x", english, german)), [("x", "One two", "Eins zwei"), ("x", "Top", "Oben")])
        self.assertEqual(list(readers.page("x", "<h1>Top</h1><p>One</p>", "<h1>Oben</h1><p>Eins</p>")), [("x", "Top", "Oben"), ("x", "One", "Eins")])

    def test_xml(self):
        english, german = (f"<page><title>{t}</title><p>{p} <em>x</em>&nbsp;</p><code>ls</code></page>" for t, p in (("Top", "One"), ("Oben", "Eins")))
        self.assertEqual(list(readers.xml_page("x", english, german)), [("x", "Top", "Oben"), ("x", "One x", "Eins x")])
        self.assertEqual(list(readers.xml_page("x", english, "<page>")), [])

    def test_manual_pages(self):
        page = '.TH LS 1\n.SH {}\n.TP\n\\fB\\-a\\fR\n{}\n.B all\nfiles\n.nf\nls -a\n.fi\n'
        self.assertEqual(list(readers.manual_page("x", page.format("NAME", "show"), page.format("BEZEICHNUNG", "zeigt"))),
                         [("x", "NAME", "BEZEICHNUNG"), ("x", "-a", "-a"), ("x", "show all files", "zeigt all files")])
        self.assertEqual(list(readers.manual_page("x", ".Dd today\n.Sh NAME\n", ".Dd heute\n.Sh NAME\n")), [])

    def test_alignment_leaves_out_what_one_side_lacks(self):
        english = [("p", letter * length) for letter, length in zip("abcdefgh", (10, 80, 25, 60, 12, 90, 33, 70))]
        german = [("p", text.upper()) for _, text in english]
        self.assertEqual(readers.aligned(english, german[:3] + german[4:]),
                         [(e, g) for number, ((_, e), (_, g)) in enumerate(zip(english, german)) if number != 3])
        self.assertEqual(readers.aligned(english, [("h1", text) for _, text in german]), [])
        self.assertEqual(readers.aligned(english, german[:4]), [])


class Splitting(unittest.TestCase):
    def test_one_target_for_a_source(self):
        pairs = [("d", "Open it", "Öffnen"), ("d", "Close", "Zu"), ("e", "open it.", "Öffne es"), ("f", "Open it", "Öffne es")]
        self.assertEqual(splits.deduplicated(pairs), [("d", "Open it", "Öffne es"), ("d", "Close", "Zu")])

    def test_documents_stay_whole_and_where_they_were(self):
        documents = [f"d{n}" for n in range(2000)]
        placed = splits.shares(documents, lambda d: d != "d1", 7, {"test": 0.1, "dev": 0.05})
        self.assertEqual(placed["d1"], "train")
        self.assertAlmostEqual(list(placed.values()).count("test") / 2000, 0.1, delta=0.02)
        self.assertAlmostEqual(list(placed.values()).count("dev") / 2000, 0.05, delta=0.02)
        self.assertEqual({d: placed[d] for d in documents[:100]}, splits.shares(documents[:100], lambda d: d != "d1", 7, {"test": 0.1, "dev": 0.05}))

    def test_a_sample_takes_few_of_a_document(self):
        pairs = [(f"d{n // 50}", f"these are {n} words", "x") for n in range(200)]
        chosen = splits.sample(pairs, 100, 1)
        self.assertEqual(len(chosen), 4 * splits.MOST_OF_A_DOCUMENT)
        self.assertEqual(chosen, splits.sample(pairs, 100, 1))

    def test_near_copies_leave_training(self):
        held = [("t", "press the red button on the left side", "drücken Sie links den roten Knopf an der Seite")]
        train = [("a", "please press the red button on the right", "bitte"),                  # 5 of 8 words
                 ("b", "now press the red button", "jetzt"),                                  # 4 of 8
                 ("c", "another text", "Sie drücken links den roten Knopf an der Seite"),     # 7 of 9 on the other side
                 ("d", "Press the red button, on the left side!", "ganz")]
        kept, runs = splits.without_near_copies(train, held)
        self.assertEqual([document for document, *_ in kept], ["b"])
        self.assertEqual(runs[0].longest, [4])
        self.assertEqual(runs[0].histogram(), {"0.5": 1})

    def test_the_nearest_text_in_training(self):
        held = ["press the red button on the left side", "one two three", "nothing like it"]
        train = ["now press the red button, at the left side!", "One two four", "like nothing"]  # 7 of 8 and 9 words, 2 of 3 and 3
        self.assertEqual([round(like, 3) for like in near.nearest(held, train)], [round(14 / 17, 3), 0, 0])
        drawn = random.Random(1)
        held, train = ([" ".join(drawn.choices("abcd", k=drawn.randint(1, 9))) for _ in range(count)] for count in (60, 300))
        expected = [max(near.alike(a.split(), b.split()) for b in train) for a in held]
        self.assertEqual(near.nearest(held, train), [like if like >= near.LEAST else 0 for like in expected])
        self.assertGreater(len({like for like in expected if like >= near.LEAST}), 3)

    def test_runs_of_neighbours_stay_in_their_document(self):
        pairs = [(f"p d{n // 20}", f"source {n}", f"target {n}") for n in range(200)] + [("p mo:x", "a b", "c d")] * 9
        runs = corpus.joined(pairs, 1.0, 3)
        self.assertEqual(" ".join(r[1] for r in runs), " ".join(p[1] for p in pairs[:200]))
        self.assertEqual([len(r[1].split()) for r in runs], [len(r[2].split()) for r in runs])


class Refusing(unittest.TestCase):
    def test_all_that_changed_is_named_and_counted(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "debs").mkdir()
            for package in ("cat", "dog", "ox"):
                (folder / "debs" / f"{package}_1.0.deb").write_bytes(package.encode())
            digests = {"cat": packages.digest(b"another"), "hen": packages.digest(b"hen"), "dog": packages.digest(b"dog"), "ox": packages.digest(b"oxen")}
            record = {"packages": [{"name": p, "version": "1.0", "sha256": digest} for p, digest in digests.items()], "indexes": {}}
            with self.assertRaises(packages.Changed) as raised:
                corpus.make(folder, record)
            said = str(raised.exception).splitlines()
            # apt has no lists in this folder, so no package but those there, and no index.
            self.assertEqual(said[0], "6 of 7 packages and indexes are not those of corpus.json:")
            self.assertRegex(said[1], "^cat 1.0 has changed: .*" + packages.digest(b"cat"))
            self.assertRegex(said[2], "^hen 1.0 cannot be had from the mirror ")
            self.assertRegex(said[-4], "^ox 1.0 has changed: .*" + packages.digest(b"ox"))
            self.assertEqual([line.split(" files ")[1].split(",")[0] for line in said[-3:]], list(packages.INDEXES.values()))

    def test_a_new_version_of_a_package_is_read(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for version in ("1.0", "2.0"):
                root, file = folder / version, folder / f"cat_{version}.deb"
                (root / "DEBIAN").mkdir(parents=True)
                (root / "DEBIAN").chmod(0o755)  # whatever the umask is
                (root / "DEBIAN/control").write_text(f"Package: cat\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n")
                (root / "text").write_text(version)
                subprocess.run(["dpkg-deb", "-b", root, file], check=True, stdout=subprocess.DEVNULL)
                self.assertEqual((packages.unpacked(file, folder / "unpacked") / "text").read_text(), version)

    def test_a_download_that_was_stopped_goes_on(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "apt-get").write_text('#!/bin/sh\ntest -f "$4" && echo cat >cat_1%3a1.0_all.deb\n')
            (folder / "apt-get").chmod(0o755)
            with unittest.mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), contextlib.chdir(folder):
                apt = packages.Apt(pathlib.Path("."))
                (folder / "debs/cat_1%3a1.0_all.deb").touch()
                self.assertEqual(apt.deb("cat", "1:1.0").read_text(), "cat\n")

    def test_a_corpus_that_differs_replaces_none(self):
        pairs = [("descriptions", f"description:p{n}", f"This is the sentence number {n} of the file and it is long",
                  f"Dies ist der Satz Nummer {n} der Datei und er ist lang") for n in range(10, 60)]

        def pieces(folder, train):
            (folder / "pieces.vocab").write_text("new")
            return unittest.mock.Mock(encode=str.split)

        with tempfile.TemporaryDirectory() as name:
            folder, record = pathlib.Path(name) / "corpus", {"packages": [], "indexes": {}, "files": []}
            (folder / "lists").mkdir(parents=True)
            (folder / "lists/Packages").touch()
            names = {"train.tsv", "dev.tsv", "test.tsv", "documents.tsv", "pieces.vocab"}
            for old in names:
                (folder / old).write_text("old")
            run = {"HERE": folder.parent, "unchanged": lambda *_: {}, "read_descriptions": lambda *_: pairs, "pieces": pieces}
            with unittest.mock.patch.multiple(corpus, **run), unittest.mock.patch("sys.argv", ["corpus.py", "--folder", str(folder)]), \
                    contextlib.redirect_stdout(io.StringIO()):
                (folder.parent / "corpus.json").write_text(json.dumps(record))
                with self.assertRaisesRegex(SystemExit, "differs from corpus.json's: train.tsv has sha256 "):
                    corpus.main()
                self.assertEqual({old: (folder / old).read_text() for old in names}, dict.fromkeys(names, "old"))
                record["files"] = corpus.make(folder, record)["files"]
                (folder.parent / "corpus.json").write_text(json.dumps(record))
                corpus.main()
            made = {f["name"]: f["sha256"] for f in record["files"]}
            self.assertEqual({new: packages.digest((folder / new).read_bytes()) for new in names}, made)

    def test_the_record_is_whole(self):
        record = json.loads((SAMPLE / "corpus.json").read_text(encoding="utf-8"))
        self.assertEqual([p["name"] for p in record["packages"] if len(p["sha256"]) != 64 or p["pairs"].get("training") and not p["licence"]], [])
        self.assertEqual({f["name"] for f in record["files"]}, {"train.tsv", "dev.tsv", "test.tsv", "documents.tsv", "pieces.vocab"})
        self.assertGreater(record["pairs"], 150_000)
        self.assertEqual(record["descriptions"]["licence"], corpus.LICENCE_OF_DESCRIPTIONS)


if __name__ == "__main__":
    unittest.main()
