"""Weights as integers in short groups along the inputs, each group with a scale: the definition.

A weight is `scale * (code - zero)`, or `scale * code + minimum` where groups have a minimum; with 8 bits zero
is 0, with 4 bits it is 8. Groups of 32 without a minimum are llama.cpp's q8_0 and q4_0, number for number
(ggml-quants.c), so that files in those formats are taken over as they are.

Dimensions: N outputs, K inputs, G inputs of one group.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
"""Inputs of one group in what kvchat quantizes itself."""
TILE = 16
"""Outputs whose codes lie together."""
_QUAD = 4
"""Bytes of one output that lie together in a tile."""
_ZERO = 8
_LARGEST = {8: 127.0, 4: 8.0}
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How one weight's numbers are written.

    Args:
        bits: 8, or 4: two codes share a byte.
        group: inputs that share a scale; a power of two from 16 on that divides K.
        has_minima: whether a group has a minimum beside its scale.
    """

    bits: int
    group: int = GROUP
    has_minima: bool = False

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.group < 16 or self.group & (self.group - 1):
            raise ValueError(f"no coding has {self.bits} bits in groups of {self.group}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """The tensors of one weight [N, K].

    Outputs lie in tiles of TILE, a remainder one by one. Within a tile, numbers of all its outputs follow
    each other before those of further inputs: kernels multiply the outputs of a tile side by side.

    Args:
        codes: int8 [N, K] with 8 bits, four inputs of an output together. With 4 bits uint8 [N, K / 2], four
            bytes of an output together: their low halves are four inputs, their high halves the next four.
        scales: float16 [N, K / G].
        minima: float16 [N, K / G], or None.
    """

    coding: Coding
    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.scales.shape[0], self.scales.shape[1] * self.coding.group

    def part(self, start: int, end: int) -> "QuantizedWeight":
        """Return outputs [start, end) of the weight, multiples of TILE or the last, as views."""
        return QuantizedWeight(
            coding=self.coding,
            codes=self.codes[start:end],
            scales=self.scales[start:end],
            minima=None if self.minima is None else self.minima[start:end],
        )

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.minima is None else self.minima.nbytes)


def quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    """Return the nearest codes of a weight [N, K] of any floating dtype, in groups of 32 without minima.

    The number of largest magnitude in a group becomes an end of the range: 127 or -127 with 8 bits, -8 with
    4. Then every other error is at most half a scale, and with 4 bits a whole one at the opposite end.

    Raises: ValueError: K is no multiple of 32, or a number is not finite or too large for a float16 scale.
    """
    coding = Coding(bits=bits)
    if weight.shape[1] % GROUP:
        raise ValueError(f"{weight.shape[1]} inputs are no multiple of {GROUP}")
    parts = [_quantize_rows(rows, coding) for rows in weight.split(_ROWS_AT_ONCE)]
    codes, scales = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if not bool(scales.isfinite().all()):
        raise ValueError("its numbers are not finite, or too large")
    return QuantizedWeight(coding=coding, codes=codes, scales=to_tiles(scales))


def dequantize(weight: QuantizedWeight) -> Tensor:
    """Return the weight [N, K] in float32."""
    codes = unpack(weight.codes, weight.coding).float().unflatten(1, (-1, weight.coding.group))
    scales = from_tiles(weight.scales).float()[:, :, None]
    if weight.minima is not None:
        return (scales * codes + from_tiles(weight.minima).float()[:, :, None]).flatten(1)
    zero = 0 if weight.coding.bits == 8 else _ZERO
    return (scales * (codes - zero)).flatten(1)


def pack(codes: Tensor, coding: Coding) -> Tensor:
    """Return codes [N, K], 0 to 15 with 4 bits, as `QuantizedWeight` keeps them."""
    if coding.bits == 8:
        return to_tiles(codes.to(torch.int8), _QUAD)
    first, second = codes.to(torch.uint8).unflatten(1, (-1, 2, _QUAD)).unbind(2)
    return to_tiles((first | second << 4).flatten(1), _QUAD)


def unpack(codes: Tensor, coding: Coding) -> Tensor:
    """Return the codes of `QuantizedWeight` one by one [N, K]."""
    codes = from_tiles(codes, _QUAD)
    if coding.bits == 8:
        return codes
    halves = codes.unflatten(1, (-1, _QUAD))
    return torch.stack([halves & 15, halves >> 4], dim=2).flatten(1)


def to_tiles(rows: Tensor, width: int = 1) -> Tensor:
    """Return rows [N, M] in tiles: every `width` numbers of TILE rows beside each other."""
    whole, rest = rows.tensor_split([len(rows) // TILE * TILE])
    tiles = whole.unflatten(0, (-1, TILE)).unflatten(2, (-1, width)).transpose(1, 2)
    return torch.cat([tiles.reshape(whole.shape), rest])


def from_tiles(tiles: Tensor, width: int = 1) -> Tensor:
    """Return rows from what `to_tiles` made of them."""
    whole, rest = tiles.tensor_split([len(tiles) // TILE * TILE])
    rows = whole.reshape(len(whole) // TILE, whole.shape[1] // width, TILE, width).transpose(1, 2)
    return torch.cat([rows.reshape(whole.shape), rest])


def _quantize_rows(weight: Tensor, coding: Coding) -> tuple[Tensor, Tensor]:
    groups = weight.float().unflatten(1, (-1, coding.group))
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    exact = largest / (_LARGEST[8] if coding.bits == 8 else -_LARGEST[4])
    if coding.bits == 8:
        exact = exact.abs()
    scales = exact.to(torch.float16)
    # Codes belong to the scale before rounding, as llama.cpp has it.
    inverse = torch.where(exact == 0, 0.0, 1 / exact)
    codes = (
        (groups * inverse).round() if coding.bits == 8 else (groups * inverse + _ZERO).round().clamp(0, 15)
    )
    return pack(codes.flatten(1), coding), scales[:, :, 0]
