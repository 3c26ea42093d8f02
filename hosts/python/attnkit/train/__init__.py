"""Trains what a manifest describes: python -m attnkit.train MANIFEST --data train.tsv --dev dev.tsv."""

from .. import torch as _before_torch_itself  # which sets how its threads wait
from .examples import Batch, Examples
from .trainer import Trainer
