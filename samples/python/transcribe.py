"""Writes down a recording.   transcribe.py MODEL.toml RECORDING.wav"""

import array
import sys
import wave

import attnkit
from common import need

need(2)
model = attnkit.Model(attnkit.Runtime(), sys.argv[1])
with wave.open(sys.argv[2]) as recording:
    if recording.getparams()[:3] != (1, 2, model.info.sample_rate):
        sys.exit(f"{sys.argv[2]}: no WAV file of 16 bits and one channel at the model's rate")
    frames = recording.readframes(recording.getnframes())
samples = array.array("h", frames[:len(frames) // 2 * 2])  # a recording that was cut may end in half a sample
session = attnkit.Session(model, 1)
session.read(array.array("f", (x / 32768 for x in samples)))
print(model.detokenize(attnkit.TARGET, session.generate()))
