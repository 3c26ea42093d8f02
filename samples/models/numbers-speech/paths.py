"""The folders of this sample; its common part with numbers-en-de comes from there."""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT = HERE.parent / "numbers-en-de"
sys.path.append(str(TEXT))

from generate import SEPARATOR, PhraseSource  # noqa: E402,F401
