"""A conversation that is left alone moves to host memory in pieces, beside everybody else's answers."""

from itertools import pairwise
from pathlib import Path

import pytest

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.engine import Engine
from kvchat.engine.tiering.idle_demotion import PIECE_BYTES
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import answer, finish, open_on_clock, reference, submit, token_ids
from tests.hand_clock import HandClock

pytestmark = pytest.mark.cpu

WIDE = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 256}
TOKEN_BYTES = 4 * 2 * 8 * 256 * 4  # layers, keys and values, heads, head size, float32
LENGTH = 400
IDLE_S = 60.0


@pytest.fixture
def model_dir(tiny: TinyModels) -> Path:
    """Few weights, and as much to keep of a token as a large model has."""
    return tiny("llama", **WIDE)


def engine_of(model_dir: Path) -> tuple[Engine, HandClock]:
    room = 600 * TOKEN_BYTES
    return open_on_clock(model_dir, device_bytes=room, host_bytes=room, idle_demote_s=IDLE_S)


def let_time_pass(engine: Engine, clock: HandClock) -> None:
    """Have everything that nobody uses be idle for long enough by the next step."""
    clock.now_s += 2.0
    engine.step()
    clock.now_s += IDLE_S


def in_host(engine: Engine) -> int:
    return engine.snapshot().tier(Tier.HOST).cached_bytes


def test_no_step_of_another_answer_waits_for_more_than_a_piece(model_dir: Path) -> None:
    engine, clock = engine_of(model_dir)
    idle = submit(engine, token_ids(LENGTH), 2)
    finish(engine, idle)
    working = submit(engine, token_ids(20, seed=1), 30)
    let_time_pass(engine, clock)
    sizes = [in_host(engine)]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
        sizes.append(in_host(engine))
    moved = [after - before for before, after in pairwise(sizes)]
    assert max(moved) <= PIECE_BYTES
    assert sum(moved) >= LENGTH * TOKEN_BYTES
    assert sum(num_bytes > 0 for num_bytes in moved) >= LENGTH * TOKEN_BYTES // PIECE_BYTES
    assert finish(engine, working).token_ids == reference(model_dir).answer(token_ids(20, seed=1), 30)
    engine.close()


def test_a_conversation_that_is_half_gone_goes_on_with_all_of_it(model_dir: Path) -> None:
    """Its end is in host memory by then, its beginning still on the device."""
    engine, clock = engine_of(model_dir)
    prompt = token_ids(LENGTH)
    idle = submit(engine, prompt, 2)
    text = [*prompt, *finish(engine, idle).token_ids, 7]
    let_time_pass(engine, clock)
    engine.tick()
    assert 0 < in_host(engine) <= PIECE_BYTES
    result = answer(engine, text, 6, idle.sequence)
    assert result.token_ids == reference(model_dir).answer(text, 6)
    assert result.usage.computed_tokens == 2
    assert 0 < result.loaded.host < len(text) - 2
    for _ in range(10):
        engine.tick()
        engine.check_integrity()
    engine.close()


def test_what_takes_the_place_of_a_block_before_its_turn_is_not_moved_for_it(model_dir: Path) -> None:
    engine, clock = engine_of(model_dir)
    idle = submit(engine, token_ids(LENGTH), 2)
    first = finish(engine, idle).token_ids
    let_time_pass(engine, clock)
    engine.tick()
    other = token_ids(500, seed=2)
    assert answer(engine, other, 4).token_ids == reference(model_dir).answer(other, 4)
    for _ in range(10):
        engine.tick()
        engine.check_integrity()
    text = [*token_ids(LENGTH), *first, 7]
    assert answer(engine, text, 4, idle.sequence).token_ids == reference(model_dir).answer(text, 4)
    engine.close()
