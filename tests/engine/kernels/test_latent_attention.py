"""Latent attention is attention over expanded keys and values, whichever way it is computed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_attention import reference, torch_fallback
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.latent_record import reference as record_reference
from kvchat.engine.kernels.latent_record.torch_fallback import unpack
from kvchat.engine.kernels.paged_attention.args import SequenceSpan

pytestmark = pytest.mark.cpu

NUM_HEADS, KEY_DIM, ROPE_DIM, VALUE_DIM, RANK, BLOCK_SIZE = 3, 6, 4, 5, 16, 16
"""Keys and values differ in size, so that their projections cannot be exchanged unnoticed."""
SPANS = ((0, 20), (100, 1), (3, 1), (50, 40), (0, 1), (63, 1), (64, 2))
"""Tokens before the queries, and queries, of each sequence."""

Problem = tuple[Tensor, Tensor, LatentArgs]


def make_problem(
    spans: Sequence[tuple[int, int]] = SPANS, rank: int = RANK, value_scale: float = 1.0
) -> Problem:
    """Return queries, a pool with permuted blocks and NaN in every slot that nobody sees, and arguments.

    Args:
        value_scale: the size of latents; the projections make up for it.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    counts = [-(-(before + new) // BLOCK_SIZE) for before, new in spans]
    tables = torch.randperm(sum(counts) + 2, generator=generator)[: sum(counts)].split(counts)
    pool = torch.full((sum(counts) + 2, 1, BLOCK_SIZE, rank + ROPE_DIM), float("nan"), dtype=torch.float64)
    made, row = [], 0
    for (before, new), blocks in zip(spans, tables, strict=True):
        for position in range(before + new):
            pool[blocks[position // BLOCK_SIZE], 0, position % BLOCK_SIZE] = random(rank + ROPE_DIM)
        made.append(SequenceSpan(row, row + new, before, 0, blocks))
        row += new
    args = LatentArgs(
        spans=made,
        softmax_scale=0.3,
        k_up=0.3 * (RANK / rank) ** 0.5 / value_scale * random(NUM_HEADS, KEY_DIM, rank),
        v_up=0.3 * (RANK / rank) ** 0.5 / value_scale * random(NUM_HEADS, VALUE_DIM, rank),
    )
    pool[..., :rank] *= value_scale
    return random(row, NUM_HEADS, KEY_DIM + ROPE_DIM), pool, args


def single(problem: Problem) -> Problem:
    query, pool, args = problem
    return query.float(), pool.float(), replace(args, k_up=args.k_up.float(), v_up=args.v_up.float())


def packed(problem: Problem, dtype: torch.dtype) -> Problem:
    """Return the problem over 8-bit records; those of slots that nobody sees have NaN for their scales."""
    query, pool, args = problem
    rank = args.k_up.shape[2]
    record = Fp8Record(rank, ROPE_DIM)
    rows = pool.flatten(0, 2).float()
    records = record_reference.pack(rows[:, :rank], rows[:, rank:], record).view(*pool.shape[:3], -1)
    projections = {"k_up": args.k_up.to(dtype), "v_up": args.v_up.to(dtype)}
    return query.to(dtype), records, replace(args, record=record, **projections)


def dense(problem: Problem) -> Tensor:
    """Return attention from whole matrices of keys and values, with a mask, in float64."""
    query, pool, args = problem
    results = []
    for span in args.spans:
        rows = pool[span.blocks, 0].flatten(0, 1)[: span.position + span.q_end - span.q_start]
        keys = torch.einsum("sr,hdr->hsd", rows[:, :RANK], args.k_up)
        keys = torch.cat([keys, rows[:, RANK:].expand(NUM_HEADS, -1, -1)], dim=2)
        values = torch.einsum("sr,hdr->hsd", rows[:, :RANK], args.v_up)
        scores = torch.einsum("qhd,hsd->hqs", query[span.q_start : span.q_end], keys) * args.softmax_scale
        mask = torch.ones(scores.shape[1:], dtype=torch.bool).triu(span.position + 1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(dim=2)
        results.append(torch.einsum("hqs,hsd->qhd", weights, values))
    return torch.cat(results)


def test_the_reference_is_attention_over_expanded_keys_and_values() -> None:
    problem = make_problem()
    torch.testing.assert_close(reference.latent_attention(*problem), dense(problem), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("most_scores", [2**24, 960], ids=["one slice", "many slices"])
@pytest.mark.parametrize("fewest", [1, 8, 192], ids=["all expanded", "mixed", "all absorbed"])
def test_both_ways_and_their_mixture_equal_the_reference(
    fewest: int, most_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_fallback, "FEWEST_TO_EXPAND", fewest)
    monkeypatch.setattr(torch_fallback, "MOST_SCORES", most_scores)
    problem = single(make_problem())
    out = torch_fallback.latent_attention(*problem)
    torch.testing.assert_close(out, reference.latent_attention(*problem), rtol=1e-5, atol=1e-5)


@given(cut=st.integers(1, 69), before=st.integers(0, 40), fewest=st.sampled_from([1, 20, 192]))
def test_a_prompt_cut_anywhere_gives_the_same_answers(cut: int, before: int, fewest: int) -> None:
    query, pool, args = single(make_problem([(before, 70)]))
    (span,) = args.spans
    middle = before + cut
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_fallback, "FEWEST_TO_EXPAND", fewest)
        first = replace(span, q_end=cut)
        second = replace(span, q_end=70 - cut, position=middle)
        parts = [
            torch_fallback.latent_attention(query[:cut], pool, replace(args, spans=[first])),
            torch_fallback.latent_attention(query[cut:], pool, replace(args, spans=[second])),
        ]
        whole = torch_fallback.latent_attention(query, pool, args)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)


def test_a_sequence_alone_gets_what_it_gets_in_a_batch() -> None:
    query, pool, args = single(make_problem())
    together = torch_fallback.latent_attention(query, pool, args)
    for span in args.spans:
        alone = replace(span, q_start=0, q_end=span.q_end - span.q_start)
        rows = slice(span.q_start, span.q_end)
        out = torch_fallback.latent_attention(query[rows], pool, replace(args, spans=[alone]))
        torch.testing.assert_close(out, together[rows], rtol=1e-6, atol=1e-6)


def test_sixteen_bit_latents_are_attended_to_in_float32() -> None:
    query, pool, args = make_problem()
    half = (
        query.bfloat16(),
        pool.bfloat16(),
        replace(args, k_up=args.k_up.bfloat16(), v_up=args.v_up.bfloat16()),
    )
    wanted = reference.latent_attention(*half)
    out = torch_fallback.latent_attention(*half)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wanted, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("fewest", [1, 8, 192], ids=["all expanded", "mixed", "all absorbed"])
@pytest.mark.parametrize("rank", [RANK, 200])
def test_records_are_attended_to_as_what_is_read_back_from_them(
    rank: int, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_fallback, "FEWEST_TO_EXPAND", fewest)
    query, pool, args = problem = packed(make_problem(rank=rank), torch.float32)
    assert args.record is not None
    rows = record_reference.unpack(pool.flatten(0, 2), args.record).view(*pool.shape[:3], -1)
    wanted = reference.latent_attention(query, rows, replace(args, record=None))
    torch.testing.assert_close(reference.latent_attention(*problem), wanted, rtol=0, atol=0)
    torch.testing.assert_close(torch_fallback.latent_attention(*problem), wanted, rtol=1e-5, atol=1e-5)


def test_records_are_read_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the whole cache: what exists in numbers at a time is one slice of the context."""
    read: list[int] = []

    def watched(records: Tensor, record: Fp8Record) -> Tensor:
        read.append(len(records))
        return unpack(records, record)

    monkeypatch.setattr(torch_fallback, "unpack", watched)
    monkeypatch.setattr(torch_fallback, "MOST_ROWS", 64)
    torch_fallback.latent_attention(*packed(make_problem([(999, 1)]), torch.float32))
    assert read == [64] * 15 + [40]
