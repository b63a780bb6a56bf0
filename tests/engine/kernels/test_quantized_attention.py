"""Attention over quantized and exact blocks: every form against the definition."""

from dataclasses import replace

import pytest
import torch

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.paged_attention import torch_fallback as exact_fallback
from kvchat.engine.kernels.quantized_attention import native, quantize_blocks, reference, torch_fallback
from kvchat.engine.kernels.quantized_attention.args import QuantizedStep
from kvchat.engine.kernels.quantized_record import Code
from tests.engine.kernels.native_library import all_levels
from tests.engine.kernels.quantized_cases import QuantizedCase, QuantizedShape, make_quantized_case

pytestmark = pytest.mark.cpu

WIDE = QuantizedShape(
    num_heads=6, head_dim_k=64, head_dim_v=64, block_size=64, key_code=Code.INT4, value_code=Code.INT4
)
"""Whose codes of 4 and 2 bits are multiplied as they lie, where there are instructions for it."""
SEQUENCES = ((1, 1), (31, 31), (33, 1), (64, 1), (47, 47), (130, 90), (131, 1), (160, 3))


def wanted(case: QuantizedCase) -> torch.Tensor:
    return reference.quantized_attention(*case.arguments)


@pytest.mark.parametrize(
    "shape",
    [
        QuantizedShape(),
        QuantizedShape(key_code=Code.FP8, value_code=Code.FP8),
        QuantizedShape(key_code=Code.INT4, value_code=Code.INT2),
        QuantizedShape(num_heads=2, num_kv_heads=2, head_dim_k=24, head_dim_v=40),
        QuantizedShape(softcap=2.0),
        QuantizedShape(has_sinks=True),
        QuantizedShape(dtype=torch.bfloat16),
        QuantizedShape(block_size=4),
    ],
)
def test_torch_operations_compute_the_definition(
    shape: QuantizedShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_fallback, "PIECE_NUMBERS", 2 * shape.block_size * shape.num_kv_heads * 16)
    monkeypatch.setattr(exact_fallback, "PIECE_LEN", 40)
    case = make_quantized_case(shape, SEQUENCES)
    found = torch_fallback.quantized_attention(*case.arguments)
    tolerance = 2e-2 if shape.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, wanted(case), rtol=tolerance, atol=tolerance)


def test_a_query_sees_the_same_however_its_prompt_was_cut() -> None:
    """Trap 32. The definition, to the last bit: queries of one prompt in one chunk, and each in its own."""
    case = make_quantized_case(QuantizedShape(key_code=Code.INT2, value_code=Code.INT2), [(100, 100)])
    whole = wanted(case)
    for row in (0, 15, 16, 31, 32, 47, 48, 64, 79, 80, 99):
        assert torch.equal(wanted(case.single(row))[0], whole[row])


def test_quantized_blocks_change_what_is_seen() -> None:
    """The negative control: two bits are not lost on the way."""
    exact = make_quantized_case(QuantizedShape(key_code=Code.INT8, value_code=Code.INT8), [(100, 100)])
    coarse = make_quantized_case(QuantizedShape(key_code=Code.INT2, value_code=Code.INT2), [(100, 100)])
    assert torch.equal(wanted(exact)[:32], wanted(coarse)[:32])
    assert not torch.allclose(wanted(exact)[32:], wanted(coarse)[32:], atol=1e-2)


def test_only_the_blocks_of_the_step_are_written() -> None:
    case = make_quantized_case(QuantizedShape(), [(100, 1)])
    span = case.args.spans[0]
    before = case.quantized.keys.clone(), case.quantized.values.clone()
    step = QuantizedStep(case.blocks, span.blocks[:1], torch.tensor([2]))
    quantize_blocks(*case.pools, case.quantized, step)
    for now, old in zip((case.quantized.keys, case.quantized.values), before, strict=True):
        assert [block for block in range(len(now)) if not torch.equal(now[block], old[block])] == [2]
    quantize_blocks(
        *case.pools,
        case.quantized,
        QuantizedStep(case.blocks, span.blocks[:0], torch.tensor([], dtype=torch.long)),
    )


CODES = ((Code.INT8, Code.INT8), (Code.FP8, Code.FP8), (Code.INT8, Code.INT4), (Code.INT4, Code.INT2))


def assert_is_what_torch_operations_do(case: QuantizedCase, library: Library, tolerance: float) -> None:
    tolerance = 2e-2 if case.query.dtype == torch.bfloat16 else tolerance
    found = native.quantized_attention(*case.arguments, library)
    computed = torch_fallback.quantized_attention(*case.arguments)
    torch.testing.assert_close(found, computed, rtol=tolerance, atol=tolerance)


@all_levels
@pytest.mark.parametrize(
    "shape",
    [
        *(QuantizedShape(key_code=key, value_code=value) for key, value in CODES),
        QuantizedShape(num_heads=6, num_kv_heads=2, head_dim_k=33, head_dim_v=70, key_code=Code.INT2),
        QuantizedShape(head_dim_k=33, head_dim_v=70, key_code=Code.FP8, value_code=Code.FP8),
        QuantizedShape(num_heads=2, num_kv_heads=1, head_dim_k=520, head_dim_v=24),
        QuantizedShape(num_heads=5, num_kv_heads=5, head_dim_k=128, head_dim_v=128, block_size=64),
        QuantizedShape(block_size=100, key_code=Code.INT4, value_code=Code.INT4),
        QuantizedShape(block_size=4, softcap=2.0),
        QuantizedShape(has_sinks=True, dtype=torch.bfloat16),
        replace(WIDE, value_code=Code.INT2, block_size=16),
        replace(WIDE, key_code=Code.INT2, block_size=100),
        replace(WIDE, softcap=3.0, has_sinks=True),
        replace(WIDE, num_heads=1, num_kv_heads=1, head_dim_k=16, head_dim_v=32),
        replace(WIDE, num_heads=8, num_kv_heads=1, head_dim_k=48, head_dim_v=128),
        replace(WIDE, num_heads=2, num_kv_heads=1, head_dim_k=256, head_dim_v=256),
        replace(WIDE, num_heads=5, num_kv_heads=1, head_dim_k=128, head_dim_v=96),
    ],
)
def test_the_native_kernel_computes_what_torch_operations_do(shape: QuantizedShape, library: Library) -> None:
    """What no query may see, in either form, is NaN."""
    case = make_quantized_case(shape, [*SEQUENCES, (700, 3)])
    assert_is_what_torch_operations_do(case, library, tolerance=5e-5 if shape.head_dim_k > 33 else 2e-5)


@all_levels
@pytest.mark.parametrize("key_code", Code)
@pytest.mark.parametrize("value_code", Code)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_and_values_in_any_two_codes_are_what_torch_operations_make_of_them(
    key_code: Code, value_code: Code, dtype: torch.dtype, library: Library
) -> None:
    shape = QuantizedShape(
        num_heads=7,
        num_kv_heads=1,
        head_dim_k=96,
        head_dim_v=64,
        block_size=64,
        key_code=key_code,
        value_code=value_code,
        dtype=dtype,
    )
    case = make_quantized_case(shape, [(300, 20), (129, 1)])
    assert_is_what_torch_operations_do(case, library, tolerance=5e-5)


@all_levels
@pytest.mark.parametrize(
    "shape",
    [
        *(replace(WIDE, key_code=code, value_code=code) for code in (Code.INT4, Code.INT2)),
        replace(WIDE, block_size=100),
        *(
            QuantizedShape(block_size=16, key_code=key, value_code=value)
            for key, value in (*zip(Code, Code, strict=True), (Code.INT8, Code.INT4), (Code.FP8, Code.INT8))
        ),
    ],
)
def test_how_a_prompt_is_cut_changes_no_bit_of_the_native_kernels_results(
    shape: QuantizedShape, library: Library
) -> None:
    """Trap 32. Queries of one prompt beside each other, and each alone."""
    case = make_quantized_case(shape, [(330, 70)])
    whole = native.quantized_attention(*case.arguments, library)
    for row in range(0, 70, 3):
        alone = native.quantized_attention(*case.single(row).arguments, library)
        assert torch.equal(alone[0], whole[row])
