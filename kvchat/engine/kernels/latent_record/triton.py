"""Store new latents as 8-bit records: one program per token.

Numbers are rounded to E4M3 by integer arithmetic: older GPUs have no such type, and the result is the same to
the bit everywhere but in a tile that is not finite, where the scale is NaN and the codes mean nothing.
Dimensions: T tokens, R latent rank, d_r size of the rope key, C tiles, P block size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.fp8_record import TILE, Fp8Record


def store_records(latents: Tensor, rope_keys: Tensor, pool: Tensor, slots: Tensor, record: Fp8Record) -> None:
    """Do what the reference does; see there for arguments. The pool is contiguous."""
    if not slots.numel():
        return
    latents, rope_keys = latents.contiguous(), rope_keys.contiguous()
    _store[(slots.numel(),)](
        latents,
        rope_keys,
        pool,
        pool.view(torch.float32),
        pool.view(torch.bfloat16),
        slots,
        pool.shape[0] * pool.shape[2],
        latents.stride(0),
        rope_keys.stride(0),
        **constants(record),
        num_warps=4,
    )


def constants(record: Fp8Record) -> dict[str, int]:
    """Return what the kernel is compiled for besides dtypes."""
    return {
        "RANK": record.rank,
        "ROPE": record.rope_dim,
        "NUM_BYTES": record.num_bytes,
        "SCALES_AT": record.scales_at,
        "ROPE_AT": record.rope_at,
        "TILE": TILE,
        "NUM_TILES": record.num_tiles,
        "BLOCK_T": triton.next_power_of_2(record.num_tiles),
        "BLOCK_R": triton.next_power_of_2(record.rope_dim),
    }


@triton.jit
def _store(
    latents,
    rope_keys,
    pool,
    pool_f32,
    pool_bf16,
    slots,
    num_slots,
    latent_t,
    rope_t,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    NUM_BYTES: tl.constexpr,
    SCALES_AT: tl.constexpr,
    ROPE_AT: tl.constexpr,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= num_slots:
        return
    start = slot * NUM_BYTES
    t = tl.arange(0, BLOCK_T)
    c = t[:, None] * TILE + tl.arange(0, TILE)[None, :]
    x = tl.load(latents + token * latent_t + c, mask=c < RANK, other=0.0).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    # The order of positive floats is that of their bits, and NaN and infinity come last. 448 = 7/4 * 2 ** 8.
    largest = tl.maximum(tl.max(bits, axis=1), 0x38D1B717)  # 1e-4
    exponent = (largest >> 23) - 127 - 8 + ((largest & 0x7FFFFF) > 0x600000).to(tl.int32)
    is_finite = largest < 0x7F800000
    scale = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
    scale = tl.where(is_finite, scale, float("nan"))
    inverse = ((127 - exponent) << 23).to(tl.float32, bitcast=True)

    scaled = tl.where(is_finite[:, None], tl.abs(x) * inverse[:, None], 0.0)
    scaled_bits = scaled.to(tl.int32, bitcast=True)
    normal = ((scaled_bits + 0x7FFFF + ((scaled_bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2 ** -6 steps are 2 ** -9, those of float32 beside 2 ** 14.
    small = (scaled + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(scaled < 0.015625, small, normal)
    code = code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)
    tl.store(pool + start + c, code.to(tl.uint8), mask=c < RANK)
    tl.store(pool_f32 + start // 4 + SCALES_AT // 4 + t, scale, mask=t < NUM_TILES)

    r = tl.arange(0, BLOCK_R)
    rope = tl.load(rope_keys + token * rope_t + r, mask=r < ROPE, other=0.0)
    tl.store(pool_bf16 + start // 2 + ROPE_AT // 2 + r, rope.to(tl.bfloat16), mask=r < ROPE)
