"""The native kernels for quantised weights against the reference, at every level of instructions."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.quantised_linear import Coding, QuantisedWeight, dequantise, native, reference
from kvchat.engine.kernels.quantised_linear.weight import pack
from tests.engine.kernels import native_library
from tests.engine.kernels.native_library import all_levels

pytestmark = pytest.mark.cpu

CODINGS = (
    Coding(bits=8),
    Coding(bits=4),
    Coding(bits=8, group=16),
    Coding(bits=4, has_minima=True),
    Coding(bits=8, group=64, has_minima=True),
    Coding(bits=4, group=128),
)
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
NUM_INPUTS = 384
codings = pytest.mark.parametrize("coding", CODINGS, ids=str)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@all_levels
@codings
@dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 16, 17, 70])
def test_it_is_the_reference(level: str, coding: Coding, dtype: torch.dtype, num_rows: int) -> None:
    weight, bias = random_weight(coding, 101), random((101,)).to(dtype)
    x = random((num_rows, NUM_INPUTS)).to(dtype)
    wanted = x.double() @ dequantise(weight).double().T + bias.double()
    found = native.linear(x, weight, bias, library(level))
    assert (found.dtype, found.shape) == (dtype, (num_rows, 101))
    if num_rows:
        assert float((found.double() - wanted).abs().max() / wanted.abs().max()) < DTYPES[dtype]


@all_levels
@codings
def test_a_row_has_the_same_bits_whatever_stands_beside_it(level: str, coding: Coding) -> None:
    weight, x = random_weight(coding, 70), random((native.MOST_ROWS, NUM_INPUTS))
    together = native.linear(x, weight, None, library(level))
    alone = torch.cat([native.linear(row[None], weight, None, library(level)) for row in x])
    assert torch.equal(together, alone)


@all_levels
def test_an_output_has_the_same_bits_whoever_computes_it(level: str) -> None:
    weight, x = random_weight(Coding(bits=4), 4000), random((3, NUM_INPUTS))
    before = torch.get_num_threads()
    found = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        found.append(native.linear(x, weight, None, library(level)))
    torch.set_num_threads(before)
    assert torch.equal(*found)


@all_levels
@codings
@dtypes
def test_an_expanded_weight_is_what_its_codes_stand_for(
    level: str, coding: Coding, dtype: torch.dtype
) -> None:
    weight = random_weight(coding, 37)
    wanted = reference.dequantise(weight).to(dtype)
    torch.testing.assert_close(
        native.expand(weight, dtype, library(level)), wanted, rtol=DTYPES[dtype], atol=0
    )


@all_levels
def test_rows_that_do_not_lie_side_by_side_are_read(level: str) -> None:
    weight, x = random_weight(Coding(bits=8), 20), random((2, 3, 2 * NUM_INPUTS))[..., ::2]
    wanted = reference.linear(x, weight, None)
    torch.testing.assert_close(native.linear(x, weight, None, library(level)), wanted)


def library(level: str) -> Library:
    return native_library.native(level)


def random(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def random_weight(coding: Coding, num_outputs: int) -> QuantisedWeight:
    generator = torch.Generator().manual_seed(1)
    first, last = (-127, 128) if coding.bits == 8 and not coding.has_minima else (0, 16)
    codes = torch.randint(first, last, (num_outputs, NUM_INPUTS), generator=generator)
    scales = torch.rand(num_outputs, NUM_INPUTS // coding.group, generator=generator).half() * 0.01
    return QuantisedWeight(
        coding=coding,
        codes=pack(codes, coding),
        scales=scales,
        minima=-3 * scales if coding.has_minima else None,
    )
