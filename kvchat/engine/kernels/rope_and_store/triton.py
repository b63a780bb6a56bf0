"""Turn queries and keys, and store keys and values: one program per token and head, in one launch.

Apart, turning reads and writes queries and keys once, and storing reads keys again. Dimensions: T tokens, H
query heads, H_kv key-value heads, D head size, R numbers of a head that are turned, P block size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.rope_and_store.reference import RopeStore
from kvchat.engine.kernels.triton_support import in_rows


def rope_store(query: Tensor, key: Tensor, value: Tensor, args: RopeStore) -> Tensor:
    """Do what the reference does; see there for arguments."""
    query, key, value = in_rows(query), in_rows(key), in_rows(value)
    cosines, sines = in_rows(args.cosines), in_rows(args.sines)
    num_tokens, num_heads, dim = query.shape
    out = torch.empty(num_tokens, num_heads, dim, dtype=query.dtype, device=query.device)
    if num_tokens:
        _turn[(num_tokens, num_heads + key.shape[1])](
            query,
            key,
            value,
            cosines,
            sines,
            out,
            args.k_pool,
            args.v_pool,
            args.slots,
            num_heads,
            args.k_pool.shape[0] * args.k_pool.shape[2],
            *query.stride()[:2],
            *key.stride()[:2],
            *value.stride()[:2],
            cosines.stride(0),
            sines.stride(0),
            *args.k_pool.stride()[:3],
            *args.v_pool.stride()[:3],
            **constants(args.k_pool.shape[2], dim, value.shape[2], args.cosines.shape[1]),
            num_warps=1,
        )
    return out


def constants(block_size: int, dim: int, dim_v: int, turned: int) -> dict[str, int]:
    """Return what the kernel is compiled for besides dtypes."""
    return {
        "BLOCK_SIZE": block_size,
        "DIM": dim,
        "DIM_V": dim_v,
        "HALF": turned // 2,
        "BLOCK_HALF": triton.next_power_of_2(turned // 2),
        "BLOCK_KEPT": triton.next_power_of_2(max(1, dim - turned)),
        "BLOCK_V": triton.next_power_of_2(dim_v),
    }


@triton.jit
def _turn(
    query,
    key,
    value,
    cosines,
    sines,
    out,
    k_pool,
    v_pool,
    slots,
    num_heads,
    num_slots,
    query_t,
    query_h,
    key_t,
    key_h,
    value_t,
    value_h,
    cos_t,
    sin_t,
    kp_n,
    kp_h,
    kp_p,
    vp_n,
    vp_h,
    vp_p,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    kv_head = head - num_heads
    is_key = kv_head >= 0
    if is_key and slot >= num_slots:
        return
    if is_key:
        source = key + token * key_t + kv_head * key_h
        target = k_pool + block * kp_n + kv_head * kp_h + offset * kp_p
        v = tl.arange(0, BLOCK_V)
        new_v = tl.load(value + token * value_t + kv_head * value_h + v, mask=v < DIM_V, other=0.0)
        v_to = v_pool + block * vp_n + kv_head * vp_h + offset * vp_p + v
        tl.store(v_to, new_v.to(v_pool.dtype.element_ty), mask=v < DIM_V)
    else:
        source = query + token * query_t + head * query_h
        target = out + (token * num_heads + head) * DIM
    h = tl.arange(0, BLOCK_HALF)
    there = h < HALF
    first = tl.load(source + h, mask=there, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + h, mask=there, other=0.0).to(tl.float32)
    cos_first = tl.load(cosines + token * cos_t + h, mask=there, other=0.0).to(tl.float32)
    cos_second = tl.load(cosines + token * cos_t + HALF + h, mask=there, other=0.0).to(tl.float32)
    sin_first = tl.load(sines + token * sin_t + h, mask=there, other=0.0).to(tl.float32)
    sin_second = tl.load(sines + token * sin_t + HALF + h, mask=there, other=0.0).to(tl.float32)
    new_first = first * cos_first - second * sin_first
    new_second = second * cos_second + first * sin_second
    tl.store(target + h, new_first.to(target.dtype.element_ty), mask=there)
    tl.store(target + HALF + h, new_second.to(target.dtype.element_ty), mask=there)
    kept = 2 * HALF + tl.arange(0, BLOCK_KEPT)
    rest = tl.load(source + kept, mask=kept < DIM, other=0.0)
    tl.store(target + kept, rest.to(target.dtype.element_ty), mask=kept < DIM)
