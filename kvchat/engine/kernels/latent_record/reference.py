"""Latents as 8-bit records, and back: the definition.

A record follows from its own token's latent and rope key alone, so it does not matter in which chunks tokens
are stored. A scale is the least power of two with which no number of its tile exceeds E4M3's largest: what is
read back is exact in every wider type. Source: DeepSeek-V3 and FlashMLA, tests/quant.py. Dimensions: T
tokens, R latent rank, d_r size of the rope key, C tiles, N blocks, P block size.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.fp8_record import TILE, Fp8Record

LARGEST = 448.0
"""Of E4M3."""
LEAST_AMAX = 1e-4
"""A tile of smaller numbers is scaled as if it had one of this size."""


def store_records(latents: Tensor, rope_keys: Tensor, pool: Tensor, slots: Tensor, record: Fp8Record) -> None:
    """Write each token's record to its slot.

    Args:
        latents: new latents [T, R], of any float dtype.
        rope_keys: new rope keys [T, d_r].
        pool: records of one layer [N, 1, P, record.num_bytes], uint8.
        slots: `block * P + offset` of each token [T], int64 or int32, all different; those behind the pool's
            last slot belong to rows that only fill a batch up, and nothing is stored for them.

    Effect:
        Changes the pool at the given slots only.
    """
    block_size = pool.shape[2]
    is_there = slots < pool.shape[0] * block_size
    if not is_there.all():
        latents, rope_keys, slots = latents[is_there], rope_keys[is_there], slots[is_there]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    pool[blocks, 0, slots - blocks * block_size] = pack(latents, rope_keys, record)


def pack(latents: Tensor, rope_keys: Tensor, record: Fp8Record) -> Tensor:
    """Return records [T, record.num_bytes], uint8, of latents [T, R] and rope keys [T, d_r].

    A tile with a number that is not finite gets NaN for its scale, so that it cannot pass for a finite one.
    """
    num_tokens, rank = latents.shape
    tiles = functional.pad(latents.float(), (0, record.num_tiles * TILE - rank))
    tiles = tiles.view(num_tokens, record.num_tiles, TILE)
    scales = _scales(tiles.abs().amax(dim=2))  # [T, C]
    scaled = (tiles / scales[:, :, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    out = latents.new_zeros(num_tokens, record.num_bytes, dtype=torch.uint8)
    out[:, :rank] = scaled.view(torch.uint8).flatten(1)[:, :rank]
    out[:, record.scales_at : record.rope_at] = scales.view(torch.uint8)
    rope_bytes = rope_keys.to(torch.bfloat16).contiguous().view(torch.uint8)
    out[:, record.rope_at : record.rope_at + rope_bytes.shape[1]] = rope_bytes
    return out


def unpack(records: Tensor, record: Fp8Record) -> Tensor:
    """Return latents and rope keys [T, R + d_r], float32, of contiguous records [T, record.num_bytes]."""
    latents = records[:, : record.rank].view(torch.float8_e4m3fn).float()
    scales = records[:, record.scales_at : record.rope_at].view(torch.float32)
    rope_end = record.rope_at + 2 * record.rope_dim
    rope_keys = records[:, record.rope_at : rope_end].view(torch.bfloat16).float()
    return torch.cat([latents * scales.repeat_interleave(TILE, dim=1)[:, : record.rank], rope_keys], dim=1)


def _scales(amax: Tensor) -> Tensor:
    """Return the least power of two with `amax / scale <= 448` for each tile; 448 = 7/8 * 2 ** 9."""
    mantissa, exponent = torch.frexp(
        amax.clamp_min(LEAST_AMAX)
    )  # amax = mantissa * 2 ** exponent, in [1/2, 1)
    scales = torch.ldexp(torch.ones_like(amax), exponent - 9 + (mantissa > 0.875).int())
    return scales.masked_fill(~amax.isfinite(), float("nan"))
