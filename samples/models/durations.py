"""The network that predicts a target's length row by row, as [length] predict = "network" runs it, to be trained."""
import hashlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

CHANNELS, KERNEL, DROPOUT = 128, 3, 0.1


class Network(nn.Module):
    """Encoder rows to log(duration + 1): two convolutions, each with ReLU, layer norm and dropout, then a line."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.ModuleDict({"1": _convolution(width), "2": _convolution(CHANNELS)})
        self.out = nn.Linear(CHANNELS, 1)

    def forward(self, rows, lengths):
        """rows [B,M,D]; padding counts as zeros, as what lies before the first row does."""
        real = (torch.arange(rows.shape[1]) < lengths[:, None])[..., None]
        for layer in self.conv.values():
            x = F.relu(layer((rows * real).transpose(1, 2)).transpose(1, 2))
            rows = F.dropout(layer.norm(x), DROPOUT, self.training)
        return self.out(rows).squeeze(-1)

    def durations(self, rows, lengths):
        """Whole numbers, zero on padding."""
        real = torch.arange(rows.shape[1]) < lengths[:, None]
        return ((self(rows, lengths).exp() - 1).round().clamp(min=0) * real).long()

    def save(self, file):
        """Writes the file that the manifest names; returns its sha256."""
        save_file({f"length.{name}": value.half().contiguous() for name, value in self.state_dict().items()}, file)
        file.chmod(0o644)
        return hashlib.sha256(file.read_bytes()).hexdigest()


def _convolution(inputs):
    layer = nn.Conv1d(inputs, CHANNELS, KERNEL, padding=KERNEL // 2)
    layer.norm = nn.LayerNorm(CHANNELS)
    return layer
