"""Looking into the cache shows the blocks where they are, under their names, and moves nothing."""

from pathlib import Path

import pytest

from kvchat.engine.api.ids import chain_keys, root_key
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import OwnerUsage, Tier
from kvchat.engine.engine import Engine
from kvchat.engine.results import Handle
from kvchat.errors import InvalidRequest
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import finish, submit, token_ids

pytestmark = pytest.mark.cpu

BLOCK = 16


def tiers(blocks: tuple[InspectedBlock, ...], group: int = 0) -> list[Tier | None]:
    return [block.places[group].tier for block in blocks]


def of_path(engine: Engine, ids: list[int]) -> tuple[InspectedBlock, ...]:
    return engine.inspect(InspectionRequest(token_ids=tuple(ids)))


def test_a_live_sequence_shows_its_blocks_by_name_its_tail_without_their_holders_and_last_use(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"))
    handle = submit(engine, token_ids(40), 4)
    asked = InspectionRequest(sequence=handle.sequence)
    engine.step()
    assert {block.unused_s for block in engine.inspect(asked)} == {0.0}
    finish(engine, handle)
    blocks, later = engine.inspect(asked), engine.inspect(asked)
    for before, after in zip(blocks, later, strict=True):
        assert 0 < (before.unused_s or 0.0) < (after.unused_s or 0.0)
    root = root_key(bytes.fromhex(engine.info.fingerprint))
    keys = [key.hex() for key in chain_keys(root, token_ids(40), BLOCK)]
    assert [block.key for block in blocks] == [*keys, ""]
    assert [block.parent for block in blocks] == [root.hex(), *keys]
    assert [block.start for block in blocks] == [0, 16, 32]
    assert [len(block.token_ids) for block in blocks] == [16, 16, 11]
    assert tiers(blocks) == [Tier.DEVICE] * 3
    assert [block.num_holders for block in blocks] == [1, 1, 1]
    child = engine.fork(handle.sequence)
    assert {block.num_holders for block in engine.inspect(InspectionRequest(sequence=child))} == {2}
    engine.release(child)
    assert {block.num_holders for block in engine.inspect(asked)} == {1}


def test_blocks_are_shown_in_host_memory_and_on_disk_and_nothing_is_moved(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    token_bytes = 4 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head size, float32
    engine = open_engine(
        tiny("llama"), device_bytes=600 * token_bytes, host_bytes=600 * token_bytes, cache_dir=tmp_path
    )
    handle = submit(engine, token_ids(64), 1)
    finish(engine, handle)
    engine.tick()
    engine.demote(handle.sequence)
    before = engine.snapshot()
    blocks = engine.inspect(InspectionRequest(sequence=handle.sequence))
    assert tiers(blocks)[:3] == [Tier.HOST] * 3
    assert before.moved.to_host == before.tier(Tier.HOST).cached_bytes > 0
    assert engine.snapshot().tiers[:2] == before.tiers[:2]
    assert engine.snapshot().moved.to_host == before.moved.to_host
    engine.release(handle.sequence)
    assert [block.key for block in of_path(engine, token_ids(64))[:3]] == [block.key for block in blocks[:3]]
    assert tiers(of_path(engine, token_ids(64)))[:3] == [Tier.HOST] * 3
    engine.close()
    again = open_engine(tiny("llama"), device_bytes=600 * token_bytes, cache_dir=tmp_path)
    stored = of_path(again, token_ids(64))
    assert tiers(stored) == [Tier.DISK] * 4
    assert {block.unused_s for block in stored} == {None}
    assert before.moved.from_disk == 0
    again.generate([token_ids(64)], SamplingParams(max_tokens=1))
    assert again.snapshot().moved.from_disk > 0
    assert tiers(of_path(again, token_ids(64)))[:3] == [Tier.DEVICE] * 3
    assert all(place.is_stored for block in of_path(again, token_ids(64))[:3] for place in block.places)


def test_a_block_that_has_left_the_window_is_held_by_nobody_in_that_group(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("qwen3", sliding_window=20, use_sliding_window=True, max_window_layers=2))
    handle = submit(engine, token_ids(100), 2)
    finish(engine, handle)
    windows = [group.window for group in engine.snapshot().groups]
    full, sliding = windows.index(None), windows.index(20)
    blocks = engine.inspect(InspectionRequest(sequence=handle.sequence))
    assert {block.places[full].num_holders for block in blocks} == {1}
    assert [block.places[sliding].num_holders for block in blocks] == [0] * 5 + [1, 1]


def test_what_is_kept_for_nobody_is_shown_last_use_first(tiny: TinyModels, open_engine: OpenEngine) -> None:
    engine = open_engine(tiny("llama"))
    engine.generate([token_ids(33, seed=1)], SamplingParams(max_tokens=1))
    held = submit(engine, token_ids(33, seed=2), 1)
    finish(engine, held)
    engine.generate([token_ids(33, seed=3)], SamplingParams(max_tokens=1))
    kept = engine.inspect(InspectionRequest())
    starts = {tuple(token_ids(33, seed=seed)[:BLOCK]): seed for seed in (1, 2, 3)}
    assert [starts[block.token_ids] for block in kept if block.token_ids in starts] == [3, 1]
    assert [block.num_holders for block in kept] == [0] * len(kept)
    ages = [block.unused_s or 0.0 for block in kept]
    assert ages == sorted(ages)
    assert len(engine.inspect(InspectionRequest(most=2))) == 2
    with pytest.raises(InvalidRequest):
        of_path(engine, [10**9])  # outside the vocabulary


def test_closing_an_owners_sequences_lets_go_of_as_much_as_was_said(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """What two sequences of one owner share goes with the owner; what another owner holds too stays."""
    engine = open_engine(tiny("llama"))
    shared = token_ids(48)
    mine = _owned(engine, [*shared, *token_ids(40, seed=1)], "mine")
    finish(engine, mine)
    fork = engine.fork(mine.sequence)
    theirs = _owned(engine, [*shared, *token_ids(20, seed=2)], "theirs")
    finish(engine, theirs)
    usage = {one.owner: one for one in engine.snapshot().owners}
    assert usage["mine"].num_sequences == 2
    before = engine.snapshot().tier(Tier.DEVICE).used_bytes
    engine.release(mine.sequence)
    engine.release(fork)
    after = engine.snapshot()
    assert before - after.tier(Tier.DEVICE).used_bytes == usage["mine"].freed_bytes > 0
    block_bytes = after.groups[0].block_bytes
    (alone,) = after.owners
    assert alone == OwnerUsage(
        owner="theirs", num_sequences=1, freed_bytes=after.groups[0].used_blocks * block_bytes
    )
    assert alone.freed_bytes > usage["theirs"].freed_bytes


def _owned(engine: Engine, ids: list[int], owner: str) -> Handle:
    sampling = SamplingParams(max_tokens=1)
    return engine.submit(Request(token_ids=tuple(ids), sampling=sampling, owner=owner))
