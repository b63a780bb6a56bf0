"""Merge attention over parts of the keys: one program per row.

Dimensions: R rows (a query and a head each), S parts, D head size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def merge_lse(parts: Tensor, lse: Tensor, num_parts: Tensor, out: Tensor | None = None) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Args:
        out: where to write the result [R, D], contiguous, of any float dtype; None: new, float32.
    """
    num_rows, most, dim = parts.shape
    if out is None:
        out = torch.empty(num_rows, dim, dtype=torch.float32, device=parts.device)
    _merge[(num_rows,)](
        parts,
        lse,
        num_parts,
        out,
        most,
        DIM=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_S=triton.next_power_of_2(most),
        num_warps=4,
    )
    return out


@triton.jit
def _merge(parts, lse, num_parts, out, most, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(num_parts + row)
    number = tl.arange(0, BLOCK_S)
    scores = tl.load(lse + row * most + number, mask=number < count, other=float("-inf"))
    top = tl.max(scores, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(scores - top), axis=0)
    total = tl.where(total == 0.0, 1.0, total)
    d = tl.arange(0, BLOCK_D)
    merged = tl.zeros([BLOCK_D], tl.float32)
    for part in range(count):
        place = row * most + part
        weight = tl.exp(tl.load(lse + place) - top) / total
        merged += weight * tl.load(parts + place * DIM + d, mask=d < DIM, other=0.0)
    tl.store(out + row * DIM + d, merged.to(out.dtype.element_ty), mask=d < DIM)
