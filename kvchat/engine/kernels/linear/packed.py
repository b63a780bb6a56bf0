"""A linear layer over weights that oneDNN has put into the order in which its kernels read them.

On processors of the x86 family, plain products of float32 run on whatever the default library chooses for
the vendor, and those of bfloat16 reorder the weights in every call. Packed ones read each weight once and use
the widest instructions there are. A row's result does not depend on the rows beside it, but for single rows
of wide inputs.

The library compiles a kernel for every number of rows it meets, which takes longer than a small product; so
rows are padded to one of a few numbers. Dimensions: T rows, K inputs, N outputs.
"""

import logging
import platform
from bisect import bisect_left
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.cpu_dtypes import is_emulated

DTYPES = (torch.float32, torch.bfloat16)
"""Where packing pays; products of float16 have no kernels here that are worth it."""
LEAST_NUMEL = 2**18
"""Below this, a product of float32 takes less time than the library takes to find its kernel."""
ROWS = (1, 2, 4, 8, *range(12, 32, 4), *range(32, 64, 8), *range(64, 128, 16), *range(128, 256, 32))
ROWS += tuple(range(256, 513, 64))
"""Numbers of rows that are computed as they are; above, multiples of the last step."""
_STEP = ROWS[-1] - ROWS[-2]

log = logging.getLogger(__name__)


def can_pack(weight: Tensor) -> bool:
    """Whether `pack` takes this weight on this machine. Pure."""
    is_plain = weight.device.type == "cpu" and weight.layout is torch.strided and weight.dim() == 2
    is_large = weight.numel() >= LEAST_NUMEL or weight.dtype != torch.float32
    is_worth_it = weight.dtype in DTYPES and not is_emulated(weight.dtype)
    return is_plain and is_large and is_worth_it and works(weight.dtype)


def pack(weight: Tensor) -> Tensor:
    """Return a weight [N, K] in the library's order: an opaque tensor of the same shape and dtype.

    `to_dense()` gives back the very same numbers.
    """
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return what the reference returns for the weight, which the library puts in order once more if it was
    not packed.
    """
    num_rows = x.shape[-2]
    padding = padded_rows(num_rows) - num_rows
    if padding:
        x = functional.pad(x, (0, 0, 0, padding))
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out[..., :num_rows, :] if padding else out


def padded_rows(num_rows: int) -> int:
    """Return the number of rows that is computed for `num_rows`."""
    if num_rows > ROWS[-1]:
        return -(-num_rows // _STEP) * _STEP
    return ROWS[bisect_left(ROWS, num_rows)] if num_rows else 0


@cache
def works(dtype: torch.dtype) -> bool:
    """Whether the library can be used. Tried once: the operations are no part of torch's public interface."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight = torch.arange(-6, 6, dtype=dtype).view(3, 4)
        x = torch.arange(20, dtype=dtype).view(5, 4)
        with torch.inference_mode():
            return torch.equal(linear(x, pack(weight), None), functional.linear(x, weight))
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        log.info("weights stay as they are: %s", error)
        return False
