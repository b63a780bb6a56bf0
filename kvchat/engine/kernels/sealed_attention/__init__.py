"""Plain torch operations on every device."""

from kvchat.engine.kernels.sealed_attention.reference import seal
from kvchat.engine.kernels.sealed_attention.torch_ops import sealed_attention

__all__ = ["seal", "sealed_attention"]
