"""The reference is dense attention through tables; the faster operations are the reference."""

from dataclasses import replace

import pytest
import torch

from kvchat.engine.kernels.paged_attention import paged_attention, reference, torch_fallback
from tests.engine.kernels.attention_cases import LENGTHS, Case, Shape, dense, make_case

pytestmark = pytest.mark.cpu

SHAPES = {
    "one head each": Shape(num_kv_heads=4),
    "grouped queries": Shape(num_heads=8, num_kv_heads=2),
    "one key-value head": Shape(num_kv_heads=1),
    "other size of values": Shape(head_dim_v=5),
    "larger values than keys": Shape(head_dim_k=3, head_dim_v=12),
    "window of one": Shape(window=1),
    "window inside a block": Shape(window=7),
    "window of a block": Shape(window=16),
    "window over blocks": Shape(window=37),
    "window beyond everything": Shape(window=500),
    "chunks inside a block": Shape(chunk=7),
    "chunks of a block": Shape(chunk=16),
    "chunks over blocks": Shape(chunk=37),
    "chunks beyond everything": Shape(chunk=500),
    "chunks and sinks": Shape(chunk=21, has_sinks=True, num_kv_heads=1),
    "soft cap": Shape(softcap=2.0),
    "sinks": Shape(has_sinks=True),
    "everything": Shape(num_kv_heads=1, head_dim_v=5, window=21, softcap=1.5, has_sinks=True),
    "blocks of one token": Shape(block_size=1, window=9),
    "blocks of five tokens": Shape(block_size=5),
    "blocks of 64 tokens": Shape(block_size=64, window=20),
}
all_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
new_tokens = pytest.mark.parametrize("num_new", [None, 1, 5], ids=["prefill", "decode", "chunk"])
SHORT = (1, 16, 17, 40)
"""The reference takes one query at a time, so whole prompts are short; chunks and decode have all lengths."""


def case_of(shape: Shape, num_new: int | None) -> Case:
    return make_case(replace(shape, num_new=num_new), LENGTHS if num_new else SHORT)


@all_shapes
@new_tokens
def test_the_reference_equals_dense_attention_with_a_mask(shape: Shape, num_new: int | None) -> None:
    case = case_of(shape, num_new)
    out = reference.paged_attention(*case.arguments)
    torch.testing.assert_close(out, dense(case), rtol=1e-10, atol=1e-12)


@all_shapes
@new_tokens
def test_the_operations_equal_the_reference(
    shape: Shape, num_new: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that no query sees are NaN, so that reading one would show; two blocks are gathered at a time."""
    block_numbers = shape.num_kv_heads * shape.block_size * shape.head_dim_k
    monkeypatch.setattr(torch_fallback, "PIECE_NUMBERS", 2 * block_numbers)
    case = case_of(shape, num_new).to(torch.float32)
    out = torch_fallback.paged_attention(*case.arguments)
    wanted = reference.paged_attention(*case.arguments)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_inputs_are_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    case = make_case(SHAPES["everything"]).to(dtype)
    out = torch_fallback.paged_attention(*case.arguments)
    assert out.dtype == dtype
    exact = case.to(torch.float32)
    wanted = torch_fallback.paged_attention(exact.query, exact.k_pool, exact.v_pool, exact.args)
    assert torch.equal(out, wanted.to(dtype))


@pytest.mark.parametrize(
    "visible", [{}, {"window": 40}, {"chunk": 40}], ids=["all", "window of 40", "chunks of 40"]
)
def test_prompts_longer_than_a_piece_are_cut_without_a_seam(visible: dict[str, int]) -> None:
    length = 2 * torch_fallback.PIECE_LEN + 3
    case = make_case(Shape(num_heads=2, num_kv_heads=1, head_dim_k=4, **visible), (length, 5))
    small = case.to(torch.float32)
    out = torch_fallback.paged_attention(small.query, small.k_pool, small.v_pool, small.args)
    torch.testing.assert_close(out.double(), dense(case), rtol=1e-4, atol=1e-5)


def test_a_sequence_alone_gets_what_it_gets_in_a_batch() -> None:
    """Trap 28: rows of other sequences change nothing, not even the last bit."""
    case = make_case(Shape(num_new=20)).to(torch.float32)
    together = torch_fallback.paged_attention(*case.arguments)
    for number, span in enumerate(case.args.spans):
        out = torch_fallback.paged_attention(*case.single(span).arguments)
        assert torch.equal(out, together[span.q_start : span.q_end]), f"{LENGTHS[number]} tokens"


def test_queries_need_not_be_contiguous() -> None:
    case = make_case(Shape()).to(torch.float32)
    strided = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided.is_contiguous()
    out = paged_attention(strided, case.k_pool, case.v_pool, case.args)
    assert torch.equal(out, paged_attention(*case.arguments))
