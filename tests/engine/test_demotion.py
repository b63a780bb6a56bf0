"""Sequences that leave the device and come back: by themselves, asked to, or not at all because pinned."""

from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.engine import Engine
from kvchat.engine.results import Result
from kvchat.errors import InvalidRequest, PinRefused, PoolExhausted
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import answer, finish, open_engine, open_on_clock, reference, submit, token_ids

pytestmark = pytest.mark.cpu

TOKEN_BYTES = 4 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head size, float32


@pytest.fixture
def model_dir(tiny: TinyModels) -> Path:
    return tiny("qwen3")


def engine_of(model_dir: Path, num_tokens: int = 600, host_tokens: int = 600, **settings: Any) -> Engine:
    """Return an engine whose pools hold about `num_tokens` tokens, and its host tier `host_tokens`."""
    return open_engine(
        model_dir, device_bytes=num_tokens * TOKEN_BYTES, host_bytes=host_tokens * TOKEN_BYTES, **settings
    )


def used_bytes(engine: Engine) -> int:
    return engine.snapshot().tier(Tier.DEVICE).used_bytes


def room_is_wanted(engine: Engine) -> None:
    """Compute so much else that nothing cached stays on the device."""
    for seed in range(50, 54):
        engine.generate([token_ids(500, seed)], SamplingParams(max_tokens=1))
        engine.check_integrity()


def go_on(engine: Engine, sequence: SequenceId, ids: list[int], model_dir: Path) -> tuple[int, int, int]:
    """Ask one more token id on a sequence; return computed tokens and where the others came from."""
    result = answer(engine, ids, 8, sequence)
    assert list(result.token_ids) == reference(model_dir).answer(ids, 8)
    engine.check_integrity()
    return result.usage.computed_tokens, result.loaded.host, result.loaded.device


def test_a_demoted_sequence_frees_the_device_and_goes_on_from_host_memory(model_dir: Path) -> None:
    """Traps 23 and 26: the round trip changes no token, and spares their computation."""
    engine, prompt = engine_of(model_dir, host_tokens=3000), token_ids(100, seed=1)
    handle = submit(engine, prompt, 8)
    first = finish(engine, handle).token_ids
    engine.demote(handle.sequence)
    engine.check_integrity()
    assert used_bytes(engine) == 0
    assert engine.snapshot().tier(Tier.HOST).cached_bytes > 0
    room_is_wanted(engine)
    computed, host, _ = go_on(engine, handle.sequence, [*prompt, *first, 7], model_dir)
    assert computed == 2  # the last sampled token and the new one
    assert host == 100 + 7


def test_a_sequence_that_answers_or_is_gone_is_not_demoted(model_dir: Path) -> None:
    engine = engine_of(model_dir)
    handle = submit(engine, token_ids(40), 8)
    with pytest.raises(InvalidRequest, match="is still answering"):
        engine.demote(handle.sequence)
    with pytest.raises(InvalidRequest, match="no live sequence"):
        engine.demote(SequenceId(999))


@pytest.mark.parametrize("limit_s", [None, 60.0])
def test_a_sequence_left_alone_for_long_leaves_the_device_by_itself(
    model_dir: Path, limit_s: float | None
) -> None:
    room = 600 * TOKEN_BYTES
    engine, clock = open_on_clock(model_dir, device_bytes=room, host_bytes=room, idle_demote_s=limit_s)
    handle = submit(engine, token_ids(100, seed=1), 8)
    first = finish(engine, handle).token_ids
    held = used_bytes(engine)
    for _ in range(3):
        clock.now_s += 20.0
        engine.tick()
        assert used_bytes(engine) == held
    clock.now_s += 20.0
    engine.tick()
    assert used_bytes(engine) == (held if limit_s is None else 0)
    go_on(engine, handle.sequence, [*token_ids(100, seed=1), *first, 7], model_dir)


def test_a_sequence_that_left_the_screen_while_it_was_idle_makes_room_before_others(model_dir: Path) -> None:
    engine = engine_of(model_dir, num_tokens=360)
    shown, left = (submit(engine, token_ids(120, seed), 2) for seed in (1, 2))
    finish(engine, shown)
    finish(engine, left)
    engine.prioritise_sequence(left.sequence, 1)  # else the one that has been idle longest would go first
    engine.prioritise_sequence(SequenceId(99), 1)
    answer(engine, token_ids(120, 3), 2)
    lengths = {usage.sequence: usage.num_tokens for usage in engine.snapshot().sequences}
    assert lengths[left.sequence] == 0
    assert lengths[shown.sequence] > 0
    engine.close()


def test_pinned_blocks_are_on_the_device_whatever_else_is_computed(model_dir: Path) -> None:
    engine, prompt = engine_of(model_dir, host_tokens=0), token_ids(100, seed=1)
    handle = submit(engine, prompt, 8)
    finish(engine, handle)
    num_blocks = engine.pin(handle.sequence)
    assert num_blocks == sum(group.pinned_blocks for group in engine.snapshot().groups) > 0
    engine.release(handle.sequence)
    for seed in range(50, 54):
        engine.generate([token_ids(400, seed)], SamplingParams(max_tokens=1))
    again = engine.generate([[*prompt, 7]], SamplingParams(max_tokens=8))[0]
    assert again.token_ids == reference(model_dir).answer([*prompt, 7], 8)
    assert again.loaded.device >= 96
    engine.unpin(handle.sequence)
    engine.unpin(handle.sequence)
    assert not any(group.pinned_blocks for group in engine.snapshot().groups)
    engine.check_integrity()


def test_a_pin_beside_which_a_request_at_work_would_not_fit_is_refused(model_dir: Path) -> None:
    engine = engine_of(model_dir)
    idle = submit(engine, token_ids(200, seed=1), 8)
    finish(engine, idle)
    working = submit(engine, token_ids(300, seed=2), 200)
    with pytest.raises(PinRefused, match="a request at work needs"):
        engine.pin(idle.sequence)
    assert not any(group.pinned_blocks for group in engine.snapshot().groups)
    working.cancel()
    finish(engine, working)
    assert engine.pin(idle.sequence) > 0
    engine.check_integrity()


def test_a_request_that_cannot_fit_beside_the_pins_is_refused_with_the_numbers(model_dir: Path) -> None:
    engine, prompt = engine_of(model_dir), token_ids(250, seed=1)
    pinned = submit(engine, prompt, 4)
    finish(engine, pinned)
    engine.pin(pinned.sequence)
    with pytest.raises(PoolExhausted, match="are pinned for others; unpin something"):
        submit(engine, token_ids(450, seed=2), 4)
    submit(engine, [*prompt, *token_ids(200, seed=3)], 4).cancel()  # it uses what is pinned
    engine.unpin(pinned.sequence)
    submit(engine, token_ids(450, seed=2), 4).cancel()


def test_what_was_put_back_comes_back_from_host_memory_and_not_by_computing(model_dir: Path) -> None:
    engine = engine_of(model_dir, num_tokens=200, host_tokens=2000, max_batch_tokens=32)
    first, again = answered_before_and_after_others(engine)
    assert again.token_ids == first.token_ids
    assert again.usage.computed_tokens == 1
    assert again.loaded.host > 0
    assert again.loaded.total == again.usage.cached_tokens == 99
    host = engine.snapshot().tier(Tier.HOST)
    assert host.cached_bytes > 0
    assert host.total_bytes is not None
    assert host.cached_bytes <= host.total_bytes <= 2000 * TOKEN_BYTES


def test_without_a_host_tier_it_is_computed_again(model_dir: Path) -> None:
    engine = engine_of(model_dir, num_tokens=200, host_tokens=0, max_batch_tokens=32)
    _, again = answered_before_and_after_others(engine)
    assert again.usage.computed_tokens > 50
    assert again.loaded.host == 0


def answered_before_and_after_others(engine: Engine) -> tuple[Result, Result]:
    """Return the answers to a prompt that is asked again behind two others, as long as it is."""
    prompts = [token_ids(100, seed=seed) for seed in (1, 2, 3, 1)]
    results = [engine.generate([prompt], SamplingParams(max_tokens=8))[0] for prompt in prompts]
    return results[0], results[-1]
