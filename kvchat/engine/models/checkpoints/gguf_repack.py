"""Blocks of llama.cpp's formats as codes, scales and minima, number for number but for the K formats' scales.

Layouts: ggml-common.h and ggml-quants.c of llama.cpp. A K format (super-blocks of 256) has the scales of its
groups as small integers times a float16; their products are rounded to float16 here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight
from kvchat.engine.kernels.quantized_linear.weight import pack, to_tiles

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]

_SUPER = 256


@dataclass(frozen=True, slots=True)
class Groups:
    """Codes [M, G], and a scale and perhaps a minimum for each of M groups."""

    codes: NDArray[np.int8]
    scales: Numbers
    minima: Numbers | None = None

    def in_order(self, num_outputs: int, firsts: NDArray[np.int64]) -> "Groups":
        """Return the groups of every output in the order of their first inputs."""
        num_groups = len(self.codes) // num_outputs
        group = firsts // self.codes.shape[1]
        order = (np.arange(num_outputs)[:, None] * num_groups + group).reshape(-1)
        minima = None if self.minima is None else self.minima[order]
        return Groups(self.codes[order], self.scales[order], minima)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of GGUF that can be kept quantized: the coding it becomes, and how its blocks are read."""

    coding: Coding
    read: Callable[[Bytes], Groups]


def moves_groups(columns: NDArray[np.int64], kind: GGMLQuantizationType) -> bool:
    """Return whether an order of columns keeps every group of a format together."""
    group = FORMATS[kind].coding.group
    if len(columns) % group:
        return False
    runs = columns.reshape(-1, group)
    return bool((runs == runs[:, :1] + np.arange(group)).all())


def quantized(
    data: Bytes, kind: GGMLQuantizationType, columns: NDArray[np.int64] | None = None
) -> QuantizedWeight:
    """Return a weight [N, K] from its rows of blocks [N, bytes of K numbers].

    Args:
        columns: order of the inputs, one that `moves_groups`; None: that of the file.
    """
    block_format = FORMATS[kind]
    num_outputs = data.shape[0]
    blocks = np.array(data).reshape(-1, GGML_QUANT_SIZES[kind][1])
    groups = block_format.read(blocks)
    if columns is not None:
        groups = groups.in_order(num_outputs, columns[:: block_format.coding.group])
    codes = torch.from_numpy(groups.codes).reshape(num_outputs, -1)
    return QuantizedWeight(
        coding=block_format.coding,
        codes=pack(codes, block_format.coding),
        scales=_by_row(groups.scales, num_outputs),
        minima=None if groups.minima is None else _by_row(groups.minima, num_outputs),
    )


def _by_row(numbers: Numbers, num_outputs: int) -> torch.Tensor:
    return to_tiles(torch.from_numpy(numbers.astype(np.float16)).view(num_outputs, -1))


def _read_q8_0(blocks: Bytes) -> Groups:
    scales, codes = np.hsplit(blocks, [2])
    return Groups(codes.view(np.int8), _halves(scales))


def _read_q4_0(blocks: Bytes) -> Groups:
    scales, codes = np.hsplit(blocks, [2])
    return Groups(_nibbles(codes), _halves(scales))


def _read_q4_1(blocks: Bytes) -> Groups:
    scales, minima, codes = np.hsplit(blocks, [2, 4])
    return Groups(_nibbles(codes), _halves(scales), _halves(minima))


def _read_q5_0(blocks: Bytes) -> Groups:
    scales, high, codes = np.hsplit(blocks, [2, 6])
    return Groups(_with_fifth_bit(codes, high) - np.int8(16), _halves(scales))


def _read_q5_1(blocks: Bytes) -> Groups:
    scales, minima, high, codes = np.hsplit(blocks, [2, 4, 8])
    return Groups(_with_fifth_bit(codes, high), _halves(scales), _halves(minima))


def _read_q4_k(blocks: Bytes) -> Groups:
    scales, minima, codes = _scales_and_minima(blocks)
    return Groups(_pairs_of_groups(codes), scales, minima)


def _read_q5_k(blocks: Bytes) -> Groups:
    scales, minima, rest = _scales_and_minima(blocks)
    high, codes = np.hsplit(rest, [_SUPER // 8])
    fifth = (high[:, None, :] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    return Groups((_pairs_of_groups(codes) | (fifth.reshape(-1, 32) << 4)).astype(np.int8), scales, minima)


def _read_q6_k(blocks: Bytes) -> Groups:
    low, high, small, large = np.hsplit(blocks, [128, 192, 208])
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    halves = low.reshape(-1, 2, 1, 64) >> np.array([0, 4], dtype=np.uint8)[None, None, :, None] & 15
    pairs = (high.reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = halves.reshape(-1, 2, 4, 32) | pairs << 4
    scales = _halves(large)[:, None] * small.view(np.int8).astype(np.float32)
    return Groups(codes.reshape(-1, 16).astype(np.int8) - np.int8(32), scales.reshape(-1))


def _halves(data: Bytes) -> Numbers:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)[:, 0]


def _nibbles(codes: Bytes) -> NDArray[np.int8]:
    """The low halves of a group's bytes, then the high ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.int8)


def _with_fifth_bit(codes: Bytes, high: Bytes) -> NDArray[np.int8]:
    fifth = np.unpackbits(high, axis=1, bitorder="little")
    return (_nibbles(codes) | fifth << 4).astype(np.int8)


def _pairs_of_groups(codes: Bytes) -> NDArray[np.int8]:
    """Each 32 bytes hold one group in their low halves and the next one in their high halves."""
    return _nibbles(codes.reshape(-1, 32)).reshape(-1, 32)


def _scales_and_minima(blocks: Bytes) -> tuple[Numbers, Numbers, Bytes]:
    """Return what 4 and 5 bits share: eight 6-bit scales and minima in twelve bytes; and the rest."""
    large, minimum, small, rest = np.hsplit(blocks, [2, 4, 16])
    first, second, mixed = np.hsplit(small, [4, 8])
    scales = np.concatenate([first & 63, mixed & 15 | first >> 6 << 4], axis=1).astype(np.float32)
    minima = np.concatenate([second & 63, mixed >> 4 | second >> 6 << 4], axis=1).astype(np.float32)
    scales, minima = _halves(large)[:, None] * scales, -_halves(minimum)[:, None] * minima
    return scales.reshape(-1), minima.reshape(-1), rest


FORMATS = {
    GGMLQuantizationType.Q8_0: BlockFormat(Coding(bits=8), _read_q8_0),
    GGMLQuantizationType.Q4_0: BlockFormat(Coding(bits=4), _read_q4_0),
    GGMLQuantizationType.Q4_1: BlockFormat(Coding(bits=4, has_minima=True), _read_q4_1),
    GGMLQuantizationType.Q5_0: BlockFormat(Coding(bits=8), _read_q5_0),
    GGMLQuantizationType.Q5_1: BlockFormat(Coding(bits=8, has_minima=True), _read_q5_1),
    GGMLQuantizationType.Q4_K: BlockFormat(Coding(bits=4, has_minima=True), _read_q4_k),
    GGMLQuantizationType.Q5_K: BlockFormat(Coding(bits=8, has_minima=True), _read_q5_k),
    GGMLQuantizationType.Q6_K: BlockFormat(Coding(bits=8, group=16), _read_q6_k),
}
"""Formats of GGUF whose weights stay quantized; others are expanded."""
