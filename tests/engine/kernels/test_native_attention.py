"""The native kernel is the reference, at every level; how work is cut and divided changes no bit of it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.paged_attention import native, reference
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from tests.engine.kernels.attention_cases import LENGTHS, Case, Shape, dense, make_case
from tests.engine.kernels.native_library import all_levels
from tests.engine.kernels.test_paged_attention import all_shapes, case_of, new_tokens

pytestmark = [pytest.mark.cpu, all_levels]

LONG = (1, 63, 64, 65, 130, 255, 256, 257, 700)
REAL = {
    "15 on 5 of 64": Shape(num_heads=15, num_kv_heads=5, head_dim_k=64, head_dim_v=64),
    "12 on 12 of 80": Shape(num_heads=12, num_kv_heads=12, head_dim_k=80, head_dim_v=80),
    "14 on 2 of 128": Shape(num_heads=14, num_kv_heads=2, head_dim_k=128, head_dim_v=128),
    "16 on 1 of 256": Shape(num_heads=16, num_kv_heads=1, head_dim_k=256, head_dim_v=256),
    "window, sinks, cap": Shape(
        num_heads=6, num_kv_heads=2, head_dim_k=96, head_dim_v=64, window=300, softcap=5.0, has_sinks=True
    ),
    "chunks": Shape(head_dim_k=32, head_dim_v=32, chunk=200),
}
real_shapes = pytest.mark.parametrize("shape", REAL.values(), ids=REAL.keys())
EDGES = {
    "8 on 1 of 64": Shape(num_heads=8, num_kv_heads=1, head_dim_k=64, head_dim_v=64),
    "7 on 1 of 33, window": Shape(num_heads=7, num_kv_heads=1, head_dim_k=33, head_dim_v=19, window=40),
    "3 on 1 of 96, chunks, sinks": Shape(
        num_heads=3, num_kv_heads=1, head_dim_k=96, head_dim_v=80, chunk=50, softcap=5.0, has_sinks=True
    ),
}


def attend(case: Case, library: Library) -> Tensor:
    return native.paged_attention(*case.arguments, library)


def real_case(shape: Shape, num_new: int | None) -> Case:
    return make_case(replace(shape, block_size=64, num_new=num_new), LONG)


@pytest.mark.covering(1, each="level")
@all_shapes
@new_tokens
def test_it_equals_the_reference(shape: Shape, num_new: int | None, library: Library) -> None:
    """Slots that no query sees are NaN, so that reading one would show."""
    case = case_of(shape, num_new).to(torch.float32)
    wanted = reference.paged_attention(*case.arguments)
    torch.testing.assert_close(attend(case, library), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.covering(1, each="level")
@real_shapes
@pytest.mark.parametrize("num_new", [1, 40])
def test_it_equals_dense_attention_over_several_parts(shape: Shape, num_new: int, library: Library) -> None:
    case = real_case(shape, num_new)
    out = attend(case.to(torch.float32), library)
    torch.testing.assert_close(out.double(), dense(case), rtol=1e-5, atol=1e-5)


@pytest.mark.covering(1, each="level")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@real_shapes
def test_sixteen_bit_inputs_are_computed_in_float32_and_rounded_once(
    shape: Shape, dtype: torch.dtype, library: Library
) -> None:
    case = real_case(shape, 3).to(dtype)
    out = attend(case, library)
    assert out.dtype == dtype
    assert torch.equal(out, attend(case.to(torch.float32), library).to(dtype))


@real_shapes
def test_a_sequence_alone_gets_what_it_gets_in_a_batch(shape: Shape, library: Library) -> None:
    case = real_case(shape, 20).to(torch.float32)
    together = attend(case, library)
    for span in case.args.spans:
        alone = attend(case.single(span), library)
        assert torch.equal(alone, together[span.q_start : span.q_end]), f"{span.position} tokens before"


@real_shapes
def test_a_prompt_gets_the_same_bits_however_it_is_cut(shape: Shape, library: Library) -> None:
    """As one prompt, in chunks, and token by token."""
    length = 300
    case = make_case(replace(shape, block_size=64), (length,)).to(torch.float32)
    (span,) = case.args.spans
    whole = attend(case, library)
    for size in (1, 7, 64, 129):
        pieces = [
            SequenceSpan(start, min(start + size, length), start, 0, span.blocks)
            for start in range(0, length, size)
        ]
        cut = replace(case, args=replace(case.args, spans=pieces))
        assert torch.equal(attend(cut, library), whole), f"in pieces of {size}"


@pytest.mark.parametrize("shape", EDGES.values(), ids=EDGES.keys())
@pytest.mark.parametrize("wrong", [None, float("nan"), -float("inf")])
def test_a_query_gets_the_same_bits_beside_any_number_of_others(
    shape: Shape, wrong: float | None, library: Library
) -> None:
    """How many rows share tiles, and which of them sees what, or numbers that are none."""
    most, length = 70, 330
    case = make_case(replace(shape, block_size=64, num_new=most), (length,)).to(torch.float32)
    (span,) = case.args.spans
    for position in (262, 290) if wrong is not None else ():
        case.k_pool[span.blocks[position // 64 - span.first_block], 0, position % 64, 3] = wrong
    single = [replace(span, q_start=row, q_end=row + 1, position=span.position + row) for row in range(most)]
    alone = attend(replace(case, args=replace(case.args, spans=single)), library)
    for num in range(2, most + 1):
        last = replace(span, q_start=0, q_end=num, position=length - num)
        found = attend(replace(case, query=case.query[-num:], args=replace(case.args, spans=[last])), library)
        torch.testing.assert_close(found, alone[-num:], rtol=0, atol=0, equal_nan=True, msg=f"of {num}")


@pytest.mark.covering(1, each="level")
@pytest.mark.usefixtures("threads")
@real_shapes
@pytest.mark.parametrize("num_new", [1, 40])
def test_threads_change_no_bit(shape: Shape, num_new: int, library: Library) -> None:
    case = real_case(shape, num_new).to(torch.float32)
    alone = attend(case, library)
    for num_threads in (2, 5):
        torch.set_num_threads(num_threads)
        assert torch.equal(attend(case, library), alone)


def test_a_step_prepared_once_gives_what_it_gives_unprepared(library: Library) -> None:
    case = make_case(Shape(num_new=5), LENGTHS).to(torch.float32)
    prepared = replace(case, args=replace(case.args, prepared=native.span_table(case.args.spans)))
    assert torch.equal(attend(prepared, library), attend(case, library))
