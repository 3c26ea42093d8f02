"""Writes golden/fbank.json: short sounds and their log-mel frames by torchaudio.  Needs: torchaudio 2.11, numpy, espeak-ng"""

import io
import json
import pathlib
import subprocess
import wave

import numpy as np
import torch
import torchaudio

PINNED = "2.11"
SPECS = [  # sample_rate, bins, window_ms, shift_ms
    (16000, 80, 25, 10),
    (16000, 40, 32, 16),
    (8000, 23, 25, 10),
    (22050, 64, 20, 12.5),
    (44100, 128, 46, 23),
]
FRAMES = 4  # of each sound, so that the file stays small


def spoken(rate, samples):
    """The middle of an utterance: a voice, and between words hardly anything."""
    made = subprocess.run(["espeak-ng", "-v", "en", "--stdout", "two hundred and forty-one euros"], capture_output=True, check=True)
    with wave.open(io.BytesIO(made.stdout)) as file:
        voice = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(float)
        at = np.arange(samples) * file.getframerate() / rate + 0.2 * file.getframerate()
    return np.interp(at, np.arange(len(voice)), voice)


def sounds(rate, samples):
    t = np.arange(samples) / rate
    click = np.zeros(samples)
    click[samples // 2] = 20000
    return {
        "speech": spoken(rate, samples),
        "noise": np.random.default_rng(1).normal(0, 3000, samples),
        "sine": 12000 * np.sin(2 * np.pi * 440 * t),
        "silence": np.zeros(samples),
        "click": click,
        "clipping": 90000 * np.sin(2 * np.pi * 211 * t),
        "offset": 8000 + 40 * np.sin(2 * np.pi * 1000 * t),
    }


def frames(samples, spec, dtype):
    rate, bins, window, shift = spec
    wave_of = torch.tensor(samples, dtype=dtype).unsqueeze(0)
    return torchaudio.compliance.kaldi.fbank(wave_of, sample_frequency=rate, num_mel_bins=bins, frame_length=window,
                                             frame_shift=shift, dither=0.0)


def main():
    assert torchaudio.__version__.startswith(PINNED), torchaudio.__version__
    cases = []
    for spec in SPECS:
        rate, _, window, shift = spec
        samples = int(rate * window * 0.001) + (FRAMES - 1) * int(rate * shift * 0.001) + 3
        for name, sound in sounds(rate, samples).items():
            sound = np.clip(np.round(sound), -32768, 32767).astype(int).tolist()
            # In f32 torchaudio rounds: up to 0.02 where a pure tone leaves bins to its own noise.
            out = frames(sound, spec, torch.float64)
            rounding = (out - frames(sound, spec, torch.float32)).abs().max().item()
            print(f"{spec} {name}: torchaudio's f32 differs from its f64 by {rounding:.1e}")
            cases.append({"name": name, "sample_rate": rate, "bins": spec[1], "window_ms": window, "shift_ms": shift,
                          "samples": sound, "frames": [[round(x, 6) for x in row] for row in out.tolist()]})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    head = f'{{"torchaudio": "{torchaudio.__version__}", "cases": [\n'
    (pathlib.Path(__file__).parent / "golden" / "fbank.json").write_text(f"{head}{lines}\n]}}\n", encoding="ascii")


if __name__ == "__main__":
    main()
