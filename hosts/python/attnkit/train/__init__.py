"""Trains what a manifest describes: python -m attnkit.train MANIFEST --data train.tsv --dev dev.tsv."""

from .examples import Batch, Examples
from .trainer import Trainer
