"""The folder of the samples, whose data, vocabulary and weights are used here."""
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parents[3] / "samples" / "models"
TEXT, SPEECH = MODELS / "numbers-en-de", MODELS / "numbers-speech"
sys.path += [str(TEXT), str(SPEECH)]
