"""In which order the library has put a packed weight, found by packing numbers that say where they were.

For kernels of ours that read packed weights. The orders are no part of the library's interface: whichever it
chooses on this processor is looked at, and what is not understood is not read. Dimensions: K inputs, N
outputs.
"""

import ctypes
import logging
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from kvchat.engine.kernels.linear.packed import pack

_MOST_OUTPUTS = 1024
"""Of the weight that is looked at: more are put in order in the same way."""
_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """[N / block, padded / V, block, V] with V numbers in four bytes; what is not of the weight is zero.

    Args:
        address: of the first number.
        block: outputs that lie together.
        padded: inputs, with padding.
    """

    address: int
    block: int
    padded: int


def packed_layout(packed: Tensor) -> PackedLayout | None:
    """Return how a packed weight lies in memory; None: in no order that is known here. Pure."""
    num_outputs, num_inputs = packed.shape
    if not packed.is_mkldnn or packed.dtype not in _INTEGERS:
        return None
    try:
        # As it is chosen for weights of this size.
        block = _block(_MOST_OUTPUTS + num_outputs % _MOST_OUTPUTS, num_inputs, packed.dtype)
        address, num_bytes = _memory(packed)
    except (RuntimeError, AttributeError) as error:
        log.info("packed weights cannot be read: %s", error)
        return None
    if block is None:
        return None
    padded, rest = divmod(num_bytes, -(-num_outputs // block) * block * packed.dtype.itemsize)
    is_whole = rest == 0 and padded >= num_inputs and padded % (4 // packed.dtype.itemsize) == 0
    return PackedLayout(address=address, block=block, padded=padded) if is_whole else None


@cache
def _block(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int | None:
    """Return how many outputs lie together in weights of this size; None: they do not."""
    integers = _INTEGERS[dtype]
    outputs = torch.arange(1, num_outputs + 1, dtype=integers)[:, None].expand(-1, num_inputs)
    inputs = torch.arange(1, num_inputs + 1, dtype=integers).expand(num_outputs, -1)
    found = [_packed_numbers(ids.contiguous().view(dtype)).view(integers) for ids in (outputs, inputs)]
    width = 4 // dtype.itemsize
    ends = (found[1] > width).nonzero()
    block = int(ends[0]) // width if len(ends) else 0
    if block not in (16, 32, 48, 64):
        return None
    for ids, seen in zip((outputs, inputs), found, strict=True):
        padded = seen.numel() // (-(-num_outputs // block) * block)
        wanted = torch.zeros(-(-num_outputs // block) * block, padded, dtype=integers)
        wanted[:num_outputs, :num_inputs] = ids
        ordered = wanted.view(-1, block, padded // width, width).transpose(1, 2)
        if not torch.equal(ordered.reshape(-1), seen):
            return None
    return block


def _packed_numbers(weight: Tensor) -> Tensor:
    """Return the numbers of a weight in the order in which they lie when it is packed."""
    packed = pack(weight)
    address, num_bytes = _memory(packed)
    memory = (ctypes.c_char * num_bytes).from_address(address)
    return torch.frombuffer(memory, dtype=weight.dtype).clone()


def _memory(packed: Tensor) -> tuple[int, int]:
    """Return where a packed weight lies, and how many bytes it takes."""
    address: int = torch.ops.mkldnn.data_ptr(packed)
    num_bytes: int = torch.ops.mkldnn._nbytes(packed)
    return address, num_bytes
