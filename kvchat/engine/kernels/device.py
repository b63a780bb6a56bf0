"""Which tensors the Triton kernels take."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

OLDEST_CAPABILITY = (8, 0)
"""The kernels are compiled and measured from this compute capability on."""


def takes_triton(tensor: Tensor) -> bool:
    """Whether the tensor lies on a GPU for which the kernels are made."""
    return tensor.is_cuda and _is_supported(tensor.get_device())


@cache
def _is_supported(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY
