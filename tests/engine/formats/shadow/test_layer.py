"""What a shadowed layer answers: dense attention where it sees all, what it promises where it does not."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.layer import ShadowLayer
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE as CHUNK
from kvchat.engine.formats.shadow.settings import NUM_LOCAL, PAGE_ROWS
from kvchat.engine.formats.shadow.working_set import EMPTY
from kvchat.engine.kernels.shadow_kv.args import Change
from tests.engine.formats.shadow.contexts import (
    GROUP,
    HEAD_DIM,
    NUM_KV_HEADS,
    RANK,
    REMOTE,
    ROTARY,
    SCALE,
    SMALL,
    VALUE_DIM,
    WIDTH,
    Context,
    attended,
    dense,
    distance,
    make_context,
    randn,
    run,
    seen_chunks,
    shadow_of,
)
from tests.engine.formats.shadow.expected_bytes import expected_device_bytes

pytestmark = pytest.mark.cpu

PROMPT = 403


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("rank", [RANK, WIDTH])
def test_over_all_chunks_and_the_rank_of_the_keys_it_is_dense_attention(
    rank: int, *, is_remote: bool
) -> None:
    """Prompt, generated tokens, compressed ones and a long follow-up alike."""
    context = make_context(PROMPT + 200, rank=RANK if rank == RANK else WIDTH)
    layer = shadow_of(context, PROMPT, replace(SMALL, budget=4096, rank=rank, is_remote=is_remote))
    found = [run(layer, context, at, at + 1) for at in range(PROMPT, PROMPT + 90)]
    found.append(run(layer, context, PROMPT + 90, PROMPT + 200))
    assert layer.num_compressed > PROMPT // CHUNK
    assert distance(torch.cat(found), dense(context, PROMPT, PROMPT + 200)) < 5e-6


@pytest.mark.parametrize("exact_len", [512, 32])
def test_of_300_generated_tokens_each_is_attended_to_from_its_own_step_on(exact_len: int) -> None:
    """The size of the exact buffer is no limit, whether tokens stay in it or are compressed on the way."""
    context = make_context(PROMPT + 300)
    layer = shadow_of(context, PROMPT, replace(SMALL, exact_len=exact_len))
    prompt_tail = PROMPT - (PROMPT // CHUNK - NUM_LOCAL) * CHUNK
    seen = SMALL.num_always * CHUNK + SMALL.budget
    most_compressed = 0
    for number in range(300):
        _, (step,) = attended(layer, context, PROMPT + number, PROMPT + number + 1)
        generated_compressed = layer.num_compressed * CHUNK - (PROMPT - prompt_tail)
        assert step.attended_len == prompt_tail + seen + number + 1 - generated_compressed
        assert layer.num_tokens == PROMPT + number + 1 == layer.num_compressed * CHUNK + layer.tail_len
        most_compressed = generated_compressed
    assert most_compressed == (0 if exact_len == 512 else 288)


@pytest.mark.parametrize(("energy", "is_chosen"), [(1.0, True), (0.0, False)])
def test_a_key_that_its_chunks_landmark_hides_is_found_where_keys_are_exact(
    energy: float, is_chosen: bool
) -> None:
    """The control: with keys on a basis, whose landmarks are all there is, it is not."""
    context = make_context(PROMPT + 1, rank=WIDTH)
    where, query = 21, context.query[-1, GROUP]
    asked = 4 * query / query.norm()
    context.keys[where * CHUNK : (where + 1) * CHUNK, 1] = -asked / (CHUNK - 1)
    context.keys[where * CHUNK + 2, 1] = 4 * asked
    context.keys[where * CHUNK + 3, 1] = -4 * asked
    layer = shadow_of(context, PROMPT, replace(SMALL, energy=energy, rank=RANK, num_outliers=0))
    assert (layer.stock.compressed_keys.segments[0].directions is None) is is_chosen
    run(layer, context, PROMPT, PROMPT + 1)
    assert (where in seen_chunks(layer)[1]) is is_chosen


def test_the_first_chunk_is_always_seen() -> None:
    """However little its landmark says to the queries, and no outlier stands for it."""
    context = make_context(PROMPT)
    layer = shadow_of(context, PROMPT)
    assert (layer.stock.always[:, 0] == 0).all()
    assert (layer.stock.always[:, 1:] > 0).all()
    assert layer.stock.always.shape == (NUM_KV_HEADS, SMALL.num_always)
    keys = layer.stock.always_keys.all().unflatten(0, (NUM_KV_HEADS, -1))
    torch.testing.assert_close(keys[:, 0], context.keys[:CHUNK].transpose(0, 1))


def wanted_chunks(layer: ShadowLayer, query: torch.Tensor, head: int) -> list[int]:
    """Return what one token's queries [H, D] want, from a list of landmarks without those seen anyway."""
    means, always = layer.stock.landmarks.all()[:, head], layer.stock.always[head].tolist()
    left = torch.tensor([chunk for chunk in range(len(means)) if chunk not in always])
    scores = query[head * GROUP : (head + 1) * GROUP] @ means[left].T * SCALE
    weights = scores.softmax(dim=1).amax(dim=0)
    return sorted(left[weights.topk(layer.settings.num_chosen).indices].tolist())


def test_the_working_set_holds_what_was_chosen_with_values_from_blocks_and_the_restored_keys() -> None:
    context = make_context(PROMPT + 120)
    layer = shadow_of(context, PROMPT, REMOTE)
    stock, rates = layer.stock, []
    for at in range(PROMPT, PROMPT + 120):
        layer.compress_full()
        wanted = [wanted_chunks(layer, context.query[at], head) for head in range(NUM_KV_HEADS)]
        held = stock.working.slots.clone()
        _, (step,) = attended(layer, context, at, at + 1)
        for head in range(NUM_KV_HEADS):
            assert sorted(stock.working.slots[head].tolist()) == wanted[head]
            tokens = (stock.working.slots[head][:, None] * CHUNK + torch.arange(CHUNK)).flatten()
            assert torch.equal(stock.working.values[head].flatten(0, 1), context.values[tokens, head])
            torch.testing.assert_close(
                stock.working.keys[head].flatten(0, 1), context.keys[tokens, head], atol=1e-4, rtol=1e-4
            )
        stays = stock.working.slots == held
        assert step.num_fetched == int((~stays).sum())
        rates.append(step.num_fetched / step.num_wanted)
    assert rates[0] == 1
    assert 0 < sum(rates) / len(rates) < 1


def test_whether_a_chunk_was_held_or_fetched_changes_no_bit() -> None:
    context = make_context(PROMPT + 40)
    warm, cold = shadow_of(context, PROMPT, REMOTE), shadow_of(context, PROMPT, REMOTE)
    run(warm, context, PROMPT, PROMPT + 39)
    run(cold, context, PROMPT, PROMPT + 39)
    cold.stock.working.slots.fill_(EMPTY)
    cold.stock.working.keys.fill_(float("nan"))
    out = [attended(layer, context, PROMPT + 39, PROMPT + 40) for layer in (warm, cold)]
    assert out[0][1][0].num_fetched < out[1][1][0].num_fetched == out[1][1][0].num_wanted
    order = [layer.stock.working.slots.sort(dim=1).indices for layer in (warm, cold)]
    held = [
        layer.stock.working.keys[torch.arange(2)[:, None], at]
        for layer, at in zip((warm, cold), order, strict=True)
    ]
    assert torch.equal(*held)
    torch.testing.assert_close(out[0][0], out[1][0], atol=1e-6, rtol=1e-6)


def drifting(num_before: int, num_after: int, noise: float) -> Context:
    """Return tokens whose keys lie on one basis, and then on another, but for some noise."""
    before = torch.cat(
        [
            randn(length, RANK, seed=seed) @ randn(RANK, WIDTH, seed=90 + seed)
            for seed, length in ((1, num_before), (2, num_after))
        ]
    )
    before += noise * before.std() * randn(*before.shape, seed=5)
    positions = torch.arange(len(before))
    keys = ROTARY.turned(before.view(-1, NUM_KV_HEADS, HEAD_DIM), positions)
    return replace(make_context(len(before)), keys=keys)


def test_a_chunk_chosen_before_its_keys_came_to_lie_on_a_basis_changes_no_bit() -> None:
    """Keys that left the first basis are exact, and chosen, until they have a second one: what was held then
    is what a fetch brings now, and so it is answered.
    """
    context = drifting(PROMPT, 120, 0.2)
    layer = shadow_of(context, PROMPT, replace(REMOTE, exact_len=8, energy=0.9))
    chosen_while_exact = set()
    turns = ROTARY.turns(PROMPT + 120, torch.device("cpu"))
    for at in range(PROMPT, PROMPT + 120):
        layer.compress_full()
        slots = layer.stock.working.slots
        fetched = layer.fork()
        held = Change(slots=slots, is_missing=slots != EMPTY)
        layer.stock.compressed_keys.restore(held, turns, fetched.stock.working.keys)
        wanted = run(fetched, context, at, at + 1)
        assert torch.equal(run(layer, context, at, at + 1), wanted)
        fetched.release()
        newest = layer.stock.compressed_keys.segments[-1]
        if newest.directions is None:
            chosen_while_exact |= set(slots[slots >= newest.first_chunk].tolist())
    assert chosen_while_exact
    assert len(layer.stock.compressed_keys.segments) > 1
    assert layer.stock.compressed_keys.are_on_bases


def test_a_follow_up_of_many_tokens_chooses_for_each_block_of_queries() -> None:
    """Each of two questions, in one message, finds its own place: the budget holds one of both."""
    settings = replace(SMALL, budget=8, rank=WIDTH)
    context = make_context(PROMPT + 64)
    places = (9, 33)
    for number, chunk in enumerate(places):
        ask = context.query[PROMPT + 13 + 32 * number, 0]
        context.keys[chunk * CHUNK + 1, 0] = 60 * ask / ask.norm()
        context.query[PROMPT + 13 + 32 * number, 0] = 60 * ask / ask.norm()
    layer = shadow_of(context, PROMPT, replace(settings, num_outliers=0))
    out, steps = attended(layer, context, PROMPT, PROMPT + 64)
    assert len(steps) > 2
    for number, chunk in enumerate(places):
        found = out[13 + 32 * number, 0]
        assert distance(found, context.values[chunk * CHUNK + 1, 0]) < 0.01


def test_a_follow_up_gives_the_same_wherever_it_was_cut_between_blocks() -> None:
    context = make_context(PROMPT + 250)
    whole = shadow_of(context, PROMPT)
    wanted, steps = attended(whole, context, PROMPT, PROMPT + 250)
    sizes = [len(step.out) for step in steps]
    assert max(sizes) <= SMALL.query_block
    assert sizes[:2] == [-PROMPT % SMALL.query_block, SMALL.query_block]
    for stride in (1, 2, 5):
        ends = [PROMPT + sum(sizes[:number]) for number in range(0, len(sizes), stride)] + [PROMPT + 250]
        layer = shadow_of(context, PROMPT)
        found = torch.cat([run(layer, context, start, end) for start, end in pairwise(ends)])
        assert torch.equal(found, wanted)
        assert layer.num_compressed == whole.num_compressed


def test_two_sequences_of_one_shadow_go_on_independently() -> None:
    """As two that never met, through compressing, working sets and all; no page is copied at the fork."""
    context, other = make_context(PROMPT + 150), make_context(PROMPT + 150, seed=50)
    changed = Context(
        query=other.query,
        keys=torch.cat((context.keys[: PROMPT + 21], other.keys[PROMPT + 21 :])),
        values=torch.cat((context.values[: PROMPT + 21], other.values[PROMPT + 21 :])),
    )
    first = shadow_of(context, PROMPT, REMOTE)
    run(first, context, PROMPT, PROMPT + 21)
    second = first.fork()
    for name in ("keys", "bases", "landmarks", "exact"):
        pages, others = (layer.stock.device_tensors()[name] for layer in (first, second))
        assert [page.data_ptr() for page in pages] == [page.data_ptr() for page in others]
    alone = [shadow_of(context, PROMPT, REMOTE) for _ in range(2)]
    for layer in alone:
        run(layer, context, PROMPT, PROMPT + 21)
    for at in range(PROMPT + 21, PROMPT + 150, 3):
        for layer, single, text in ((first, alone[0], context), (second, alone[1], changed)):
            found = run(layer, text, at, at + 3)
            assert torch.equal(found, run(single, text, at, at + 3))
    assert first.num_compressed == second.num_compressed > PROMPT // CHUNK


def test_what_is_allocated_is_what_was_expected_and_what_is_counted() -> None:
    context, held = make_context(2048), Held()
    layer = shadow_of(context, 2043, REMOTE, held)
    tensors = layer.stock.device_tensors()
    allocated = {t.data_ptr(): t.untyped_storage().nbytes() for part in tensors.values() for t in part}
    numbers = sum(t.nbytes for t in tensors["numbers"])
    assert sum(allocated.values()) - numbers == held.num_bytes
    spec = FullSpec(num_kv_heads=NUM_KV_HEADS, head_dim_k=HEAD_DIM, head_dim_v=VALUE_DIM, dtype="F32")
    expected = expected_device_bytes(SMALL, spec, 2043)
    spare = (PAGE_ROWS - layer.tail_len) * spec.token_bytes  # a page of the tail
    assert held.num_bytes == expected + spare
    layer.release()
    assert held.num_bytes == 0
