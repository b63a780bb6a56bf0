"""8-bit records in a few torch operations.

Reading them is several times as fast on a processor as its own casts; storing them asks the device nothing.

Dimensions: T tokens, R latent rank, d_r size of the rope key, C tiles.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.fp8_record import TILE, Fp8Record
from kvchat.engine.kernels.latent_record.reference import pack
from kvchat.engine.kernels.store_kv.torch_fallback import places_of, put

_SIGN_AND_VALUE = -0x4001
"""All bits of 16 but the second: that of an exponent which E4M3 does not have."""
_BIAS = 256.0
"""2 ** (15 - 7): the exponents of float16 and E4M3 stand for different powers."""


def store_records(latents: Tensor, rope_keys: Tensor, pool: Tensor, slots: Tensor, record: Fp8Record) -> None:
    """Do what the reference does; see there for arguments."""
    put(pack(latents, rope_keys, record)[:, None], pool, places_of(slots, pool.shape[0], pool.shape[2]))


def unpack(records: Tensor, record: Fp8Record) -> Tensor:
    """Return what the reference returns.

    The two codes of NaN are read as numbers: they stand only where the scale is NaN too.
    """
    num_tokens = records.shape[0]
    out = torch.empty(num_tokens, record.rank + record.rope_dim, device=records.device)
    scales = records[:, record.scales_at : record.rope_at].view(torch.float32)
    # Shifted by the mantissa's missing bits, E4M3 is float16 but for a power of two, subnormals included.
    bits = records[:, : record.rank].view(torch.int8).to(torch.int16).mul_(128).bitwise_and_(_SIGN_AND_VALUE)
    latents = out[:, : record.rank].copy_(bits.view(torch.float16))
    scales = scales * _BIAS
    for tile in range(record.num_tiles):
        latents[:, tile * TILE : (tile + 1) * TILE] *= scales[:, tile : tile + 1]
    rope_end = record.rope_at + 2 * record.rope_dim
    out[:, record.rank :].copy_(records[:, record.rope_at : rope_end].view(torch.bfloat16))
    return out
