"""Recordings for the tests of the command, made with the standard library alone."""

import math
import pathlib
import random
import wave

RATE = 16000
MODEL = pathlib.Path(__file__).resolve().parents[2] / "samples/manifests/speech.toml"


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
