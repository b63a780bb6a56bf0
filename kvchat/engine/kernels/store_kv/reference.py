"""Store new keys and values in their slots: the definition.

Dimensions: T tokens, H_kv key-value heads, D head size, N blocks, P block size.
"""

import torch
from torch import Tensor


def store_kv(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Write each token's key and value to its slot.

    Args:
        key: new keys [T, H_kv, D_k].
        value: new values [T, H_kv, D_v].
        k_pool: keys of one layer [N, H_kv, P, D_k].
        v_pool: values of one layer [N, H_kv, P, D_v].
        slots: `block * P + offset` of each token [T], int64 or int32, all different; those behind the pool's
            last slot belong to rows that only fill a batch up, and nothing is stored for them.

    Effect:
        Changes the pools at the given slots only; values are cast to the pool's dtype.
    """
    block_size = k_pool.shape[2]
    is_there = slots < k_pool.shape[0] * block_size
    if not is_there.all():
        key, value, slots = key[is_there], value[is_there], slots[is_there]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    offsets = slots - blocks * block_size
    k_pool[blocks, :, offsets] = key.to(k_pool.dtype)
    v_pool[blocks, :, offsets] = value.to(v_pool.dtype)
