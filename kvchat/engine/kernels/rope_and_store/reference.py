"""Turn queries and keys by their positions, and store the keys with their values: the definition.

The first half of the turned numbers of a head is paired with the second half. Source: RoFormer, arXiv
2104.09864, in the order of halves. Dimensions: T tokens, H query heads, H_kv key-value heads, D head size, R
numbers of a head that are turned.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.kernels.store_kv.reference import store_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeStore:
    """Where tokens stand and where their keys and values go. T tokens, R numbers of a head that are turned.

    Args:
        cosines, sines: of each token's position [T, R], R even.
        k_pool: keys of one layer [N, H_kv, P, D].
        v_pool: values of one layer [N, H_kv, P, D_v].
        slots: `block * P + offset` of each token [T], as for `store_kv`.
    """

    cosines: Tensor
    sines: Tensor
    k_pool: Tensor
    v_pool: Tensor
    slots: Tensor


def rope_store(query: Tensor, key: Tensor, value: Tensor, args: RopeStore) -> Tensor:
    """Write each token's turned key and its value to its slot, and return the turned queries.

    Args:
        query: [T, H, D]; key: [T, H_kv, D]; value: [T, H_kv, D_v].

    Returns:
        [T, H, D] in the dtype of `query`; computed in float32.

    Effect:
        Changes the pools at the given slots only.
    """
    store_kv(turned(key, args.cosines, args.sines), value, args.k_pool, args.v_pool, args.slots)
    return turned(query, args.cosines, args.sines)


def turned(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return heads [T, H, D] turned by cosines and sines of their tokens' positions [T, R]."""
    size = cosines.shape[1]
    first_part, kept = heads[..., :size].float(), heads[..., size:]
    first, second = first_part.chunk(2, dim=-1)
    across = torch.cat([-second, first], dim=-1)
    rotated = first_part * cosines.float()[:, None] + across * sines.float()[:, None]
    return torch.cat([rotated.to(heads.dtype), kept], dim=-1)
