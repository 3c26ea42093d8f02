"""attnkit's mechanisms in PyTorch: run and trained by the plugins that ship, with nothing to compile.

    attention = attnkit.torch.Attention("leap", role="decoder.cross", d_model=128, heads=4, factor=4)
    attention(x, memory).sum().backward()
"""

from ._bound import runtime, use_runtime
from .attention import Attention
from .model import Model
from .supernet import Supernet
