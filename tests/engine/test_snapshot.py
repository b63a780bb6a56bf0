"""What a snapshot says is what was allocated, at every step."""

import json

import pytest

from kvchat.engine.api.snapshot import CacheSnapshot, Tier
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.tiny_models import KINDS, answer, finish, submit, token_ids

pytestmark = pytest.mark.cpu


def check_sums(snapshot: CacheSnapshot) -> None:
    """Free, cached and used add up, in groups, layers, tiers and sequences alike."""
    device = snapshot.tier(Tier.DEVICE)
    for group in snapshot.groups:
        assert group.free_blocks + group.cached_blocks + group.used_blocks == group.total_blocks
        assert min(group.free_blocks, group.cached_blocks, group.used_blocks) >= 0
        assert group.shared_blocks <= group.used_blocks
        layers = [layer for layer in snapshot.layers if layer.group == group.group]
        assert tuple(layer.layer for layer in layers) == group.layers
        assert sum(layer.used_bytes for layer in layers) == group.used_blocks * group.block_bytes
        assert sum(layer.cached_bytes for layer in layers) == group.cached_blocks * group.block_bytes
    assert device.total_bytes == sum(layer.total_bytes for layer in snapshot.layers)
    assert device.used_bytes == sum(layer.used_bytes for layer in snapshot.layers)
    assert device.cached_bytes == sum(layer.cached_bytes for layer in snapshot.layers)
    assert sum(sequence.own_bytes for sequence in snapshot.sequences) <= device.used_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_bytes_add_up_to_what_the_tensors_take(
    kind: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    engine, recorder = open_recorded(tiny(kind))
    snapshot = engine.snapshot()
    pool = recorder.device_pool
    assert sum(layer.total_bytes for layer in snapshot.layers) == pool.num_bytes
    assert snapshot.tier(Tier.DEVICE).total_bytes == pool.num_bytes
    for usage in snapshot.layers:
        layer = pool.layers[usage.layer]
        assert usage.total_bytes == layer.keys.nbytes + layer.values.nbytes
    assert [usage.layer for usage in snapshot.layers] == list(range(len(pool.layers)))


def test_the_sums_hold_at_every_step_under_pressure(tiny: TinyModels, open_engine: OpenEngine) -> None:
    model_dir = tiny("qwen3", sliding_window=23)
    engine = open_engine(model_dir, device_bytes=24 * 8192, max_batch_tokens=16)
    handles = [submit(engine, token_ids(40, seed=seed), 30) for seed in range(4)]
    most_waiting = 0
    for handle in handles:
        for _ in handle:
            snapshot = engine.snapshot()
            check_sums(snapshot)
            assert snapshot.num_running + snapshot.num_waiting <= 4
            most_waiting = max(most_waiting, snapshot.num_waiting)
    assert most_waiting > 0, "there was no pressure"
    snapshot = engine.snapshot()
    assert (snapshot.num_running, snapshot.num_waiting) == (0, 0)


def test_a_snapshot_tells_used_from_cached_and_running_from_idle(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"))
    empty = engine.snapshot()
    assert empty.room_tokens == empty.groups[0].total_blocks * 16
    handle = submit(engine, token_ids(40), 8)
    engine.step()
    (sequence,) = engine.snapshot().sequences
    assert sequence.running
    assert sequence.num_tokens == 40
    assert engine.snapshot().num_running == 1
    finish(engine, handle)
    (sequence,) = engine.snapshot().sequences
    assert not sequence.running
    assert (sequence.blocks_per_group, sequence.shared_bytes) == ((3,), 0)
    assert sequence.own_bytes == 3 * empty.groups[0].block_bytes
    engine.release(handle.sequence)
    (group,) = engine.snapshot().groups
    assert (group.used_blocks, group.cached_blocks) == (0, 3)
    assert engine.snapshot().room_tokens == (group.total_blocks - 3) * 16


def test_a_snapshot_counts_what_was_reused_and_computed(tiny: TinyModels, open_engine: OpenEngine) -> None:
    engine = open_engine(tiny("llama"))
    answer(engine, token_ids(40), 5)
    answer(engine, token_ids(40), 5)
    snapshot = engine.snapshot()
    assert (snapshot.reused_tokens, snapshot.computed_tokens) == (39, 41)


def test_a_snapshot_is_plain_json(tiny: TinyModels, open_engine: OpenEngine) -> None:
    engine = open_engine(tiny("gemma3"))
    answer(engine, token_ids(20), 3)
    value = json.loads(engine.snapshot().to_json())
    assert value["model"] == engine.info.model
    assert [layer["kind"] for layer in value["layers"]] == ["sliding"] * 5 + ["full"]
    assert {tier["tier"] for tier in value["tiers"]} == {"device", "host", "disk"}


def test_tokens_of_answers_are_counted_and_those_of_prompts_are_not(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"), max_batch_tokens=16)
    handle = submit(engine, token_ids(40), 8)
    engine.step()
    assert engine.snapshot().sampled_tokens == 0, "of the prompt a part is computed"
    finish(engine, handle)
    assert engine.snapshot().sampled_tokens == 8
