"""Recordings at 16 kHz, of 16 bits: whisper.txt in espeak-ng's voices, the same on every machine with the same espeak-ng; and a person's, in a package
of Debian."""
import array
import hashlib
import pathlib
import shutil
import subprocess
import wave

HERE = pathlib.Path(__file__).parent
RATE = 16000


def sentences():
    return [line.split("\t") for line in (HERE / "whisper.txt").read_text().splitlines()]


def can_speak():
    return shutil.which("espeak-ng") is not None


def resampled(samples, rate):
    """Between two samples on the straight line."""
    made = array.array("h")
    for n in range((len(samples) - 1) * RATE // rate):
        at, part = divmod(n * rate, RATE)
        made.append(round(samples[at] + (samples[at + 1] - samples[at]) * part / RATE))
    return made


def joined(paths, path):
    """Writes recordings with a quarter of a second of silence behind each."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        for one in paths:
            with wave.open(str(one)) as part:
                file.writeframes(part.readframes(part.getnframes()) + bytes(RATE // 2))


def write(samples, rate, path):
    """Writes a WAV file; the digest of its samples."""
    samples = resampled(array.array("h", samples), rate).tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples)
    return hashlib.sha256(samples).hexdigest()


def speak(voice, sentence, path):
    spoken = subprocess.run(["espeak-ng", "-v", voice, "--stdout", sentence], capture_output=True, check=True).stdout
    # On a pipe espeak-ng cannot go back to write the length into the header of 44 bytes.
    return write(spoken[44:], int.from_bytes(spoken[24:28], "little"), path)


def recorded(name, folder, path):
    """The words of Allison Smith in the recording `name` of Asterisk; folder: the unpacked package."""
    with wave.open(str(folder / f"usr/share/asterisk/sounds/en_US_f_Allison/{name}.wav")) as file:
        return write(file.readframes(file.getnframes()), file.getframerate(), path)
