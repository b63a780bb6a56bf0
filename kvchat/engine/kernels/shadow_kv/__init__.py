"""Dispatch by device: the native attention kernel on processors where it was built, plain torch operations
everywhere else. What these have in common is defined in the reference.
"""

from kvchat.engine.kernels.shadow_kv.torch_ops import Sight, chosen, gathered_attention, products

__all__ = ["Sight", "chosen", "gathered_attention", "products"]
