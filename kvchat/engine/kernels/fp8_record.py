"""Byte layout of a latent layer's 8-bit record of one token. Knows no tensors."""

from dataclasses import dataclass

from kvchat.engine.kernels.quantized_record import aligned

TILE = 128
"""Numbers of a latent that share one scale."""


@dataclass(frozen=True, slots=True)
class Fp8Record:
    """One token's latent in E4M3 and its rope key in bfloat16.

    Layout, 656 bytes for rank 512 and 64 rope numbers:

        [0, R)                   the latent, E4M3
        [scales_at, rope_at)     one float32 scale per 128 numbers of the latent, a power of two each
        [rope_at, num_bytes)     the rope key, bfloat16

    Parts begin at multiples of 4; bytes between them mean nothing. Source: FlashMLA, tests/quant.py.

    Args:
        rank: numbers of the latent, R.
        rope_dim: numbers of the rope key.
    """

    rank: int
    rope_dim: int

    @property
    def num_tiles(self) -> int:
        return -(-self.rank // TILE)

    @property
    def scales_at(self) -> int:
        return aligned(self.rank)

    @property
    def rope_at(self) -> int:
        return self.scales_at + 4 * self.num_tiles

    @property
    def num_bytes(self) -> int:
        return aligned(self.rope_at + 2 * self.rope_dim)
