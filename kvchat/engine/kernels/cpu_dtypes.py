"""16-bit types that a processor multiplies natively."""

import platform
from functools import cache

import torch

_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "avx10_2"),
    torch.float16: ("avx512_fp16", "amx_fp16", "avx10_2"),
}
"""Any of these multiplies numbers of a type, as `torch.cpu.get_capabilities` names them."""


@cache
def is_emulated(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies numbers of a type by way of others. Pure.

    Only asked of the x86 family: elsewhere the library's own kernels are as fast as those of float32.
    """
    if dtype not in _INSTRUCTIONS or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    known = torch.cpu.get_capabilities()
    return not any(known.get(name, False) for name in _INSTRUCTIONS[dtype])


@cache
def is_multiplied_natively(level: str) -> bool:
    """Whether kernels of ours at a level of instructions multiply bfloat16 as fast as any library. Pure.

    Not where the processor has tiles for it, which multiply many times as fast and which only libraries use.
    """
    if level != "avx512":
        return False
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16", False)) and not known.get("amx_bf16", False)
