"""What is no number is never passed over, and what nobody sees never matters, as the definition has it.

Dimensions: N blocks, P block size, S tokens of a sequence, H query heads, H_kv key-value heads, D head size.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.paged_attention import native, reference
from kvchat.engine.kernels.quantized_attention import native as quantized_native
from kvchat.engine.kernels.quantized_attention import reference as quantized_reference
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code
from kvchat.engine.kernels.shadow_kv import native as shadow_native
from kvchat.engine.kernels.shadow_kv.args import Landmarks
from tests.engine.kernels.attention_cases import Shape, make_case
from tests.engine.kernels.native_library import all_levels
from tests.engine.kernels.quantized_cases import QuantizedCase, QuantizedShape, make_quantized_case
from tests.engine.kernels.test_chosen_attention import SHAPES as CHOSEN_SHAPES
from tests.engine.kernels.test_chosen_attention import make_case as make_chosen_case
from tests.engine.kernels.test_native_attention import REAL, real_shapes

pytestmark = [pytest.mark.cpu, all_levels]

NAN, INF = float("nan"), float("inf")
KINDS = {"nan": (slice(None), NAN), "one nan": (3, NAN), "inf": (3, INF), "-inf": (3, -INF)}
all_kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
sides = pytest.mark.parametrize("side", [0, 1], ids=["key", "value"])
Kind = tuple[int | slice, float]
QUANTIZED = {
    "int8": QuantizedShape(),
    "int4": QuantizedShape(key_code=Code.INT4, value_code=Code.INT4),
    "int2": QuantizedShape(key_code=Code.INT2, value_code=Code.INT2),
    "fp8": QuantizedShape(key_code=Code.FP8, value_code=Code.FP8),
    "k=int8,v=int4": QuantizedShape(key_code=Code.INT8, value_code=Code.INT4),
    "int4 of odd heads": QuantizedShape(
        head_dim_k=33, head_dim_v=19, key_code=Code.INT4, value_code=Code.INT4
    ),
    "int8 in bfloat16": QuantizedShape(dtype=torch.bfloat16),
}
quantized_shapes = pytest.mark.parametrize("shape", QUANTIZED.values(), ids=QUANTIZED.keys())


def check(found: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    """What is no number has to be none here and there."""
    assert torch.equal(found.isnan(), wanted.isnan())
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.covering(2, each="level")
@real_shapes
@all_kinds
@sides
@pytest.mark.parametrize("wrong_at", [0, 70, 287])
def test_what_is_not_finite_shows_to_those_who_see_it_alone(
    shape: Shape, kind: Kind, side: int, wrong_at: int, library: Library
) -> None:
    """A prompt's queries, several of which share what they read, and a position that some of them see."""
    case = make_case(replace(shape, block_size=64, num_new=40), (300,)).to(torch.float32)
    (span,) = case.args.spans
    pool = (case.k_pool, case.v_pool)[side]
    number = wrong_at // 64 - span.first_block
    if number >= 0:
        pool[span.blocks[number], -1, wrong_at % 64, kind[0]] = kind[1]
    found = native.paged_attention(*case.arguments, library)
    wanted = reference.paged_attention(*case.arguments)
    check(found, wanted)
    group = shape.num_heads // shape.num_kv_heads
    assert not found[:, :-group].isnan().any(), "other heads have their own"
    if wrong_at == 287:
        assert not found[:27].isnan().any(), "those before it do not see it"
    if wrong_at == 287 and kind[1] != kind[1]:
        assert found[27:, -group:, 3].isnan().all()


@pytest.mark.parametrize("wrong_at", [3, 400, 699])
@pytest.mark.parametrize("num_parts", [1, 5], ids=["alone", "five at once"])
def test_a_nan_in_any_part_of_a_long_context_shows(wrong_at: int, num_parts: int, library: Library) -> None:
    """Also where a part has nothing else."""
    case = make_case(replace(REAL["15 on 5 of 64"], block_size=64, num_new=num_parts), (700,))
    case = case.to(torch.float32)
    (span,) = case.args.spans
    for position in range(wrong_at // 256 * 256, wrong_at + 1):
        case.k_pool[span.blocks[position // 64], 0, position % 64] = NAN
    found = native.paged_attention(*case.arguments, library)
    assert found[-1, :3].isnan().all()
    check(found, reference.paged_attention(*case.arguments))


@pytest.mark.covering(2, each="level")
@quantized_shapes
@sides
@pytest.mark.parametrize("wide", [False, True], ids=["16 tokens", "64 tokens"])
def test_a_quantized_block_that_is_no_numbers_shows(
    shape: QuantizedShape, side: int, wide: bool, library: Library
) -> None:
    """Such a record comes of one number; queries for whom the block is not old yet see it as it was."""
    if wide:
        shape = replace(shape, num_heads=6, num_kv_heads=2, block_size=64)
    size = shape.block_size
    case = make_quantized_case(shape, [(6 * size, 2 * size + 5), (4 * size, 1)])
    before = attend(case, library)
    dim = (shape.head_dim_k, shape.head_dim_v)[side]
    numbers = torch.randn(1, 1, size, dim)
    numbers[0, 0, 5, 7] = NAN
    for number in (1, 3):
        record = quantize(numbers, shape.records()[side])[0, 0]
        (case.quantized.keys, case.quantized.values)[side][case.blocks[0][number], 1, 0] = record
    found = attend(case, library)
    wanted = quantized_reference.quantized_attention(*case.arguments)
    check(found, wanted, 2e-2 if shape.dtype == torch.bfloat16 else 2e-5)
    half, rows = shape.num_heads // 2, 2 * size + 5
    assert found[:rows, half:].isnan().all()
    assert torch.equal(found[:, :half], before[:, :half]), "the other head has its own"
    assert torch.equal(found[rows:], before[rows:]), "the other sequence has its own"


@quantized_shapes
@sides
def test_a_nan_in_the_exact_blocks_behind_quantized_ones_shows(
    shape: QuantizedShape, side: int, library: Library
) -> None:
    size = shape.block_size
    case = make_quantized_case(shape, [(6 * size, size)])
    (span,) = case.args.spans
    case.pools[side][span.blocks[-1], 1, 9, 2] = NAN
    found = attend(case, library)
    wanted = quantized_reference.quantized_attention(*case.arguments)
    check(found, wanted, 2e-2 if shape.dtype == torch.bfloat16 else 2e-5)
    half = shape.num_heads // 2
    assert not found[:9].isnan().any(), "those before it do not see it"
    assert found[9:, half:, 2].isnan().all()


@pytest.mark.covering(2, each="level")
@all_kinds
@sides
@pytest.mark.parametrize("name", CHOSEN_SHAPES)
def test_what_is_not_finite_in_a_shadows_tail_shows_to_those_who_see_it_alone(
    name: str, kind: Kind, side: int, library: Library
) -> None:
    case = make_chosen_case(CHOSEN_SHAPES[name], num_new=7)
    before = case.wanted().out
    position = case.choice.num_tokens - 3
    size = CHOSEN_SHAPES[name].block_size
    case.pools[side][case.choice.blocks[position // size], -1, position % size, kind[0]] = kind[1]
    found = case.found(library).out
    check(found[:4], before[:4])
    check(found[4:], case.wanted().out[4:])


@sides
def test_a_nan_in_a_chunk_that_a_shadow_chooses_shows(side: int, library: Library) -> None:
    """What stands for it is finite."""
    case = make_chosen_case(CHOSEN_SHAPES["15 on 5 of 64"])
    chunk = int(case.found(library).chosen[2, 4])
    position = chunk * case.choice.chunk_size + 1
    case.pools[side][case.choice.blocks[position // 64], 2, position % 64] = NAN
    found = case.found(library)
    assert found.out[0, 6:9].isnan().all()
    check(found.out, case.wanted().out)


@pytest.mark.parametrize(
    ("of_query", "of_scale"), [(3e37, 1e-20), (1e30, 1e18)], ids=["before", "when it is scaled"]
)
def test_a_product_of_codes_that_is_no_number_is_left_to_the_definition(
    of_query: float, of_scale: float, library: Library
) -> None:
    generator = torch.Generator().manual_seed(1)
    case = make_chosen_case(CHOSEN_SHAPES["15 on 5 of 64"], (64,))
    codes = torch.randint(-127, 128, (64, 8, 5, 64), generator=generator).to(torch.int8)
    scales = torch.full((64, 5), 1e-3)
    scales[:, 3] = of_scale
    case = replace(case, choice=replace(case.choice, stands=(Landmarks(rows=codes, scales=scales),)))
    case.found(library)
    case.query[0, 9:12] = of_query
    assert shadow_native.chosen_attention(case.query, case.pools, case.choice, library) is None


def attend(case: QuantizedCase, library: Library) -> Tensor:
    return quantized_native.quantized_attention(*case.arguments, library)
