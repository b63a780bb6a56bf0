"""Dispatch by device; every device runs plain torch operations until a faster kernel is there."""

from kvchat.engine.kernels.latent_attention.torch_ops import latent_attention

__all__ = ["latent_attention"]
