"""Dispatch by device: Triton on GPUs that it is made for, the native kernel on processors where it was built,
the reference everywhere else.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.causal_conv import native, reference
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.tensors import takes_native
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "short convolutions"


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor | None = None, *, is_activated: bool
) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Effect: `past`, contiguous and of the dtype of `x`, takes in `x`.
    """
    rows = x, weight, bias, past

    def plain() -> Tensor:
        if takes_native(x):
            return native.causal_conv(*rows, is_activated=is_activated)
        out = reference.causal_conv(*rows, is_activated=is_activated)
        if past is not None:
            past.copy_(torch.cat((past, x.mT), dim=-1)[..., -past.shape[-1] :])
        return out

    if not takes_triton(x, OPERATION):
        return plain()
    from kvchat.engine.kernels.causal_conv import triton

    return HEALTH.attempt(OPERATION, lambda: triton.causal_conv(*rows, is_activated=is_activated), plain)
