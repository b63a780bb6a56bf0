"""Native attention over codes of 4 and 2 bits, multiplied as they lie where there are instructions for it."""

from dataclasses import replace

import pytest
import torch

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.quantized_attention import native, torch_fallback
from kvchat.engine.kernels.quantized_record import Code
from tests.engine.kernels.native_library import all_levels
from tests.engine.kernels.quantized_cases import QuantizedCase, QuantizedShape, make_quantized_case

pytestmark = [pytest.mark.cpu, all_levels]

SEQUENCES = ((1, 1), (65, 65), (200, 1), (300, 40), (301, 2))
WIDE = QuantizedShape(
    num_heads=6,
    num_kv_heads=2,
    head_dim_k=64,
    head_dim_v=64,
    block_size=64,
    key_code=Code.INT4,
    value_code=Code.INT4,
)


def heads(num_heads: int, num_kv_heads: int, dim_k: int, dim_v: int) -> QuantizedShape:
    return replace(WIDE, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim_k=dim_k, head_dim_v=dim_v)


def attend(case: QuantizedCase, library: Library) -> torch.Tensor:
    return native.quantized_attention(*case.arguments, library)


@pytest.mark.parametrize(
    "shape",
    [
        WIDE,
        replace(WIDE, key_code=Code.INT2, value_code=Code.INT2),
        replace(WIDE, value_code=Code.INT2, block_size=16),
        replace(WIDE, key_code=Code.INT2, block_size=100),
        replace(WIDE, softcap=3.0, has_sinks=True),
        replace(WIDE, dtype=torch.bfloat16),
        heads(1, 1, 16, 32),
        heads(8, 1, 48, 128),
        heads(2, 1, 256, 256),
        heads(5, 1, 128, 96),
    ],
)
def test_it_computes_what_torch_operations_do(shape: QuantizedShape, library: Library) -> None:
    """What no query may see, in either form, is NaN."""
    case = make_quantized_case(shape, SEQUENCES)
    tolerance = 2e-2 if shape.dtype == torch.bfloat16 else 5e-5
    computed = torch_fallback.quantized_attention(*case.arguments)
    torch.testing.assert_close(attend(case, library), computed, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("code", "block_size"), [(Code.INT4, 64), (Code.INT2, 64), (Code.INT4, 100)])
def test_how_a_prompt_is_cut_changes_no_bit(code: Code, block_size: int, library: Library) -> None:
    """Trap 32. Queries of one prompt beside each other, eight rows at a time, and each alone."""
    shape = replace(WIDE, key_code=code, value_code=code, block_size=block_size)
    case = make_quantized_case(shape, [(450, 70)])
    whole = attend(case, library)
    for row in range(0, 70, 5):
        assert torch.equal(attend(case.single(row), library)[0], whole[row])


def test_values_that_are_no_numbers_are_never_read_as_some(library: Library) -> None:
    case = make_quantized_case(WIDE, [(300, 1)])
    before = attend(case, library)
    record = case.quantized.values[int(case.blocks[0][1]), 1, 0]
    record[-4:] = torch.tensor([float("nan")]).view(torch.uint8)
    after = attend(case, library)
    assert after[:, 3:].isnan().all()
    assert torch.equal(after[:, :3], before[:, :3]), "the other head has its own"
