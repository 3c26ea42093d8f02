"""English text to speech with espeak-ng: 16 kHz, mono, float32 in [-1, 1]; and its frames."""
import io
import subprocess
import wave
from dataclasses import dataclass

import numpy as np
from scipy.signal import resample_poly

RATE, SHIFT = 16000, 160  # of the manifest


@dataclass(frozen=True)
class Speaker:
    voice: str  # of espeak-ng, with its variant
    pitch: int  # 0 to 99


SPEAKERS = (
    Speaker("en-us", 45), Speaker("en-us+m3", 35), Speaker("en-us+f2", 60), Speaker("en-us+f4", 50),
    Speaker("en-gb", 50), Speaker("en-gb+m1", 30), Speaker("en-gb+f1", 55), Speaker("en-gb-x-rp+m7", 45),
    Speaker("en-gb-x-rp+f5", 65), Speaker("en-gb-scotland+m2", 40), Speaker("en-gb-scotland+f3", 55),
    Speaker("en-us-nyc+m5", 40))
WORDS_PER_MINUTE = (140, 200)


def _trimmed(samples, threshold=1e-3):
    loud = np.flatnonzero(np.abs(samples) > threshold)
    return samples[loud[0]:loud[-1] + 1] if len(loud) else samples[:0]


def speak(text, speaker, words_per_minute):
    """The phrase without silence around it."""
    command = ["espeak-ng", "-v", speaker.voice, "-p", str(speaker.pitch), "-s", str(words_per_minute), "--stdout"]
    made = subprocess.run([*command, text], check=True, capture_output=True).stdout
    # On a pipe espeak-ng cannot go back to write the length into the header; what follows it is samples.
    with wave.open(io.BytesIO(made)) as header:
        rate = header.getframerate()
    samples = np.frombuffer(made[44:len(made) - len(made) % 2], "<i2").astype(np.float32) / 32768
    common = np.gcd(rate, RATE)
    return _trimmed(resample_poly(samples, RATE // common, rate // common).astype(np.float32))


def join(phrases, pauses):
    """Phrases with silence before, between and behind them; one pause more than phrases, in seconds."""
    parts = []
    for pause, phrase in zip(pauses, [*phrases, np.zeros(0, np.float32)]):
        parts += [np.zeros(round(pause * RATE), np.float32), phrase]
    return np.concatenate(parts)


def frames(model, samples):
    """Log-mel frames (T, bins) as an attnkit.Model makes them."""
    return np.array(model.features(samples))[0]
