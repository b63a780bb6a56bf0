"""Dispatch by device: native kernels on processors where they were built, plain torch operations everywhere
else. What these have in common is defined in the reference.
"""

from torch import Tensor

from kvchat.engine.kernels.shadow_kv import native
from kvchat.engine.kernels.shadow_kv.args import Choice, Seen, Stand
from kvchat.engine.kernels.shadow_kv.torch_ops import Sight, chosen, gathered_attention, products

__all__ = ["Choice", "Seen", "Sight", "Stand", "chosen", "chosen_attention", "gathered_attention", "products"]


def chosen_attention(query: Tensor, pools: tuple[Tensor, Tensor], choice: Choice) -> Seen | None:
    """Return what the reference returns; None: no kernel reads these in their blocks, or not all of them are
    finite. What is chosen has to be gathered then.
    """
    return native.chosen_attention(query, pools, choice) if native.takes(query, pools, choice) else None
