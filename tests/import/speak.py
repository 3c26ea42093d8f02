"""Recordings of whisper.txt: espeak-ng's voices at 16 kHz, of 16 bits, the same on every machine with the same espeak-ng."""
import array
import hashlib
import math
import pathlib
import shutil
import subprocess
import wave

HERE = pathlib.Path(__file__).parent
RATE, TAPS = 16000, 16


def sentences():
    return [line.split("\t") for line in (HERE / "whisper.txt").read_text().splitlines()]


def can_speak():
    return shutil.which("espeak-ng") is not None


def resampled(samples, rate):
    """By a windowed sinc, cut off below half of the lower rate; sums in double."""
    common = math.gcd(rate, RATE)
    up, down = RATE // common, rate // common
    cut = 0.95 * min(1.0, up / down)
    filters = []
    for phase in range(up):
        weights = []
        for k in range(-TAPS + 1, TAPS + 1):
            x = k - phase / up
            sinc = 1.0 if x == 0 else math.sin(math.pi * cut * x) / (math.pi * cut * x)
            weights.append(cut * sinc * (0.5 + 0.5 * math.cos(math.pi * x / TAPS)))
        filters.append(weights)
    padded = [0] * (TAPS - 1) + list(samples) + [0] * (TAPS + 1)
    made = []
    for n in range(len(samples) * up // down):
        at, phase = divmod(n * down, up)
        made.append(sum(w * s for w, s in zip(filters[phase], padded[at:at + 2 * TAPS])))
    return array.array("h", (max(-32768, min(32767, round(x))) for x in made))


def speak(voice, sentence, path):
    """Writes a WAV file; the digest of its samples."""
    spoken = subprocess.run(["espeak-ng", "-v", voice, "--stdout", sentence], capture_output=True, check=True).stdout
    # On a pipe espeak-ng cannot go back to write the length into the header of 44 bytes.
    samples = resampled(array.array("h", spoken[44:]), int.from_bytes(spoken[24:28], "little"))
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return hashlib.sha256(samples.tobytes()).hexdigest()
