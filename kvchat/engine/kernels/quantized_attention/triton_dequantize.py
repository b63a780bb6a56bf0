"""Codes of quantized keys and values as numbers, for kernels that read records where they use them.

Codes are read in units of four bytes where each token is whole units, of one byte otherwise, and taken apart
in registers: a unit is halved until a half is a code. E4M3 is read by its bits: shifted by what its mantissa
lacks it is a float16 but for 2 ** 8, which counts with the scale, so every GPU reads it the same way. A
token's record is found by its first word, a scalar where all tokens of a turn lie in one block. Dimensions: M
rows of queries, N tokens of a turn, D numbers of each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.online_softmax.triton import products_of
from kvchat.engine.kernels.quantized_record import GROUP_LEN, Code, QuantizedRecord

WORD_BYTES = 4
"""All parts of a record begin at whole words."""
GROUP = tl.constexpr(GROUP_LEN)
LARGEST_HALF = tl.constexpr(65504.0)


def views(records: Tensor, record: QuantizedRecord) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return records [N, H_kv, 1, b] as units of codes, scales, minima and factors, each beginning with the
    first record's; scales stand in for minima where there are none.
    """
    halves = records.view(torch.float16)
    scales = halves[..., record.scales_at // 2 :]
    minima = halves[..., record.minima_at // 2 :] if record.code.has_minima else scales
    units = records.view(torch.int32) if unit_bytes(record) == WORD_BYTES else records
    return units, scales, minima, records.view(torch.float32)[..., record.factor_at // WORD_BYTES :]


def unit_bytes(record: QuantizedRecord) -> int:
    """Return the bytes that are read at once."""
    return 1 if record.token_bytes % WORD_BYTES else WORD_BYTES


def constants(side: str, record: QuantizedRecord) -> dict[str, int | bool]:
    """Return what a kernel is compiled for; each name begins with the side, `K` or `V`."""
    return {
        f"{side}_BITS": record.code.bits,
        f"{side}_IS_FP8": record.code is Code.FP8,
        f"{side}_UNIT": unit_bytes(record),
        f"{side}_UNITS": record.token_bytes // unit_bytes(record),
    }


@triton.jit
def _codes(units, place, layout, BLOCK_D: tl.constexpr):
    """Return the codes of tokens [N, D]: integers, or of fp8 float16 divided by 256; zero where none is."""
    BITS: tl.constexpr = layout[0]
    IS_FP8: tl.constexpr = layout[1]
    UNIT: tl.constexpr = layout[2]
    UNITS: tl.constexpr = layout[3]
    word, _, offset, there = place
    unit = tl.arange(0, BLOCK_D * BITS // (8 * UNIT))[None, :]
    at = (word * (4 // UNIT) + offset * UNITS)[:, None] + unit
    codes = tl.load(units + at, mask=there[:, None] & (unit < UNITS), other=0).to(tl.int32)
    # What stands above a half's own bits is cut off at the end.
    if UNIT == 4:
        codes = tl.interleave(codes, codes >> 16)
        codes = tl.interleave(codes, codes >> 8)
    if BITS <= 4:
        codes = tl.interleave(codes, codes >> 4)
    if BITS == 2:
        codes = tl.interleave(codes, codes >> 2)
    if IS_FP8:
        bits = ((codes & 0x80) << 8) | ((codes & 0x7F) << 7)
        return bits.to(tl.int16).to(tl.float16, bitcast=True)
    elif BITS == 8:
        return (codes << 24) >> 24
    else:
        return codes & ((1 << BITS) - 1)


@triton.jit
def _factors(factors, word, there, ONE_BLOCK: tl.constexpr):
    """Return what a record's numbers are multiplied by, as a scalar, or for each token [N]."""
    if ONE_BLOCK:
        return tl.load(factors + word)
    else:
        return tl.load(factors + word, mask=there, other=0.0)


@triton.jit
def _token_scales(side, place, IS_FP8: tl.constexpr, ONE_BLOCK: tl.constexpr):
    """Return what the 8-bit codes of each token are multiplied by [N], float32."""
    word, _, offset, there = place
    scale = tl.load(side[1] + 2 * word + offset, mask=there, other=0.0).to(tl.float32)
    scale = scale * _factors(side[3], word, there, ONE_BLOCK)
    if IS_FP8:
        scale = scale * 256.0
    return scale


@triton.jit
def _by_channel(codes, side, place, layout, DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return numbers [N, D], float32, of codes with a scale and a minimum for each channel of 32 tokens."""
    ONE_BLOCK: tl.constexpr = layout[4]
    _, scales, minima, factors = side
    word, start, offset, there = place
    d = tl.arange(0, BLOCK_D)
    factor = _factors(factors, word, there, ONE_BLOCK)
    if ONE_BLOCK and GROUP % BLOCK_N == 0:  # the tokens of a turn share them
        at = 2 * word + start // GROUP * DIM + d
        scale = tl.load(scales + at, mask=d < DIM, other=0.0).to(tl.float32) * factor
        minimum = tl.load(minima + at, mask=d < DIM, other=0.0).to(tl.float32) * factor
        return codes.to(tl.float32) * scale[None, :] + minimum[None, :]
    else:
        at = (2 * word + offset // GROUP * DIM)[:, None] + d[None, :]
        mask = there[:, None] & (d[None, :] < DIM)
        scale = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
        number = codes.to(tl.float32) * scale + tl.load(minima + at, mask=mask, other=0.0).to(tl.float32)
        return number * (factor if ONE_BLOCK else factor[:, None])


@triton.jit
def _by_token(codes, side, place, layout, DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return numbers [N, D], float32, of codes with a scale and a minimum for 32 channels of each token."""
    ONE_BLOCK: tl.constexpr = layout[4]
    _, scales, minima, factors = side
    word, _, offset, there = place
    NUM_GROUPS: tl.constexpr = (DIM + GROUP - 1) // GROUP
    BLOCK_C: tl.constexpr = (BLOCK_D + GROUP - 1) // GROUP
    c = tl.arange(0, BLOCK_C)[None, :]
    at = (2 * word + offset * NUM_GROUPS)[:, None] + c
    mask = there[:, None] & (c < NUM_GROUPS)
    factor = _factors(factors, word, there, ONE_BLOCK)
    if not ONE_BLOCK:
        factor = factor[:, None]
    scale = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32) * factor
    minimum = tl.load(minima + at, mask=mask, other=0.0).to(tl.float32) * factor
    grouped = tl.reshape(codes, [BLOCK_N, BLOCK_C, BLOCK_D // BLOCK_C]).to(tl.float32)
    return tl.reshape(grouped * scale[:, :, None] + minimum[:, :, None], [BLOCK_N, BLOCK_D])


@triton.jit
def _rounded(numbers, dtype: tl.constexpr):
    """Return numbers in the dtype of a product; what rounding would bring to infinity stays finite."""
    if dtype == tl.float16:
        numbers = tl.clamp(numbers, -LARGEST_HALF, LARGEST_HALF, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(dtype)


@triton.jit
def products_with_keys(
    query,
    side,
    place,
    layout,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Return the products [M, N] of queries [M, D] with the keys of tokens.

    Args:
        side: units of codes, scales, minima and factors, as `views` returns them.
        place: first word of each token's record [N], a scalar if all lie in one block; the first token's
            place in its block; each token's place there [N]; which tokens are read [N]. Products with others
            mean nothing, and are finite.
        layout: bits of a code, whether codes are fp8, bytes of a unit, units of a token, and whether all
            tokens of a turn lie in one block; known when compiling.
        PIECE: as of `products_of`.
    """
    BITS: tl.constexpr = layout[0]
    codes = _codes(side[0], place, layout, BLOCK_D)
    if BITS == 8:
        scale = _token_scales(side, place, layout[1], layout[4])
        return products_of(query, tl.trans(codes.to(query.dtype)), PIECE) * scale[None, :]
    else:
        keys = _by_channel(codes, side, place, layout, DIM, BLOCK_N, BLOCK_D)
        return products_of(query, tl.trans(_rounded(keys, query.dtype)), PIECE)


@triton.jit
def weighted_values(
    weights,
    dtype: tl.constexpr,
    side,
    place,
    layout,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Return the sums [M, D] of the values of tokens by their weights [M, N].

    Args:
        dtype: of what is multiplied.
        side, place, layout: as of keys.
    """
    BITS: tl.constexpr = layout[0]
    codes = _codes(side[0], place, layout, BLOCK_D)
    if BITS == 8:
        scale = _token_scales(side, place, layout[1], layout[4])
        if dtype == tl.float16:  # a weight times a scale may be too small for it
            values = _rounded(codes.to(tl.float32) * scale[:, None], dtype)
        else:
            values = codes.to(dtype)
            weights = weights * scale[None, :]
    else:
        values = _rounded(_by_token(codes, side, place, layout, DIM, BLOCK_N, BLOCK_D), dtype)
    return tl.dot(weights.to(dtype), values, input_precision="ieee")
