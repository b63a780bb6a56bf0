"""Store new keys and values in their slots: one program per token.

Dimensions: T tokens, H_kv key-value heads, D head size, N blocks, P block size.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.triton_support import in_rows


def store_kv(key: Tensor, value: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    key, value = in_rows(key), in_rows(value)
    num_tokens, num_heads, dim_k = key.shape
    dim_v = value.shape[2]
    if not num_tokens:
        return
    _store[(num_tokens,)](
        key,
        value,
        k_pool,
        v_pool,
        slots,
        *key.stride()[:2],
        *value.stride()[:2],
        *k_pool.stride()[:3],
        *v_pool.stride()[:3],
        k_pool.shape[0] * k_pool.shape[2],
        NUM_HEADS=num_heads,
        BLOCK_SIZE=k_pool.shape[2],
        DIM_K=dim_k,
        DIM_V=dim_v,
        BLOCK_H=triton.next_power_of_2(num_heads),
        BLOCK_K=triton.next_power_of_2(dim_k),
        BLOCK_V=triton.next_power_of_2(max(1, dim_v)),  # 0 of latents
        num_warps=4,
    )


@triton.jit
def _store(
    key,
    value,
    k_pool,
    v_pool,
    slots,
    key_t,
    key_h,
    value_t,
    value_h,
    kp_n,
    kp_h,
    kp_p,
    vp_n,
    vp_h,
    vp_p,
    num_slots,
    NUM_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_K: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= num_slots:
        return
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    h = tl.arange(0, BLOCK_H)[:, None].to(tl.int64)
    k = tl.arange(0, BLOCK_K)[None, :]
    v = tl.arange(0, BLOCK_V)[None, :]
    k_there = (h < NUM_HEADS) & (k < DIM_K)
    v_there = (h < NUM_HEADS) & (v < DIM_V)
    new_k = tl.load(key + token * key_t + h * key_h + k, mask=k_there, other=0.0)
    new_v = tl.load(value + token * value_t + h * value_h + v, mask=v_there, other=0.0)
    k_to = k_pool + block * kp_n + h * kp_h + offset * kp_p + k
    v_to = v_pool + block * vp_n + h * vp_h + offset * vp_p + v
    tl.store(k_to, new_k.to(k_pool.dtype.element_ty), mask=k_there)
    tl.store(v_to, new_v.to(v_pool.dtype.element_ty), mask=v_there)
