"""Storing without asking the device which rows have a slot: what a recorded step takes where no kernel does.

Dimensions: T tokens, N blocks, H_kv key-value heads, P block size, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """Where each row of a step goes; rows without a slot repeat the first one that has one.

    Args:
        rows: which row stands in each place [T], int64.
        blocks, offsets: where it goes [T].
        is_there: whether it has a slot [T]; if not, none has: what lies there is to be written again.
    """

    rows: Tensor
    blocks: Tensor
    offsets: Tensor
    is_there: Tensor


def places_of(slots: Tensor, num_blocks: int, block_size: int) -> StorePlaces:
    """Return where the rows of a step go, some of whose slots [T] may lie behind the pool."""
    is_there = slots < num_blocks * block_size
    rows = torch.where(
        is_there, torch.arange(len(slots), device=slots.device), is_there.int().argmax(dim=0, keepdim=True)
    )
    own = slots.index_select(0, rows).long().clamp(max=num_blocks * block_size - 1)
    blocks = torch.div(own, block_size, rounding_mode="floor")
    return StorePlaces(rows, blocks, own - blocks * block_size, is_there.index_select(0, rows))


def store_kv(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    places = places_of(slots, k_pool.shape[0], k_pool.shape[2])
    for new, pool in ((key, k_pool), (value, v_pool)):
        put(new.to(pool.dtype), pool, places)


def put(new: Tensor, pool: Tensor, places: StorePlaces) -> None:
    """Write rows [T, H_kv, D] into a pool [N, H_kv, P, D] of their dtype."""
    known = pool[places.blocks, :, places.offsets]
    rows = new.index_select(0, places.rows)
    pool[places.blocks, :, places.offsets] = torch.where(places.is_there[:, None, None], rows, known)
