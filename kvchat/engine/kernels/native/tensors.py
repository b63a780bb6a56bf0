"""Tensors as native kernels take them."""

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import library

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Dtypes, by the kernels' numbers."""


def takes_native(tensor: Tensor) -> bool:
    """Whether there are native kernels here for where a tensor lies, and for its dtype. Pure."""
    return library() is not None and tensor.device.type == "cpu" and tensor.dtype in TYPES


def pointer(tensor: Tensor | None) -> int | None:
    """Return where a tensor's numbers lie, as long as it lives; None: there is none."""
    return None if tensor is None else tensor.data_ptr()
