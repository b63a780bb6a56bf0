"""What a shadowed layer answers: dense attention where it sees all, what it promises where it does not."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.shadow.copy_on_write_rows import PAGE_ROWS
from kvchat.engine.formats.shadow.layer import ShadowLayer
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.working_set import EMPTY
from kvchat.errors import OutOfMemory
from tests.engine.formats.shadow.contexts import (
    GROUP,
    HEAD_DIM,
    NUM_KV_HEADS,
    RANK,
    ROTARY,
    SCALE,
    SMALL,
    VALUE_DIM,
    WIDTH,
    Context,
    dense,
    distance,
    free,
    make_context,
    randn,
    shadow_of,
    turn,
)
from tests.engine.formats.shadow.expected_bytes import expected_device_bytes

pytestmark = pytest.mark.cpu

PROMPT = 403
CHUNK = SMALL.chunk_size
ALL = replace(SMALL, budget=4096)


def run(layer: ShadowLayer, context: Context, start: int, end: int) -> torch.Tensor:
    return layer.attend(*context.part(start, end), SCALE)[0]


@pytest.mark.parametrize("rank", [RANK, WIDTH])
def test_over_all_chunks_and_the_rank_of_the_keys_it_is_dense_attention(rank: int) -> None:
    """Prompt, generated tokens, compressed ones and a long follow-up alike."""
    context = make_context(PROMPT + 200, rank=RANK if rank == RANK else WIDTH)
    layer = shadow_of(context, PROMPT, replace(ALL, rank=rank))
    found = [run(layer, context, at, at + 1) for at in range(PROMPT, PROMPT + 90)]
    found.append(run(layer, context, PROMPT + 90, PROMPT + 200))
    assert layer.num_compressed > PROMPT // CHUNK
    assert distance(torch.cat(found), dense(context, PROMPT, PROMPT + 200)) < 5e-6


@pytest.mark.parametrize("exact_len", [512, 32])
def test_of_300_generated_tokens_each_is_attended_to_from_its_own_step_on(exact_len: int) -> None:
    """The size of the exact buffer is no limit, whether tokens stay in it or are compressed on the way."""
    context = make_context(PROMPT + 300)
    layer = shadow_of(context, PROMPT, replace(SMALL, exact_len=exact_len))
    prompt_tail = PROMPT - (PROMPT // CHUNK - SMALL.num_local) * CHUNK
    seen = SMALL.num_always * CHUNK + SMALL.budget
    most_compressed = 0
    for number in range(300):
        _, (step,) = layer.attend(*context.part(PROMPT + number, PROMPT + number + 1), SCALE)
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
    assert (layer.segments[0].directions is None) is is_chosen
    run(layer, context, PROMPT, PROMPT + 1)
    assert (where in layer.stock.working.slots[1].tolist()) is is_chosen


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


def test_the_working_set_holds_what_was_chosen_with_the_stores_values_and_the_restored_keys() -> None:
    context = make_context(PROMPT + 120)
    layer = shadow_of(context, PROMPT)
    stock, rates = layer.stock, []
    for at in range(PROMPT, PROMPT + 120):
        layer.compress_full()
        wanted = [wanted_chunks(layer, context.query[at], head) for head in range(NUM_KV_HEADS)]
        held = stock.working.slots.clone()
        _, (step,) = layer.attend(*context.part(at, at + 1), SCALE)
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
    warm, cold = shadow_of(context, PROMPT), shadow_of(context, PROMPT)
    run(warm, context, PROMPT, PROMPT + 39)
    run(cold, context, PROMPT, PROMPT + 39)
    cold.stock.working.slots.fill_(-1)
    cold.stock.working.keys.fill_(float("nan"))
    out = [layer.attend(*context.part(PROMPT + 39, PROMPT + 40), SCALE) for layer in (warm, cold)]
    assert out[0][1][0].num_fetched < out[1][1][0].num_fetched == out[1][1][0].num_wanted
    order = [layer.stock.working.slots.sort(dim=1).indices for layer in (warm, cold)]
    held = [
        layer.stock.working.keys[torch.arange(2)[:, None], at]
        for layer, at in zip((warm, cold), order, strict=True)
    ]
    assert torch.equal(*held)
    torch.testing.assert_close(out[0][0], out[1][0], atol=1e-6, rtol=1e-6)


def drifting(num_before: int, num_after: int) -> Context:
    """Return tokens whose keys lie on one basis, and then about on another."""
    before = torch.cat(
        [
            randn(length, RANK, seed=seed) @ randn(RANK, WIDTH, seed=90 + seed)
            for seed, length in ((1, num_before), (2, num_after))
        ]
    )
    before += 0.2 * before.std() * randn(*before.shape, seed=5)
    positions = torch.arange(len(before))
    keys = ROTARY.turned(before.view(-1, NUM_KV_HEADS, HEAD_DIM), positions)
    return replace(make_context(len(before)), keys=keys)


def test_a_chunk_chosen_before_its_keys_came_to_lie_on_a_basis_changes_no_bit() -> None:
    """Keys that left the first basis are exact, and chosen, until they have a second one: what was held then
    is what a fetch brings now, and so it is answered.
    """
    context = drifting(PROMPT, 120)
    layer = shadow_of(context, PROMPT, replace(SMALL, exact_len=8, energy=0.9))
    chosen_while_exact = set()
    for at in range(PROMPT, PROMPT + 120):
        layer.compress_full()
        slots = layer.stock.working.slots
        fetched = layer.fork()
        fetched.stock.working.keys = layer.stock.working.keys.clone()
        for head, chunks in enumerate(slots):
            places = (chunks != EMPTY).nonzero().flatten()
            keys = layer.stock.compressed_keys.take(head, chunks[places])
            fetched.stock.working.keys[head, places] = keys
        wanted = run(fetched, context, at, at + 1)
        assert torch.equal(run(layer, context, at, at + 1), wanted)
        fetched.release()
        newest = layer.segments[-1]
        if newest.directions is None:
            chosen_while_exact |= set(slots[slots >= newest.first_chunk].tolist())
    assert chosen_while_exact
    assert len(layer.segments) > 1
    assert all(segment.directions is not None and segment.lost > 1e-3 for segment in layer.segments)


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
    out, steps = layer.attend(*context.part(PROMPT, PROMPT + 64), SCALE)
    assert len(steps) > 2
    for number, chunk in enumerate(places):
        found = out[13 + 32 * number, 0]
        assert distance(found, context.values[chunk * CHUNK + 1, 0]) < 0.01


def test_a_follow_up_gives_the_same_wherever_it_was_cut_between_blocks() -> None:
    context = make_context(PROMPT + 250)
    whole = shadow_of(context, PROMPT)
    wanted, steps = whole.attend(*context.part(PROMPT, PROMPT + 250), SCALE)
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
    """As two that never met, through compressing, working sets and all; nothing is copied at the fork."""
    context, other = make_context(PROMPT + 150), make_context(PROMPT + 150, seed=50)
    changed = Context(
        query=other.query,
        keys=torch.cat((context.keys[: PROMPT + 21], other.keys[PROMPT + 21 :])),
        values=torch.cat((context.values[: PROMPT + 21], other.values[PROMPT + 21 :])),
    )
    first = shadow_of(context, PROMPT)
    run(first, context, PROMPT, PROMPT + 21)
    host = {page.data_ptr() for page in first.stock.host_tensors()}
    second = first.fork()
    assert {page.data_ptr() for page in second.stock.host_tensors()} == host
    alone = [shadow_of(context, PROMPT) for _ in range(2)]
    for layer in alone:
        run(layer, context, PROMPT, PROMPT + 21)
    for at in range(PROMPT + 21, PROMPT + 150, 3):
        for layer, single, text in ((first, alone[0], context), (second, alone[1], changed)):
            found = run(layer, text, at, at + 3)
            assert torch.equal(found, run(single, text, at, at + 3))
    assert first.num_compressed == second.num_compressed > PROMPT // CHUNK


def test_what_is_allocated_is_what_was_expected_and_what_the_budgets_say() -> None:
    context, budgets = make_context(2048), free()
    layer = shadow_of(context, 2043, budgets=budgets)
    tensors = layer.stock.device_tensors()
    allocated = {t.data_ptr(): t.untyped_storage().nbytes() for part in tensors.values() for t in part}
    numbers = sum(t.nbytes for t in tensors["numbers"])
    assert sum(allocated.values()) - numbers == budgets.device.used_bytes
    spec = FullSpec(num_kv_heads=NUM_KV_HEADS, head_dim_k=HEAD_DIM, head_dim_v=VALUE_DIM, dtype="F32")
    expected = expected_device_bytes(SMALL, spec, 2043)
    spare = (PAGE_ROWS - layer.tail_len) * spec.token_bytes  # a page of the tail
    assert budgets.device.used_bytes == expected + spare
    assert budgets.host.used_bytes == layer.num_compressed * CHUNK * NUM_KV_HEADS * VALUE_DIM * 4
    layer.release()
    assert budgets.device.used_bytes == budgets.host.used_bytes == 0


@pytest.mark.parametrize("num_calls", [0, 1])
def test_an_error_of_any_kind_on_the_way_to_a_shadow_gives_all_bytes_back(num_calls: int) -> None:
    """Keys before rotation are asked for twice: for a basis, and for what lies on it."""
    context, budgets, calls = make_context(PROMPT), free(), []

    def breaks_off(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if positions.shape[1] > 100:
            calls.append(budgets.device.used_bytes)
            if len(calls) > num_calls:
                raise IndexError("no such position")
        return turn(positions)

    rotary, (_, keys, values) = Rotary(breaks_off), context.part(0, PROMPT)
    with pytest.raises(IndexError, match="no such position"):
        ShadowLayer.of_prompt(SMALL, rotary, keys, values, budgets)
    assert len(calls) == num_calls + 1
    assert min(calls) > 0
    assert budgets.device.used_bytes == budgets.host.used_bytes == 0


@pytest.mark.parametrize("place", ["host", "device"])
def test_generated_tokens_that_find_no_room_to_be_compressed_stay_where_they_are(place: str) -> None:
    """Trap 25: the step is refused with the numbers, and goes on from the same tokens once there is room."""
    context, budgets = make_context(PROMPT + 100), free()
    layer, other = shadow_of(context, PROMPT, budgets=budgets), shadow_of(context, PROMPT)
    budget = getattr(budgets, place)
    budget.num_bytes = budget.used_bytes + (1 if place == "host" else 12_000)
    refused_at = None
    for at in range(PROMPT, PROMPT + 100):
        wanted = run(other, context, at, at + 1)
        try:
            found = run(layer, context, at, at + 1)
        except OutOfMemory:
            refused_at = at
            assert layer.num_tokens == at == layer.num_compressed * CHUNK + layer.tail_len
            budget.num_bytes = None
            found = run(layer, context, at, at + 1)
        assert torch.equal(found, wanted)
    assert refused_at is not None
