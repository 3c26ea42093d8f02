"""attnkit's mechanisms in PyTorch: run and trained by the plugins that ship, with nothing to compile.

    attention = attnkit.torch.Attention("leap", role="decoder.cross", d_model=128, heads=4, factor=4)
    attention(x, memory).sum().backward()
"""

import os
import sys

# Threads of torch that wait must not hold the processors that attnkit's need, nor sleep between one small operator and the next; libgomp
# reads these when it is loaded.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from ._bound import runtime, use_runtime
from .attention import Attention
from .model import Model
from .supernet import Supernet

__all__ = ["Attention", "Model", "Supernet", "runtime", "use_runtime"]
