"""What blocks of every format go through: forked, pushed off the device, and read again by another engine.

`Wanted` is a function (prompt, number of tokens) -> the answer, in whose computation nothing is reused.
"""

from collections.abc import Callable
from pathlib import Path

from kvchat.engine.api.events import Loaded
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.engine import Engine
from tests.engine.tiny_models import answer, finish, submit, token_ids

Opened = Callable[..., Engine]
Wanted = Callable[[list[int], int], list[int]]


def room_is_wanted(engine: Engine) -> None:
    """Compute so much else that nothing cached stays on the device."""
    for seed in range(50, 54):
        answer(engine, token_ids(350, seed), 1)


def check_a_fork_beside_its_parent(engine: Engine, wanted: Wanted, num_tokens: int) -> None:
    """A fork owns nothing at first, and both go on as if they had been computed alone."""
    prompt = token_ids(60)
    handle = submit(engine, prompt, 4)
    text = prompt + finish(engine, handle).token_ids
    child = engine.fork(handle.sequence)
    assert all(usage.own_bytes == 0 for usage in engine.snapshot().sequences)
    parent_turn, child_turn = (text + token_ids(4, seed=seed) for seed in (81, 82))
    found = answer(engine, parent_turn, num_tokens, handle.sequence)
    assert found.token_ids == wanted(parent_turn, num_tokens)
    result = answer(engine, child_turn, num_tokens, child)
    assert (result.usage.cached_tokens, result.token_ids) == (len(text) - 1, wanted(child_turn, num_tokens))


def loaded_after_a_demotion(engine: Engine, wanted: Wanted) -> tuple[Loaded, int]:
    """Push a sequence into host memory and go on with it; return what was loaded, and how much there was."""
    prompt = token_ids(100)
    handle = submit(engine, prompt, 8)
    text = prompt + finish(engine, handle).token_ids
    engine.demote(handle.sequence)
    assert engine.snapshot().tier(Tier.DEVICE).used_bytes == 0
    room_is_wanted(engine)
    turn = [*text, 7]
    result = answer(engine, turn, 8, handle.sequence)
    assert (result.usage.cached_tokens, result.token_ids) == (len(text) - 1, wanted(turn, 8))
    return result.loaded, len(text) - 1


def check_what_another_engine_finds(opened: Opened, wanted: Wanted, cache_dir: Path, num_tokens: int) -> None:
    """All but the last token of a conversation comes from disk in an engine that begins anew."""
    first, prompt = opened(cache_dir=cache_dir), token_ids(100)
    text = prompt + answer(first, prompt, 6).token_ids
    first.close()
    second = opened(cache_dir=cache_dir)
    turn = [*text, 7]
    result = answer(second, turn, num_tokens)
    assert (result.loaded, result.token_ids) == (Loaded(disk=len(text) - 1), wanted(turn, num_tokens))
