"""The native kernels for quantized weights against the reference, at every level of instructions."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, libraries
from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight, dequantize, native, reference
from kvchat.engine.kernels.quantized_linear.weight import pack
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
    Coding(bits=4, group=16),
)
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
NUM_INPUTS = 384
codings = pytest.mark.parametrize("coding", CODINGS, ids=str)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.mark.covering(2, each="level")
@all_levels
@codings
@dtypes
@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 16, 17, 70])
def test_it_is_the_reference(library: Library, coding: Coding, dtype: torch.dtype, num_rows: int) -> None:
    weight, bias = random_weight(coding, 101), random((101,)).to(dtype)
    x = random((num_rows, NUM_INPUTS)).to(dtype)
    wanted = x.double() @ dequantize(weight).double().T + bias.double()
    found = native.linear(x, weight, bias, library)
    assert (found.dtype, found.shape) == (dtype, (num_rows, 101))
    if num_rows:
        assert float((found.double() - wanted).abs().max() / wanted.abs().max()) < DTYPES[dtype]


@all_levels
@codings
def test_a_row_has_the_same_bits_whatever_stands_beside_it(library: Library, coding: Coding) -> None:
    weight, x = random_weight(coding, 70), random((native.MOST_ROWS, NUM_INPUTS))
    together = native.linear(x, weight, None, library)
    alone = torch.cat([native.linear(row[None], weight, None, library) for row in x])
    assert torch.equal(together, alone)


@all_levels
@codings
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_row_of_16_bits_has_the_same_bits_in_any_company_and_in_prompts(
    library: Library, coding: Coding, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "is_emulated", lambda dtype: True)
    weight, bias = random_weight(coding, 70), random((70,)).to(dtype)
    numbers = [4, 5, 8, 9, 12, 13, 16]
    if native.prefers_codes(dtype, weight, library):
        numbers += [17, 24, 70]
    x = random((max(numbers), 2 * NUM_INPUTS)).to(dtype)[:, ::2]
    alone = torch.cat([native.linear(row[None], weight, bias, library) for row in x])
    for number in numbers:
        assert torch.equal(native.linear(x[:number], weight, bias, library), alone[:number])


@all_levels
def test_prompts_are_computed_from_codes_where_that_is_faster(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {group: random_weight(Coding(bits=4, group=group), 16) for group in (16, 32)}
    monkeypatch.setattr(native, "is_emulated", lambda dtype: dtype == torch.float16)
    found = [native.prefers_codes(dtype, weights[group], library) for dtype in DTYPES for group in (32, 16)]
    assert found == [False, False, False, False, library.level == "avx512", False]


@all_levels
@pytest.mark.usefixtures("threads")
def test_an_output_has_the_same_bits_whoever_computes_it(library: Library) -> None:
    weight = random_weight(Coding(bits=4), 4000)
    for x in (random((3, NUM_INPUTS)), random((15, NUM_INPUTS)).bfloat16()):
        found = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            found.append(native.linear(x, weight, None, library))
        assert torch.equal(*found)


@all_levels
@codings
@dtypes
def test_an_expanded_weight_is_what_its_codes_stand_for(
    library: Library, coding: Coding, dtype: torch.dtype
) -> None:
    weight = random_weight(coding, 37)
    wanted = reference.dequantize(weight).to(dtype)
    torch.testing.assert_close(native.expand(weight, dtype, library), wanted, rtol=DTYPES[dtype], atol=0)


def test_every_level_finds_the_same_bits() -> None:
    if native_library.compiled() is not None:
        pytest.skip("there are no native kernels")
    for coding in CODINGS:
        for dtype in (torch.bfloat16, torch.float16):
            for num_rows in (3, 9):
                weight, x = random_weight(coding, 50), random((num_rows, NUM_INPUTS)).to(dtype)
                found = [native.linear(x, weight, None, one) for one in libraries()]
                assert all(torch.equal(one, found[0]) for one in found)


@all_levels
@dtypes
def test_a_number_that_is_not_finite_spoils_its_own_row(library: Library, dtype: torch.dtype) -> None:
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    for coding in CODINGS:
        weight, x = random_weight(coding, 37), random((9, NUM_INPUTS)).to(dtype)
        before = native.linear(x, weight, None, library)
        for number in (float("nan"), float("inf"), -float("inf")):
            x[4, 70] = number
            found = native.linear(x, weight, None, library)
            assert not bool(found[4].isfinite().any())
            assert torch.equal(found[others], before[others])


@all_levels
def test_a_number_of_16_bits_moves_by_little_of_the_largest_of_its_block(library: Library) -> None:
    x = (random((4, NUM_INPUTS)) * torch.logspace(-6, 0, NUM_INPUTS)).half()
    largest = x.double().unflatten(1, (-1, 32)).abs().amax(2).repeat_interleave(32, 1)
    for coding in CODINGS:
        weight = dequantize(random_weight(coding, 32)).double()
        wanted = x.double() @ weight.T
        bound = 2**-14 * largest @ weight.abs().T + wanted.abs() * 2**-10
        found = native.linear(x, random_weight(coding, 32), None, library).double()
        assert bool(((found - wanted).abs() <= bound).all())


def random(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def random_weight(coding: Coding, num_outputs: int, num_inputs: int = NUM_INPUTS) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(1)
    first, last = (-127, 128) if coding.bits == 8 and not coding.has_minima else (0, 16)
    codes = torch.randint(first, last, (num_outputs, num_inputs), generator=generator)
    scales = torch.rand(num_outputs, num_inputs // coding.group, generator=generator).half() * 0.01
    return QuantizedWeight(
        coding=coding,
        codes=pack(codes, coding),
        scales=scales,
        minima=-3 * scales if coding.has_minima else None,
    )
