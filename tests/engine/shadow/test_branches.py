"""Shadows of branches: keys and values straight from blocks, and which shadows stay."""

from dataclasses import replace

import pytest
import torch

from kvchat.engine.api.ids import BranchId
from kvchat.engine.api.view import View
from kvchat.engine.kernels.shadow_kv import Choice, reference
from kvchat.engine.shadow.branches import BlockChunks, Shadows
from kvchat.engine.shadow.layer import ShadowLayer
from kvchat.engine.shadow.settings import CODED_LEN
from tests.engine.shadow.contexts import (
    HEAD_DIM,
    NUM_KV_HEADS,
    RANK,
    ROTARY,
    SCALE,
    SMALL,
    VALUE_DIM,
    WIDTH,
    Context,
    free,
    make_context,
    randn,
    shadow_of,
)

pytestmark = pytest.mark.cpu

CHUNK, BLOCK, PROMPT = SMALL.chunk_size, 16, 403


def in_blocks(context: Context) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return pools with a context's keys and values in blocks of a random order, and the blocks."""
    num_blocks = -(-len(context.keys) // BLOCK)
    blocks = torch.randperm(num_blocks + 3, generator=torch.Generator().manual_seed(1))[:num_blocks]
    pools = []
    for side in (context.keys, context.values):
        pool = torch.full((num_blocks + 3, NUM_KV_HEADS, BLOCK, side.shape[2]), float("nan"))
        whole = torch.zeros(num_blocks * BLOCK, *side.shape[1:])
        whole[: len(side)] = side
        pool[blocks] = whole.unflatten(0, (-1, BLOCK)).transpose(1, 2)
        pools.append(pool)
    return (pools[0], pools[1]), blocks


def test_a_chunk_of_a_head_is_read_where_it_lies() -> None:
    context = make_context(PROMPT)
    source = BlockChunks(*in_blocks(context))
    heads, chunks = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 31, 7, 49])
    keys, values = source.take(heads, chunks)
    assert keys.shape == (4, CHUNK, HEAD_DIM)
    assert values.shape == (4, CHUNK, VALUE_DIM)
    for place, (head, chunk) in enumerate(zip(heads.tolist(), chunks.tolist(), strict=True)):
        tokens = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        assert torch.equal(keys[place], context.keys[tokens, head])
        assert torch.equal(values[place], context.values[tokens, head])


def test_blocks_that_chunks_do_not_fit_into_are_not_read() -> None:
    pool = torch.zeros(3, NUM_KV_HEADS, BLOCK, HEAD_DIM)
    assert BlockChunks.takes((pool, pool))
    assert not BlockChunks.takes((pool[:, :, :12], pool[:, :, :12]))
    assert not BlockChunks.takes((pool[:, :, ::2], pool))


def test_what_is_read_from_blocks_answers_as_what_was_restored_and_counts_alike() -> None:
    """Keys that lie on their basis as a whole, so that nothing is lost by restoring them."""
    context = make_context(PROMPT + 60)
    restored = shadow_of(context, PROMPT)
    budgets = free()
    read = shadow_of(context, PROMPT, replace(SMALL, is_sourced=True), budgets)
    source = BlockChunks(*in_blocks(context))
    for at in range(PROMPT, PROMPT + 60):
        part = context.part(at, at + 1)
        wanted, (kept,) = restored.attend(*part, SCALE)
        found, (step,) = read.attend(*part, SCALE, source)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        assert (step.num_wanted, step.num_fetched) == (kept.num_wanted, kept.num_fetched)
        assert step.attended_len == kept.attended_len
    assert 0 < step.num_fetched < step.num_wanted
    assert read.num_sealed == restored.num_sealed > PROMPT // CHUNK - SMALL.num_local
    assert [len(segment.rows) for segment in read.segments] == [restored.num_sealed]
    assert budgets.host.used_bytes == 0
    parts = read.stock.device_tensors()
    assert sum(tensor.nbytes for name in ("keys", "working set") for tensor in parts[name]) == 0


@pytest.mark.parametrize(
    ("energy", "start"), [(0.99, PROMPT), (1.0, PROMPT), (1.0, PROMPT + CODED_LEN)], ids=str
)
def test_a_step_over_blocks_is_answered_as_the_definition_says(energy: float, start: int) -> None:
    """One token, as many as a kernel takes, and more; weighed by landmarks, by keys, or by codes of them."""
    sizes = (1, 12, 16, 16, 40)
    context = make_context(start + sum(sizes), rank=RANK if energy < 1 else WIDTH)
    settings = replace(SMALL, is_sourced=True, energy=energy, query_block=64, exact_len=128)
    layer, source = shadow_of(context, start, settings), BlockChunks(*in_blocks(context))
    (segment,) = layer.segments
    assert (segment.directions is None) is (energy == 1)
    assert (segment.scales is not None) is (start > PROMPT)
    at, before, found = start, None, []
    for size in sizes:
        query, keys, values = context.part(at, at + size)
        out, steps = layer.attend(query, keys, values, SCALE, source)
        assert len(steps) == 1
        at += size
        choice = Choice(
            blocks=source.blocks,
            stands=tuple(layer.stock.sealed_keys.stands(layer.stock.landmarks)),
            always=layer.stock.always,
            num_chosen=layer.settings.num_chosen,
            chunk_size=CHUNK,
            num_tokens=at,
            softmax_scale=SCALE,
            before=before,
        )
        wanted = reference.chosen_attention(query, source.pools, choice)
        torch.testing.assert_close(out, wanted.out, atol=1e-5, rtol=1e-5)
        assert steps[0].num_fetched == wanted.num_new
        before = wanted.chosen
        found.append(wanted.num_new)
    assert found[0] == NUM_KV_HEADS * layer.settings.num_chosen
    assert 0 < min(found) < found[0]


def test_tokens_that_were_answered_elsewhere_leave_the_shadow_that_answering_them_leaves() -> None:
    """Whatever was sealed meanwhile, at whatever cuts they came."""
    context = make_context(PROMPT + 150)
    answered, extended = shadow_of(context, PROMPT), shadow_of(context, PROMPT)
    for at in range(PROMPT, PROMPT + 149):
        answered.attend(*context.part(at, at + 1), SCALE)
    _, keys, values = context.part(PROMPT, PROMPT + 149)
    extended.extend(keys, values)
    assert extended.num_sealed == answered.num_sealed > PROMPT // CHUNK
    last = context.part(PROMPT + 149, PROMPT + 150)
    found = [layer.attend(*last, SCALE)[0] for layer in (answered, extended)]
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-6)


def shadows_with(limit_bytes: int) -> tuple[Shadows, list[ShadowLayer]]:
    """Return shadows of three branches, each of one layer."""
    shadows = Shadows(View(rule="shadow", budget=64, is_forced=True), {0: ROTARY}, limit_bytes)
    keys, values = randn(PROMPT, NUM_KV_HEADS, HEAD_DIM), randn(PROMPT, NUM_KV_HEADS, VALUE_DIM, seed=1)
    made = []
    for branch in range(3):
        shadows.step(BranchId(branch), PROMPT, PROMPT, torch.zeros(0))
        made.append(shadows.made(0, PROMPT, keys, values))
        shadows._branches[BranchId(branch)].layers[0] = made[-1]
    return shadows, made


def test_those_used_longest_ago_make_room_but_not_those_of_the_step() -> None:
    whole = shadows_with(0)[0].used_bytes
    shadows, _ = shadows_with(whole * 2 // 3)
    shadows.step(BranchId(0), PROMPT, PROMPT, torch.zeros(0))
    shadows.trim({BranchId(2)})
    assert list(shadows._branches) == [2, 0]
    assert shadows.used_bytes == whole * 2 // 3
    shadows.limit_bytes = 0
    shadows.trim({BranchId(2)})
    assert list(shadows._branches) == [2]
    shadows.forget(BranchId(2))
    shadows.forget(BranchId(2))
    assert shadows.used_bytes == 0


def test_a_shadow_that_is_to_begin_elsewhere_is_let_go() -> None:
    shadows, _ = shadows_with(2**40)
    before = shadows.used_bytes
    shadows.step(BranchId(1), PROMPT + 8, PROMPT + 8, torch.zeros(0))
    assert shadows.used_bytes == before * 2 // 3
