"""Byte layout of one head's quantized keys or values of one block. Knows no tensors."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GROUP_LEN: Final = 32
"""Numbers that share a scale and a minimum in 4 and 2 bits."""
_WORD = 4


def num_quantized(num_tokens: int, block_size: int) -> int:
    """Return how many blocks are read in quantized form behind `num_tokens` tokens: those whose successor is
    full. The last 64 to 127 tokens, with blocks of 64, are exact.
    """
    return max(0, num_tokens // block_size - 1)


class Code(StrEnum):
    """What a number becomes."""

    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"

    @property
    def bits(self) -> int:
        return {Code.FP8: 8, Code.INT8: 8, Code.INT4: 4, Code.INT2: 2}[self]

    @property
    def has_minima(self) -> bool:
        """Whether a code is counted from a minimum; otherwise zero is the code zero."""
        return self in (Code.INT4, Code.INT2)


@dataclass(frozen=True, slots=True)
class QuantizedRecord:
    """The keys, or the values, of P tokens and one head: codes, and what turns them back into numbers.

    Numbers that share a scale: in 8 bits those of one token. In 4 and 2 bits, for keys (`is_by_channel`),
    those of one channel and 32 consecutive tokens; for values those of one token and 32 consecutive channels.
    Where 32 does not divide, the last group is shorter.

    Layout, all numbers little-endian:

        [0, scales_at)          codes, token after token; each token begins a byte, lowest bits first
        [scales_at, minima_at)  scales [groups of tokens, groups of channels], float16
        [minima_at, factor_at)  minima in the same order, float16; none in 8 bits
        [factor_at, num_bytes)  one float32, a power of two: scales and minima are multiplied by it

    Parts begin at multiples of 4; bytes between them are zero. Source: KIVI, arXiv 2402.02750; the scale per
    token and head is common to many.

    Args:
        num_tokens: of a block, P.
        dim: numbers per token, D.
    """

    code: Code
    num_tokens: int
    dim: int
    is_by_channel: bool

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's codes."""
        return -(-self.dim * self.code.bits // 8)

    @property
    def token_group(self) -> int:
        """Consecutive tokens that share a scale."""
        return GROUP_LEN if self.code.has_minima and self.is_by_channel else 1

    @property
    def channel_group(self) -> int:
        """Consecutive channels that share a scale."""
        if not self.code.has_minima:
            return self.dim
        return 1 if self.is_by_channel else GROUP_LEN

    @property
    def scales_shape(self) -> tuple[int, int]:
        return -(-self.num_tokens // self.token_group), -(-self.dim // self.channel_group)

    @property
    def scales_bytes(self) -> int:
        rows, columns = self.scales_shape
        return 2 * rows * columns

    @property
    def scales_at(self) -> int:
        return aligned(self.num_tokens * self.token_bytes)

    @property
    def minima_at(self) -> int:
        return aligned(self.scales_at + self.scales_bytes)

    @property
    def factor_at(self) -> int:
        return aligned(self.minima_at + self.scales_bytes) if self.code.has_minima else self.minima_at

    @property
    def num_bytes(self) -> int:
        return self.factor_at + 4


def aligned(num_bytes: int) -> int:
    """Return where the next part of a record begins: at a multiple of 4."""
    return -(-num_bytes // _WORD) * _WORD
