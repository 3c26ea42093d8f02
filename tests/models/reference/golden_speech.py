"""Writes samples/models/numbers-speech/expected.json: PyTorch's outputs for its recordings, what tests hold attnkit to.

Of every placement per role and lag the ids, and of one placement the encoder's rows (first numbers of some).
"""
import argparse
import itertools
import json

import soundfile
import torch
from safetensors.torch import load_file

from samples import SPEECH
import utterances
from features import RATE, frames
from speech_model import MECHANISMS, SpeechModel, per_role, seen_rows
from vocabulary import BOS, EOS, load

FILE = SPEECH / "numbers-speech.safetensors"
RECORDINGS = SPEECH / "recordings"
CHOSEN = (3, 60, 85, 130, 170, 215, 250, 390)  # of test
LAGS = (None, 1, 3, 5)
MOST = 120
PRE_DECISION = 8  # rows of the encoder, as the manifest has it


def load_model():
    model = SpeechModel(len(load()))
    model.load_state_dict({name: value.float() for name, value in load_file(FILE).items()})
    return model.eval()


@torch.no_grad()
def decode(model, encoded, lag, placement):
    """(ids up to </s>, the smallest lead of a best score over the second) by greedy wait-k."""
    ids, margin = [BOS], float("inf")
    rows = torch.tensor([encoded.shape[1]])
    while ids[-1] != EOS and len(ids) <= MOST:
        seen = seen_rows(rows, len(ids), lag, PRE_DECISION)
        best = model.decode(torch.tensor([ids]), encoded, seen, placement)[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[1:], margin


def record():
    RECORDINGS.mkdir(exist_ok=True)
    entries = utterances.load("test")
    lines = []
    for i in CHOSEN:
        soundfile.write(RECORDINGS / f"{i:03}.flac", utterances.audio(entries[i], utterances.SEED + i), RATE)
        lines.append(f"{i:03}.flac\t{entries[i]['german']}\n")
    (RECORDINGS / "recordings.tsv").write_text("".join(lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="speak the recordings as well: needs espeak-ng")
    if parser.parse_args().record:
        record()
    model, expected = load_model(), []
    for path in sorted(RECORDINGS.glob("*.flac")):
        heard = frames(soundfile.read(path, dtype="float32")[0])[None]
        rows = {}
        for chosen in itertools.product(MECHANISMS, repeat=3):
            placement = per_role(*chosen)
            if chosen[0] not in rows:
                with torch.no_grad():
                    rows[chosen[0]] = model.encode(heard, placement)
            for lag in LAGS:
                ids, margin = decode(model, rows[chosen[0]], lag, placement)
                expected.append({"file": path.name, "placement": chosen, "k": lag, "ids": ids,
                                 "margin": round(margin, 5)})
    (SPEECH / "expected.json").write_text("[\n" + ",\n".join(map(json.dumps, expected)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
