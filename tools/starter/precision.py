"""The number format of the matrix products of the training."""

import platform
from collections.abc import Mapping

import torch

_BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "avx10_2")


def product_dtype(machine: str, capabilities: Mapping[str, bool]) -> torch.dtype:
    """Return bfloat16, but float32 on x86 processors that multiply bfloat16 by way of float32; pure.

    Args:
        machine: The family of processors, as `platform.machine` names it.
        capabilities: Its instructions, as `torch.cpu.get_capabilities` names them.
    """
    if machine.lower() not in ("x86_64", "amd64"):
        return torch.bfloat16
    multiplies = any(capabilities.get(name, False) for name in _BFLOAT16_INSTRUCTIONS)
    return torch.bfloat16 if multiplies else torch.float32


PRODUCT_DTYPE = product_dtype(platform.machine(), torch.cpu.get_capabilities())
"""What the operands of matrix products are rounded to; weights, norms and the residual stream are float32."""
