"""Keys and values of whole blocks as codes, and back: the definition.

A record follows from its own block's numbers alone. Each number is rounded to the nearest code, halves to the
even one. All of a record's numbers are first divided by a power of two, so that scales and minima fit into 16
bits however large or small keys are. Dimensions: N blocks, H_kv key-value heads, P block size, D head size,
b bytes of a record, g groups.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord

LARGEST_E4M3 = 448.0
LARGEST_INT8 = 127.0
HEADROOM = 15
"""The largest number of a record is divided to below 2 ** 15: float16 ends at 2 ** 16, and the distance from
a minimum to a maximum is up to twice as much."""
LEAST_SCALE = 2.0**-14
"""The least normal number of float16: a group of equal numbers has it for its scale."""
LEAST_EXPONENT = -100
"""Smaller numbers are divided as if they had this size."""


def quantize(numbers: Tensor, record: QuantizedRecord) -> Tensor:
    """Return the records [N, H_kv, b], uint8, of keys or values [N, H_kv, P, D] of any float type.

    A record with a number that is not finite reads as NaN everywhere, so that it cannot pass for a finite
    one.
    """
    assert numbers.shape[2:] == (record.num_tokens, record.dim)
    numbers = numbers.float()
    factors = _factors(numbers)  # [N, H_kv]
    scaled = numbers / factors.nan_to_num(nan=1.0)[:, :, None, None]
    scales, minima = _scales(scaled.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0), record)
    steps = _spread(scales, record)
    if record.code.has_minima:
        scaled = scaled - _spread(minima, record)
    codes = _round(scaled / steps, record.code)
    out = numbers.new_zeros(*numbers.shape[:2], record.num_bytes, dtype=torch.uint8)
    _put(out, 0, pack(codes, record.code.bits))
    _put(out, record.scales_at, scales)
    if record.code.has_minima:
        _put(out, record.minima_at, minima)
    _put(out, record.factor_at, factors[..., None])
    return out


def dequantize(records: Tensor, record: QuantizedRecord) -> Tensor:
    """Return the numbers [N, H_kv, P, D], float32, of records [N, H_kv, b]."""
    codes = unpack(_codes(records, record), record.code.bits, record.dim)
    numbers = _numbers(codes, record.code) * _spread(_scales_of(records, record, record.scales_at), record)
    if record.code.has_minima:
        numbers += _spread(_scales_of(records, record, record.minima_at), record)
    return numbers * _factors_of(records, record)[:, :, None, None]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return codes [..., D], uint8 below 2 ** bits, as bytes [..., ceil(D * bits / 8)], lowest bits first."""
    each = 8 // bits
    padded = functional.pad(codes, (0, -codes.shape[-1] % each)).unflatten(-1, (-1, each))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (padded << shifts).sum(dim=-1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Return the codes [..., D], uint8, of bytes [..., ceil(D * bits / 8)]."""
    if bits == 8:
        return packed[..., :dim]
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    codes = (packed[..., None] >> shifts) & (2**bits - 1)
    return codes.flatten(-2)[..., :dim]


def _factors(numbers: Tensor) -> Tensor:
    """Return for each record the power of two that its numbers are divided by [N, H_kv]; NaN: not finite."""
    largest = numbers.abs().amax(dim=(2, 3))
    exponent = torch.frexp(largest).exponent.clamp_min(LEAST_EXPONENT)
    factors = torch.ldexp(torch.ones_like(largest), exponent - HEADROOM)
    return factors.masked_fill(~largest.isfinite(), float("nan"))


def _scales(scaled: Tensor, record: QuantizedRecord) -> tuple[Tensor, Tensor]:
    """Return scales and minima [N, H_kv, *scales_shape], float16."""
    if not record.code.has_minima:
        largest = LARGEST_E4M3 if record.code is Code.FP8 else LARGEST_INT8
        scales = (scaled.abs().amax(dim=3, keepdim=True) / largest).clamp_min(LEAST_SCALE)
        return scales.half(), scales.half()
    least, most = _extremes(scaled, record)
    scales = ((most - least) / (2**record.code.bits - 1)).clamp_min(LEAST_SCALE)
    return scales.half(), least.half()


def _extremes(scaled: Tensor, record: QuantizedRecord) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest number of each group."""
    rows, columns = record.scales_shape
    tokens, channels = record.token_group, record.channel_group
    # The last group is filled up with copies of its own last token or channel.
    token = torch.arange(rows * tokens, device=scaled.device).clamp_max(record.num_tokens - 1)
    channel = torch.arange(columns * channels, device=scaled.device).clamp_max(record.dim - 1)
    groups = scaled[:, :, token][..., channel].unflatten(3, (columns, channels)).unflatten(2, (rows, tokens))
    return groups.amin(dim=(3, 5)) + 0.0, groups.amax(dim=(3, 5))  # no zero has a sign


def _spread(per_group: Tensor, record: QuantizedRecord) -> Tensor:
    """Return what belongs to groups [N, H_kv, *scales_shape] for each number [N, H_kv, P, D], float32."""
    spread = per_group.float()
    if record.token_group > 1:
        spread = spread.repeat_interleave(record.token_group, dim=2)[:, :, : record.num_tokens]
    if 1 < record.channel_group < record.dim:
        spread = spread.repeat_interleave(record.channel_group, dim=3)[..., : record.dim]
    return spread


def _round(steps: Tensor, code: Code) -> Tensor:
    """Return codes as bytes."""
    if code is Code.FP8:
        return steps.clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn).view(torch.uint8)
    if code is Code.INT8:
        rounded = steps.round().clamp(-LARGEST_INT8, LARGEST_INT8)
        return rounded.nan_to_num(nan=0.0).to(torch.int8).view(torch.uint8)
    return steps.round().nan_to_num(nan=0.0).clamp(0, 2**code.bits - 1).to(torch.uint8)


def _numbers(codes: Tensor, code: Code) -> Tensor:
    if code is Code.FP8:
        return codes.contiguous().view(torch.float8_e4m3fn).float()
    if code is Code.INT8:
        return codes.contiguous().view(torch.int8).float()
    return codes.float()


def _put(out: Tensor, start: int, part: Tensor) -> None:
    """Write a part's bytes into all records [N, H_kv, b]."""
    part = part.flatten(2).contiguous().view(torch.uint8)
    out[..., start : start + part.shape[2]] = part


def _codes(records: Tensor, record: QuantizedRecord) -> Tensor:
    """Return the packed codes [N, H_kv, P, token_bytes]."""
    size = record.num_tokens * record.token_bytes
    return records[..., :size].unflatten(2, (record.num_tokens, record.token_bytes))


def _scales_of(records: Tensor, record: QuantizedRecord, start: int) -> Tensor:
    part = records[..., start : start + record.scales_bytes].contiguous()
    return part.view(torch.float16).unflatten(2, record.scales_shape)


def _factors_of(records: Tensor, record: QuantizedRecord) -> Tensor:
    part = records[..., record.factor_at : record.factor_at + 4].contiguous()
    return part.view(torch.float32)[..., 0]
