"""Quantized weights: what the codes mean, how far they are from the numbers, and what a layer computes."""

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight, dequantize, quantize
from kvchat.engine.kernels.quantized_linear.reference import linear
from kvchat.engine.kernels.quantized_linear.weight import GROUP, from_tiles, pack, to_tiles, unpack

pytestmark = pytest.mark.cpu

BITS = (8, 4)


def normal(num_outputs: int, num_inputs: int) -> Tensor:
    return torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(0)) * 0.05


@pytest.mark.parametrize("bits", BITS)
def test_codes_are_those_of_the_format_that_llama_cpp_reads(bits: int) -> None:
    kind = {8: gguf.GGMLQuantizationType.Q8_0, 4: gguf.GGMLQuantizationType.Q4_0}[bits]
    weight = normal(37, 256)
    theirs = gguf.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
    np.testing.assert_array_equal(dequantize(quantize(weight, bits)).numpy(), theirs)


@pytest.mark.parametrize("bits", BITS)
def test_a_number_moves_by_at_most_half_a_scale(bits: int) -> None:
    """With 4 bits the end opposite to the largest number has no code: there it is a whole scale."""
    weight = normal(64, 512)
    quantized = quantize(weight, bits)
    scales = from_tiles(quantized.scales).float().abs().repeat_interleave(GROUP, dim=1)
    rounding = weight.abs() * 2**-10  # of the scale itself
    error = (dequantize(quantized) - weight).abs()
    most = {8: 0.5, 4: 1.0}[bits]
    assert bool((error <= most * scales + rounding).all())
    assert bool((error > 0.4 * scales).any())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("bits", BITS)
def test_numbers_without_a_scale_are_refused(bits: int, number: float) -> None:
    weight = normal(4, 64)
    weight[1, 3] = number
    with pytest.raises(ValueError, match="not finite"):
        quantize(weight, bits)


def test_inputs_that_make_no_whole_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="33 inputs"):
        quantize(normal(4, 33), 8)


@pytest.mark.parametrize("group", [16, 32, 64])
def test_packed_codes_come_apart_again(group: int) -> None:
    codes = torch.randint(0, 16, (5, 128), dtype=torch.uint8)
    coding = Coding(bits=4, group=group)
    packed = pack(codes, coding)
    assert packed.shape == (5, 64)
    assert torch.equal(unpack(packed, coding), codes)


@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 35])
@pytest.mark.parametrize("width", [1, 4])
def test_tiles_are_the_rows_in_another_order(num_rows: int, width: int) -> None:
    rows = torch.arange(num_rows * 24).view(num_rows, 24)
    tiles = to_tiles(rows, width)
    assert torch.equal(from_tiles(tiles, width), rows)
    assert torch.equal(tiles[num_rows // 16 * 16 :], rows[num_rows // 16 * 16 :])
    if num_rows >= 16:
        assert tiles.flatten()[: 16 * width].tolist() == rows[:16, :width].flatten().tolist()


@pytest.mark.parametrize(
    "coding",
    [Coding(bits=8), Coding(bits=4), Coding(bits=8, group=16), Coding(bits=4, has_minima=True)],
    ids=str,
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_layer_computes_with_the_dequantized_numbers(coding: Coding, has_bias: bool) -> None:
    weight = coded(coding, num_outputs=2100)  # more than is dequantized at a time
    bias = torch.randn(2100) if has_bias else torch.zeros(2100)
    x = torch.randn(2, 3, 64)
    wanted = functional.linear(
        x.double(), dequantize(weight).double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(
        linear(x, weight, bias if has_bias else None).double(), wanted, rtol=1e-5, atol=1e-4
    )


def coded(coding: Coding, num_outputs: int = 7) -> QuantizedWeight:
    random = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (num_outputs, 64), generator=random)
    scales = torch.rand(num_outputs, 64 // coding.group, generator=random).half()
    return QuantizedWeight(
        coding=coding,
        codes=pack(codes, coding),
        scales=scales,
        minima=-2 * scales if coding.has_minima else None,
    )
