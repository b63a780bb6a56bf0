"""A shadow of blocks in host memory, as a GPU has it: chooses and answers what a processor's does.

In plain torch operations here; `test_remote_interpreted` has the same kernels that a GPU runs.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvchat.engine.api.view import View
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.layer import ShadowLayer
from kvchat.engine.formats.shadow.memory import table_bytes
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, TABLE_STEP, most_bytes
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.shadow.working_set import EMPTY, WorkingSet
from kvchat.engine.kernels.shadow_kv import torch_fallback
from kvchat.engine.kernels.shadow_kv.args import Change
from kvchat.engine.kernels.stream_protocol import Stream
from tests.engine.formats.shadow.contexts import (
    HEAD_DIM,
    NUM_KV_HEADS,
    REMOTE,
    SCALE,
    SMALL,
    VALUE_DIM,
    WIDTH,
    Context,
    attended,
    distance,
    in_blocks,
    make_context,
    randn,
    run,
    seen_chunks,
    shadow_of,
)
from tests.engine.formats.shadow.test_layer import drifting
from tests.engine.memory.delayed_streams import DelayedStreams
from tests.engine.test_steps_without_waiting import NoCopies

pytestmark = pytest.mark.cpu

PROMPT = 403
ROWS, PLACES, CHUNKS = 2, 6, 20


def both(context: Context, settings_of: dict[str, object]) -> tuple[ShadowLayer, ShadowLayer]:
    """Return the same shadow as a GPU and as a processor has it."""
    remote = shadow_of(context, PROMPT, replace(REMOTE, **settings_of))  # type: ignore[arg-type]
    return remote, shadow_of(context, PROMPT, replace(SMALL, **settings_of))  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", [1, 3, 37])
def test_it_chooses_and_answers_what_a_processors_does(stride: int) -> None:
    """Token by token, in short messages, and in one that several blocks of queries choose for."""
    context = make_context(PROMPT + 150)
    remote, known = both(context, {})
    for at in range(PROMPT, PROMPT + 150 - stride, stride):
        out, steps = attended(remote, context, at, at + stride)
        wanted, wanted_steps = attended(known, context, at, at + stride)
        assert seen_chunks(remote) == seen_chunks(known)
        torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)
        assert [step.attended_len for step in steps] == [step.attended_len for step in wanted_steps]
        assert [int(step.num_fetched) for step in steps] == [step.num_fetched for step in wanted_steps]
    assert remote.num_compressed == known.num_compressed > PROMPT // CHUNK_SIZE


def test_blocks_of_another_text_show() -> None:
    """The control of the test above: values do come from blocks."""
    context = make_context(PROMPT + 1)
    other = in_blocks(make_context(PROMPT + 1, seed=7))
    remote, known = both(context, {})
    new = context.part(PROMPT, PROMPT + 1)
    wanted = run(known, context, PROMPT, PROMPT + 1)
    assert distance(remote.attend(*new, SCALE, other)[0], wanted) > 0.1


def test_keys_that_no_basis_holds_are_read_in_blocks() -> None:
    """Some on a first basis, some exact until they have a second one; then all on no basis at all."""
    context = drifting(PROMPT, 120, 0)
    remote, known = both(context, {"exact_len": 8})
    num_exact = 0
    for at in range(PROMPT, PROMPT + 120):
        found, wanted = (run(layer, context, at, at + 1) for layer in (remote, known))
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        assert seen_chunks(remote) == seen_chunks(known)
        num_exact += not remote.stock.compressed_keys.are_on_bases
    assert 0 < num_exact < 120
    wide = make_context(PROMPT + 9, rank=WIDTH)
    remote, known = both(wide, {})
    assert remote.stock.compressed_keys.segments[0].directions is None
    found, wanted = (run(layer, wide, PROMPT, PROMPT + 9) for layer in (remote, known))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_device_holds_no_values_but_those_in_sight_and_no_more_than_was_foreseen() -> None:
    """What is allocated is what is counted, tables of the embedding included."""
    context, held = make_context(2048), Held()
    layer = shadow_of(context, 2000, REMOTE, held)
    fork = layer.fork()
    run(fork, context, 2000, 2040)
    assert layer.remote is not None
    stocks = (layer.stock, fork.stock)
    tensors = [t for stock in stocks for part in stock.device_tensors().values() for t in part]
    numbers = {t.data_ptr(): t.nbytes for stock in stocks for t in stock.device_tensors()["numbers"]}
    allocated = {t.data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    tables = layer.remote.table_bytes
    assert tables == table_bytes(HEAD_DIM, 2040) == TABLE_STEP * HEAD_DIM * 4
    assert sum(allocated.values()) - sum(numbers.values()) + tables == held.num_bytes
    spec = FullSpec(num_kv_heads=NUM_KV_HEADS, head_dim_k=HEAD_DIM, head_dim_v=VALUE_DIM, dtype="F32")
    assert held.num_bytes - tables <= most_bytes(REMOTE, spec, 2040)
    fork.release()
    layer.release()
    layer.remote.clear()
    assert held.num_bytes == 0


# What is read beside computing


def differs(seed: int, *, forgets: Stream | None = None, forgets_joins: bool = False) -> bool:
    """Run changes of a working set on streams that are late, and return whether a step ever reads what its
    chunks do not hold, or nothing at all.
    """
    store = randn(ROWS, CHUNKS, 2, 3, seed=seed), randn(ROWS, CHUNKS, 2, 5, seed=seed + 1)
    sides = torch.zeros(ROWS, PLACES, 2, 3), torch.zeros(ROWS, PLACES, 2, 5)
    working = WorkingSet(*sides, Held())
    heads = torch.arange(ROWS)[:, None]
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def fill(number: int, change: Change, *parts: Tensor) -> None:
        there = change.is_missing
        parts[number][there] = store[number][heads.expand_as(there)[there], change.slots[there]]

    fills = (lambda *new: fill(1, *new), lambda *new: fill(0, *new))
    streams = DelayedStreams(seed, forgets=forgets, forgets_joins=forgets_joins)
    generator = torch.Generator().manual_seed(seed)
    try:
        for _ in range(12):
            wanted = torch.stack([torch.randperm(CHUNKS, generator=generator)[:PLACES] for _ in heads])
            working.bring(wanted.sort(dim=1).values, CHUNKS, fills, streams)
            # As attention does: what it reads is written over by the next step.
            streams.compute(
                lambda: seen.append((working.slots.clone(), working.keys.clone(), working.values.clone()))
            )
        streams.mark().wait()
    except IndexError:  # a lane that began before it was known what is missing
        return True
    assert len(seen) == 12
    return any(
        not torch.equal(held, kept[heads, slots])
        for slots, *both_sides in seen
        for held, kept in zip(both_sides, store, strict=True)
    )


@pytest.mark.parametrize("seed", range(8))
def test_what_is_read_beside_computing_is_there_when_it_is_attended_to(seed: int) -> None:
    """Trap 21: however late a lane is, and whatever is written over by the next step."""
    assert not differs(seed)


def test_reading_that_forgets_what_it_comes_after_or_before_is_seen() -> None:
    assert any(differs(seed, forgets_joins=True) for seed in range(8))
    assert any(differs(seed, forgets=Stream.IN) for seed in range(8))


def test_what_a_step_asks_for_follows_without_a_question_to_the_device() -> None:
    """On tensors without numbers: choosing, listing and exchanging ask for none."""
    meta = torch.device("meta")
    scores = torch.empty(NUM_KV_HEADS, CHUNKS, device=meta)
    always = torch.zeros(NUM_KV_HEADS, CHUNKS, dtype=torch.bool, device=meta)
    held = torch.full((NUM_KV_HEADS, PLACES), EMPTY, device=meta)
    with NoCopies():
        wanted = torch_fallback.picked(torch_fallback.chosen(scores, PLACES, always) & ~always, PLACES)
        change = torch_fallback.exchange(held, wanted, CHUNKS)
    assert change.slots.shape == change.is_missing.shape == held.shape


def test_a_step_of_all_layers_is_waited_for_where_others_read_its_blocks() -> None:
    shadows = Shadows(View(rule="shadow", budget=64), {}, 2**30, streams := DelayedStreams(0))
    done: list[bool] = []
    streams.compute(lambda: done.append(True))
    shadows.settle()
    assert done
