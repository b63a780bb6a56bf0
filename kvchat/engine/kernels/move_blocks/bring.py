"""Blocks of one layer on their way from host memory to a device.

Dimensions: N blocks of a pool, n of a sequence.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def bring_blocks(pool: Tensor, blocks: Tensor) -> Tensor:
    """Return blocks [n, ...] of a pool [N, ...] in host memory on the device of their ids `blocks` [n].

    Blocks that are neighbours are one copy. Where the pool is pinned the copies come in the order of the
    device's work, and may be under way when this returns; asking for the ids waits for the device.
    """
    ids = blocks.tolist()
    out = torch.empty(len(ids), *pool.shape[1:], dtype=pool.dtype, device=blocks.device)
    for start, end in runs_of(ids):
        out[start:end].copy_(pool[ids[start] : ids[start] + end - start], non_blocking=True)
    return out


def runs_of(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the places [start, end) of ids that follow each other by one. Pure."""
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield start, end
            start = end
