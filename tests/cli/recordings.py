"""Recordings for the tests of the command, made with the standard library alone, and what those tests share."""

import json
import math
import pathlib
import random
import wave

from command import CommandTest

RATE = 16000
MODEL = pathlib.Path(__file__).resolve().parents[2] / "samples/manifests/speech.toml"
FIRST_ROW, ROW = 880, 640  # samples, of that model


def noise(samples, seed=1, level=3000):
    draw = random.Random(seed)
    return [max(-32768, min(32767, round(draw.gauss(0, level)))) for _ in range(samples)]


def sine(samples, hertz=440, level=9000):
    return [round(level * math.sin(2 * math.pi * hertz * i / RATE)) for i in range(samples)]


def raw(samples):
    return b"".join(s.to_bytes(2, "little", signed=True) for s in samples)


def write_wav(path, samples, rate=RATE, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(raw(samples))
    return path


class AudioTest(CommandTest):
    """A test on recordings in a folder of its own."""

    def wav(self, name, samples, **options):
        return write_wav(self.folder / name, samples, **options)

    def stream(self, *arguments, **options):
        return self.run_ok("stream", MODEL, *arguments, **options)

    def events(self, *arguments, **options):
        return [json.loads(line) for line in self.stream(*arguments, "--events", "-", **options).lines()]
