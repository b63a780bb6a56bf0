"""A packed weight gives what the plain one gives, for every number of rows."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels import cpu_dtypes
from kvchat.engine.kernels.linear import (
    can_pack,
    linear,
    native,
    pack,
    packed,
    reference,
    widened,
    widened_layout,
)
from kvchat.engine.kernels.native.library import Library
from tests.engine.kernels.native_library import all_levels

pytestmark = pytest.mark.cpu

NUM_INPUTS, NUM_OUTPUTS = 640, 416


def weight(dtype: torch.dtype) -> Tensor:
    return random(NUM_OUTPUTS, NUM_INPUTS).to(dtype)


def random(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


needs_packing = pytest.mark.skipif(not can_pack(weight(torch.float32)), reason="needs an x86 processor")


def packed_dtypes() -> list[object]:
    """Return the dtypes as test parameters; those that this processor does not pack are skipped."""
    reason = "torch packs none of them on this processor"
    return [
        pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(weight(dtype)), reason=reason))
        for dtype in packed.DTYPES
    ]


@needs_packing
@pytest.mark.parametrize("dtype", packed_dtypes())
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 12, 13, 16, 65, 130])
def test_packed_weights_give_the_products_of_the_reference(dtype: torch.dtype, num_rows: int) -> None:
    plain = weight(dtype)
    for bias in (None, random(NUM_OUTPUTS).to(dtype)):
        x = random(1, num_rows, NUM_INPUTS).to(dtype)
        out = linear(x, pack(plain), bias)
        wanted = reference.linear(x.double(), plain.double(), None if bias is None else bias.double())
        assert out.shape == (1, num_rows, NUM_OUTPUTS)
        assert out.dtype == dtype
        tolerance = 1e-4 if dtype == torch.float32 else 0.5
        torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=tolerance)


@needs_packing
def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    packed_weight, x = pack(weight(torch.float32)), random(70, NUM_INPUTS)
    together = linear(x, packed_weight, None)
    for start, end in ((0, 2), (3, 8), (5, 29), (6, 70)):
        assert torch.equal(linear(x[start:end], packed_weight, None), together[start:end])


def test_what_gains_nothing_or_is_elsewhere_is_not_packed() -> None:
    assert not can_pack(torch.zeros(8, 8))
    assert not can_pack(weight(torch.float16))
    assert not can_pack(torch.zeros(1024, 1024, device="meta"))
    assert not can_pack(torch.zeros(2**20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 64, 65])
def test_widened_weights_give_the_products_of_the_reference_to_their_last_bit(
    dtype: torch.dtype, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widened, "_OUTPUTS_AT_ONCE", 100)
    plain = weight(dtype)
    for bias in (None, random(NUM_OUTPUTS).to(dtype)):
        x = random(1, num_rows, NUM_INPUTS).to(dtype)
        out = widened.linear(x, plain, bias)
        wanted = reference.linear(x.double(), plain.double(), None if bias is None else bias.double())
        assert out.shape == (1, num_rows, NUM_OUTPUTS)
        assert out.dtype == dtype
        one_bit = torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), wanted, rtol=one_bit, atol=16 * one_bit)


@all_levels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(640, 416), (37, 33), (2100, 17), (1, 1)])
def test_few_rows_are_exact_to_float32_and_none_depends_on_another(
    library: Library, dtype: torch.dtype, num_inputs: int, num_outputs: int
) -> None:
    plain, x = random(num_outputs, num_inputs).to(dtype), random(32, num_inputs)
    together = native.linear(x, plain, native=library)
    wanted = reference.linear(x.double(), plain.double(), None)
    torch.testing.assert_close(together.double(), wanted, rtol=1e-5, atol=1e-6 * num_inputs)
    for start, end in ((0, 0), (0, 1), (3, 5), (5, 12), (6, 13), (31, 32)):
        assert torch.equal(native.linear(x[start:end], plain, native=library), together[start:end])


SIZES = [(640, 416), (1101, 100), (1100, 97), (512, 48), (37, 33), (1, 1)]


@all_levels
@pytest.mark.parametrize(("num_inputs", "num_outputs"), SIZES)
def test_paired_weights_hold_every_number_in_the_order_of_the_definition(
    library: Library, num_inputs: int, num_outputs: int
) -> None:
    plain = random(num_outputs, num_inputs).bfloat16()
    paired = native.pair(plain, library)
    assert torch.equal(paired.numbers, widened_layout.pair(plain).numbers)
    assert torch.equal(paired.to_dense(), plain)


@all_levels
@pytest.mark.parametrize(("num_inputs", "num_outputs"), SIZES)
def test_paired_weights_are_exact_to_float32_and_no_row_depends_on_another(
    library: Library, num_inputs: int, num_outputs: int
) -> None:
    """Thirty-two rows and more read a weight that was widened for all; fewer widen it as they read."""
    plain, x = random(num_outputs, num_inputs).bfloat16(), random(150, num_inputs)
    paired, bias = widened_layout.pair(plain), random(num_outputs)
    together = native.linear(x, paired, bias, native=library)
    wanted = reference.linear(x.double(), plain.double(), bias.double())
    torch.testing.assert_close(together.double(), wanted, rtol=1e-5, atol=1e-6 * num_inputs)
    for start, end in ((0, 0), (0, 1), (3, 5), (5, 12), (6, 21), (30, 66), (149, 150)):
        assert torch.equal(native.linear(x[start:end], paired, bias, native=library), together[start:end])


def test_only_types_of_16_bits_are_emulated_and_only_where_no_instruction_multiplies_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(**features: bool) -> list[bool]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
        return [
            cpu_dtypes.is_emulated.__wrapped__(one) for one in (torch.bfloat16, torch.float16, torch.float32)
        ]

    monkeypatch.setattr(cpu_dtypes.platform, "machine", lambda: "x86_64")
    assert told(avx2=True, avx512_bf16=False) == [True, True, False]
    assert told(avx512_bf16=True) == [False, True, False]
    assert told(amx_bf16=True, avx512_fp16=True) == [False, False, False]
    monkeypatch.setattr(cpu_dtypes.platform, "machine", lambda: "aarch64")
    assert told() == [False, False, False]


def test_bfloat16_is_multiplied_by_kernels_of_ours_where_that_is_as_fast_as_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(level: str, **features: bool) -> bool:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
        return cpu_dtypes.is_multiplied_natively.__wrapped__(level)

    assert told("avx512", avx512_bf16=True, amx_bf16=False)
    assert not told("avxvnni", avx512_bf16=True)
    assert not told("avx512", avx512_vnni=True)
    assert not told("avx512", avx512_bf16=True, amx_bf16=True)
