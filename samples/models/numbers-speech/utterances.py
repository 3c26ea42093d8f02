"""The spoken dev and test sets: who says what, how fast and how loud, in how much noise, from a seed.

Writes dev.jsonl and test.jsonl; with --audio also audio/<set>/<n>.wav and the lists audio/<set>.tsv (file, German).
"""
import argparse
import json
import random
import wave
from pathlib import Path

import numpy as np

from paths import HERE, SEPARATOR, PhraseSource
from speakers import RATE, SPEAKERS, WORDS_PER_MINUTE, join, speak

SEED = 20261121
SETS = ("dev", "test")
LONGEST = 5       # phrases in a list
PER_LENGTH = 80   # lists of each number of phrases


def draw(name):
    """Distinct lists: 80 each of 1 to 5 phrases, all from the split of that name."""
    source, rng, seen = PhraseSource(name, SEED), random.Random(f"{SEED}:{name}:voices"), {}
    for count in range(1, LONGEST + 1):
        while len(seen) < count * PER_LENGTH:
            english, german = source.list(count)
            pauses = [rng.uniform(0.05, 0.35), *(rng.uniform(0.2, 0.5) for _ in range(count - 1)), rng.uniform(0.15, 0.55)]
            seen.setdefault(english, {
                "english": english, "german": german, "speaker": rng.randrange(len(SPEAKERS)),
                "words_per_minute": rng.randint(*WORDS_PER_MINUTE), "pauses": [round(p, 3) for p in pauses],
                "gain": round(rng.uniform(0.3, 1.0), 3), "noise": round(10 ** rng.uniform(-4, -2.3), 6)})
    return list(seen.values())


def load(name):
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def audio(entry, seed):
    """16-bit samples."""
    speaker = SPEAKERS[entry["speaker"]]
    spoken = [speak(phrase, speaker, entry["words_per_minute"]) for phrase in entry["english"].split(SEPARATOR)]
    clean = join(spoken, entry["pauses"]) * entry["gain"]
    noise = np.random.default_rng(seed).standard_normal(len(clean), dtype=np.float32) * entry["noise"]
    return np.clip(np.round((clean + noise) * 32768), -32768, 32767).astype("<i2")


def write_audio(name, entries):
    folder = HERE / "audio" / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, entry in enumerate(entries):
        with wave.open(str(folder / f"{i:03}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(audio(entry, SEED + i).tobytes())
        lines.append(f"{name}/{i:03}.wav\t{entry['german']}\n")
    (HERE / "audio" / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def read_wav(path):
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio", action="store_true", help="speak them as well: needs espeak-ng")
    options = parser.parse_args()
    for name in SETS:
        entries = draw(name)
        Path(HERE / f"{name}.jsonl").write_text("".join(json.dumps(e, ensure_ascii=False) + "\n" for e in entries),
                                                encoding="utf-8")
        if options.audio:
            write_audio(name, entries)
