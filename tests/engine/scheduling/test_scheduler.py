"""Which requests run, in which order, and what each computes in a step."""

import pytest

from tests.engine.cache.caches import full_group, sliding_group
from tests.engine.step_loop import StepLoop, numbers

pytestmark = pytest.mark.pure


def test_a_step_without_tokens_keeps_table_changes_for_the_next() -> None:
    """Trap 9: a change that gets lost leaves the runner's table pointing at a block that others reuse."""
    loop = StepLoop()
    first = loop.submit([1, 2, 3, 4, 5, 6])
    loop.finish()
    child = loop.cache.manager.fork(first.sequence)
    assert not loop.step().changes

    loop.submit([*child.token_ids, 7, 8], max_tokens=3, sequence=child)
    loop.finish()


# Chunks and order


def test_a_long_prompt_is_computed_in_chunks_under_the_budget() -> None:
    loop = StepLoop(max_batch_tokens=16)
    loop.submit(numbers(0, 40))
    loop.finish()
    assert [batch.num_tokens for batch in loop.batches] == [16, 16, 8]
    assert [chunk.samples for batch in loop.batches for chunk in batch.chunks] == [False, False, True]


def test_every_position_is_computed_exactly_once_and_the_last_token_never() -> None:
    loop = StepLoop(full_group(), sliding_group(6), max_batch_tokens=7)
    entries = [loop.submit(numbers(100 * n, 9 + n), max_tokens=5) for n in range(3)]
    loop.finish()
    for entry in entries:
        assert loop.computed(entry) == list(range(entry.prompt_len + 4))
        assert entry.sequence.num_uncomputed == 1


def test_cached_tokens_are_not_computed() -> None:
    loop = StepLoop()
    loop.submit(numbers(0, 10))
    loop.finish()
    again = loop.submit([*numbers(0, 10), 77])
    loop.finish()
    assert loop.computed(again) == [10]
    assert again.cached_len == 10
    assert again.loaded is not None
    assert again.loaded.device == 10


def test_a_long_prompt_never_stops_an_answer() -> None:
    loop = StepLoop(max_batch_tokens=8)
    answering = loop.submit(numbers(0, 6), max_tokens=12, priority=1)
    loop.step()
    loop.submit(numbers(100, 60), priority=0)
    for _ in range(5):
        batch = loop.step()
        assert batch.chunks[0].request == answering.id
        assert batch.num_tokens == 8


def test_an_important_request_overtakes_those_that_wait() -> None:
    loop = StepLoop(max_batch_tokens=8)
    background = loop.submit(numbers(0, 30), priority=1)
    loop.step()
    on_screen = loop.submit(numbers(100, 20), priority=0)
    loop.finish()
    assert loop.done == [on_screen, background]


def test_equal_requests_run_in_the_order_of_their_arrival() -> None:
    loop = StepLoop(max_batch_tokens=8)
    entries = [loop.submit(numbers(100 * n, 20)) for n in range(4)]
    loop.finish()
    assert loop.done == entries


def test_a_live_sequence_goes_on_without_being_admitted() -> None:
    loop = StepLoop()
    first = loop.submit(numbers(0, 6))
    loop.finish()
    assert loop.num_admissions == 1
    second = loop.submit([*first.sequence.token_ids, 50, 51], sequence=first.sequence)
    loop.finish()
    assert loop.num_admissions == 1
    assert loop.computed(second) == [6, 7, 8]


# Cancelling


@pytest.mark.parametrize("num_steps", range(8))
def test_a_request_that_is_cancelled_anywhere_leaves_only_what_it_has_written(num_steps: int) -> None:
    """Trap 7: cancel at every chunk of the prompt and every token of the answer, then ask again."""
    loop = StepLoop(full_group(), sliding_group(5), num_blocks=16, max_batch_tokens=5)
    prompt = numbers(0, 23)
    other = loop.submit(numbers(100, 9), max_tokens=20, priority=1)
    cancelled = loop.submit(prompt, max_tokens=4)
    for _ in range(num_steps):
        loop.step()
    num_computed = cancelled.sequence.computed_len
    loop.cancel(cancelled)
    loop.cache.check()
    if num_steps % 2:
        loop.release(cancelled)
    again = loop.submit([*prompt, 99])
    loop.finish()
    assert loop.computed(again) == list(range(min(num_computed, 23), 24))
    assert other in loop.done
