"""Arguments of fused RoPE and KV store besides queries, keys and values."""

from dataclasses import dataclass

from torch import Tensor


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
