"""Device support and tiling of Triton kernels, and copies of numbers to a device without waiting."""

import os
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from kvchat.engine.kernels.health import EVERY, HEALTH

OLDEST_CAPABILITY = (8, 0)
"""The kernels are compiled and measured from this compute capability on."""
HALF = 2
"""Bytes of a 16-bit number. Products of wider ones do not run on tensor cores and need many registers."""
MOST_REGISTERS = 255
"""A thread has no more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Tiles of a launch, chosen so that nothing spills on sm_80, sm_90 and sm_100.

    Args:
        block_m: rows of a tile, a query and a head each.
        block_n: keys per turn.
        max_registers: of a thread; None: as many as the compiler thinks best.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


def takes_triton(tensor: Tensor, operation: str) -> bool:
    """Whether the tensor lies on a GPU for which the kernels are made, and that of the operation is well."""
    if not tensor.is_cuda:
        return is_interpreted() and HEALTH.is_well(operation)
    return is_supported(tensor.get_device()) and HEALTH.is_well(operation)


@cache
def is_interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, by Triton's own variable; slow, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None


@cache
def is_supported(device: int) -> bool:
    """Whether the kernels are made for a GPU; where not, everybody is told once."""
    problem = why_unsupported(device)
    if problem is not None:
        HEALTH.refuse(EVERY, problem)
    return problem is None


def why_unsupported(device: int) -> str | None:
    """Return why the kernels are not made for a GPU; None: they are. Pure."""
    if torch.version.hip is not None:
        return "they are made for NVIDIA GPUs"
    capability = _capability(device)
    if capability < OLDEST_CAPABILITY:
        oldest, here = (".".join(map(str, version)) for version in (OLDEST_CAPABILITY, capability))
        return f"this GPU has compute capability {here}, and they are made for {oldest} and newer"
    return None if find_spec("triton") is not None else "triton is not installed: pip install triton"


def upload(values: object, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return numbers as a tensor on the device, without waiting for what is computed there."""
    tensor = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return tensor.to(device, non_blocking=True)


def in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy where the numbers of its last dimension do not lie in a row."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


OLDEST_E4M3 = (8, 9)
"""From this compute capability on a GPU converts E4M3 by itself."""


def has_e4m3(tensor: Tensor) -> bool:
    """Whether kernels may use the type E4M3 where the tensor lies; Triton's interpreter always does."""
    return not tensor.is_cuda or _capability(tensor.get_device()) >= OLDEST_E4M3


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
