"""Writes golden/log_mel.json: a short sound and its log-mel spectrogram by transformers.  Needs: transformers 5.23, numpy"""
import json
import pathlib

import numpy as np
import transformers
from transformers import WhisperFeatureExtractor

PINNED = "5.23"


def sound():
    """0.2 s by rule: a gliding tone, its octave, a click, and silence in between."""
    t = np.arange(3200) / 16000
    made = 9000 * np.sin(2 * np.pi * (200 + 900 * t) * t) + 2500 * np.sin(2 * np.pi * (400 + 1800 * t) * t)
    made[1000:1500] = 0
    made[2000] = 30000
    return np.round(made).astype(int)


def main():
    assert transformers.__version__.startswith(PINNED), transformers.__version__
    cases = []
    for bins in (80, 128):
        # A recording shorter than its frames, and one that fills them.
        for samples in (sound(), np.tile(sound(), 2)[:4000]):
            extractor = WhisperFeatureExtractor(feature_size=bins)
            padded = np.zeros(4000)
            padded[:len(samples)] = samples / 32768
            frames = extractor._np_extract_fbank_features(padded[None], "cpu")[0].T
            cases.append({"bins": bins, "samples": samples.tolist(), "frames": [[round(float(x), 6) for x in row] for row in frames]})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    head = f'{{"transformers": "{transformers.__version__}", "cases": [\n'
    (pathlib.Path(__file__).parent / "golden" / "log_mel.json").write_text(f"{head}{lines}\n]}}\n", encoding="ascii")


if __name__ == "__main__":
    main()
