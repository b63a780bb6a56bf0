"""Keys and values as codes: bounds, what is exact, and bad input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvchat.engine.kernels.quantized_kv.reference import dequantize, pack, quantize, unpack
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord

pytestmark = pytest.mark.cpu

P, D = 64, 128
ROUNDING = 2.0**-10
"""Of scales and minima to float16, relative to the largest number of a group."""

WORST = {
    (Code.FP8, False): (0.034, 0.034),
    (Code.INT8, False): (0.009, 0.020),
    (Code.INT4, True): (0.10, 0.05),
    (Code.INT4, False): (0.10, 0.15),
    (Code.INT2, True): (0.51, 0.23),
}
"""Most relative error, for normal numbers and for numbers with four channels that stand apart."""


def numbers(*, has_outliers: bool = False, blocks: int = 8, heads: int = 4) -> Tensor:
    drawn = torch.randn(blocks, heads, P, D, generator=torch.Generator().manual_seed(1))
    if has_outliers:
        drawn[..., [3, 40, 77, 101]] += torch.tensor([12.0, -9.0, 15.0, 8.0])
    return drawn


def there_and_back(given: Tensor, code: Code, *, is_by_channel: bool) -> Tensor:
    record = QuantizedRecord(code, given.shape[2], given.shape[3], is_by_channel)
    return dequantize(quantize(given, record), record)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("code", "is_by_channel"), WORST)
@pytest.mark.parametrize("has_outliers", [False, True])
def test_the_relative_error_stays_below_its_bound(
    code: Code, is_by_channel: bool, has_outliers: bool
) -> None:
    given = numbers(has_outliers=has_outliers)
    error = relative(there_and_back(given, code, is_by_channel=is_by_channel), given)
    bound = WORST[code, is_by_channel][has_outliers]
    assert bound / 3 < error < bound


@pytest.mark.parametrize("code", [Code.FP8, Code.INT8])
@pytest.mark.parametrize("has_outliers", [False, True])
def test_no_number_of_8_bits_is_further_off_than_half_a_step(code: Code, has_outliers: bool) -> None:
    given = numbers(has_outliers=has_outliers)
    error = (there_and_back(given, code, is_by_channel=True) - given).abs()
    largest = given.abs().amax(dim=3, keepdim=True)
    assert (error <= largest * ((1 / 28 if code is Code.FP8 else 1 / 254) + ROUNDING)).all()
    if code is Code.FP8:  # a number of its own size is off by a seventeenth at most
        sized = given.abs() > largest * 2.0**-13
        assert (error[sized] <= given.abs()[sized] * (1 / 17 + ROUNDING)).all()


@pytest.mark.parametrize("code", [Code.INT4, Code.INT2])
@pytest.mark.parametrize("is_by_channel", [False, True])
def test_no_number_of_few_bits_is_further_off_than_half_a_step(code: Code, is_by_channel: bool) -> None:
    given = numbers(has_outliers=True)
    error = (there_and_back(given, code, is_by_channel=is_by_channel) - given).abs()
    dim = 2 if is_by_channel else 3
    groups = given.unflatten(dim, (-1, 32))
    span = groups.amax(dim=dim + 1, keepdim=True) - groups.amin(dim=dim + 1, keepdim=True)
    largest = groups.abs().amax(dim=dim + 1, keepdim=True)
    bound = span / (2 * (2**code.bits - 1)) + largest * ROUNDING + span * ROUNDING
    assert (error.unflatten(dim, (-1, 32)) <= bound).all()


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("is_by_channel", [False, True])
def test_what_was_read_back_is_stored_as_the_same_numbers(code: Code, is_by_channel: bool) -> None:
    once = there_and_back(numbers(has_outliers=True, blocks=2), code, is_by_channel=is_by_channel)
    again = there_and_back(once, code, is_by_channel=is_by_channel)
    torch.testing.assert_close(again, once, rtol=1e-3, atol=2e-2)
    if not code.has_minima:
        assert torch.equal(again, once)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("is_by_channel", [False, True])
def test_a_block_follows_from_its_own_numbers_alone(code: Code, is_by_channel: bool) -> None:
    record = QuantizedRecord(code, P, D, is_by_channel)
    together = quantize(numbers(), record)
    for block in range(3):
        for head in range(2):
            alone = quantize(numbers()[block : block + 1, head : head + 1], record)
            assert torch.equal(alone[0, 0], together[block, head])


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("is_by_channel", [False, True])
@pytest.mark.parametrize(("num_tokens", "dim"), [(4, 6), (16, 80), (40, 33), (64, 96), (1, 1)])
def test_sizes_that_nothing_divides(code: Code, is_by_channel: bool, num_tokens: int, dim: int) -> None:
    given = torch.randn(2, 3, num_tokens, dim, generator=torch.Generator().manual_seed(3))
    found = there_and_back(given, code, is_by_channel=is_by_channel)
    assert found.shape == given.shape
    bound = (
        given.abs().max() / 28 if code is Code.FP8 else (given.max() - given.min()) / (2**code.bits - 1) / 2
    )
    assert (found - given).abs().max() <= 1.1 * bound


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("is_by_channel", [False, True])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.3, 1e30, 1e-30, 1e-44])
def test_numbers_that_are_all_the_same_stay_so(code: Code, is_by_channel: bool, value: float) -> None:
    """Traps: a group without a span divides by nothing; 16 bits are too few for huge numbers."""
    given = torch.full((1, 2, P, D), value)
    found = there_and_back(given, code, is_by_channel=is_by_channel)
    assert torch.isfinite(found).all()
    if value == 0.0:
        assert torch.equal(found, given)
    else:
        assert (found - given).abs().max() <= max(abs(value) * 2e-3, 1e-34)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("scale", [1e-20, 7e4, 1e35])
def test_huge_and_tiny_numbers_are_as_near_as_others(code: Code, scale: float) -> None:
    given = numbers(blocks=2)
    wanted = relative(there_and_back(given, code, is_by_channel=True), given)
    found = there_and_back(given * scale, code, is_by_channel=True) / scale
    assert relative(found, given) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_never_passes_for_a_number(code: Code, bad: float) -> None:
    """Only its own record suffers."""
    given = numbers(blocks=2, heads=2)
    given[1, 0, 5, 7] = bad
    found = there_and_back(given, code, is_by_channel=True)
    assert found[1, 0].isnan().all()
    assert torch.isfinite(found[0]).all()
    assert torch.isfinite(found[1, 1]).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_codes_come_back_from_their_bytes(bits: int, data: st.DataObject) -> None:
    codes = torch.tensor(
        data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=70)), dtype=torch.uint8
    )
    packed = pack(codes[None], bits)
    assert packed.shape[1] == -(-len(codes) * bits // 8)
    assert torch.equal(unpack(packed, bits, len(codes))[0], codes)
