"""Dispatch by device; every device runs plain torch operations until a faster kernel is there."""

from kvchat.engine.kernels.paged_attention.torch_ops import paged_attention

__all__ = ["paged_attention"]
