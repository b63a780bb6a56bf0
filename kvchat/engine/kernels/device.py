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
    return find_spec("triton") is not None and _capability(device) >= OLDEST_CAPABILITY


OLDEST_E4M3 = (8, 9)
"""From this compute capability on a GPU converts E4M3 by itself."""


def has_e4m3(tensor: Tensor) -> bool:
    """Whether kernels may use the type E4M3 where the tensor lies; Triton's interpreter always does."""
    return not tensor.is_cuda or _capability(tensor.get_device()) >= OLDEST_E4M3


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
