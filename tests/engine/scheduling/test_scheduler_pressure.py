"""Who makes way when there are too few blocks, and that everybody is answered in the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.cache.caches import full_group, sliding_group
from tests.engine.step_loop import StepLoop, numbers

pytestmark = pytest.mark.pure


def test_idle_sequences_lose_their_blocks_first_the_longest_idle_one_before_others() -> None:
    loop = StepLoop(num_blocks=9, max_batch_tokens=64)
    idle = [loop.submit(numbers(100 * n, 10)) for n in range(3)]
    loop.finish()
    running = loop.submit(numbers(500, 3), max_tokens=3)
    loop.finish()
    assert [entry.sequence.computed_len for entry in idle] == [0, 10, 10]
    assert running.sequence.computed_len == 5
    assert loop.refused == []


def test_a_sequence_that_has_just_answered_is_the_last_to_lose_its_blocks() -> None:
    loop = StepLoop(num_blocks=9, max_batch_tokens=64)
    idle = [loop.submit(numbers(100 * n, 10)) for n in range(3)]
    loop.finish()
    loop.submit([*idle[0].sequence.token_ids], sequence=idle[0].sequence)
    loop.finish()
    loop.submit(numbers(500, 3), max_tokens=3)
    loop.finish()
    assert [entry.sequence.computed_len for entry in idle] == [11, 0, 10]


def test_the_queue_is_in_order_of_importance_and_who_is_put_back_keeps_its_place() -> None:
    loop = StepLoop()
    running = loop.submit(numbers(0, 12), max_tokens=10)
    loop.step()
    later = [loop.submit(numbers(100 * n, 12), priority=n) for n in (2, 0, 1)]
    assert loop.scheduler.waiting == [later[1], later[2], later[0]]
    loop.scheduler.requeue(running)
    assert loop.scheduler.waiting == [running, later[1], later[2], later[0]]


def test_the_least_important_and_most_recent_request_is_put_back_and_completes_later() -> None:
    loop = StepLoop(num_blocks=8, max_batch_tokens=16)
    first = loop.submit(numbers(0, 12), max_tokens=10)
    second = loop.submit(numbers(100, 12), max_tokens=10)
    loop.finish()
    assert loop.done == [first, second]
    assert loop.computed(first) == list(range(21))
    assert set(loop.computed(second)) == set(range(21))
    assert loop.refused == []


def test_an_answering_request_makes_way_for_a_more_important_prompt() -> None:
    loop = StepLoop(num_blocks=10, max_batch_tokens=16)
    background = loop.submit(numbers(0, 20), max_tokens=16, priority=1)
    for _ in range(4):
        loop.step()
    on_screen = loop.submit(numbers(100, 30), max_tokens=2)
    loop.finish()
    assert loop.done == [on_screen, background]
    assert loop.computed(on_screen) == list(range(31))


def test_a_request_is_put_back_for_a_more_important_one_that_needs_room_for_cached_blocks() -> None:
    loop = StepLoop(num_blocks=10, max_batch_tokens=32)
    loop.answered_and_stored(numbers(100, 20))
    background = loop.submit(numbers(0, 24), max_tokens=14, priority=1)
    loop.step()
    on_screen = loop.submit([*numbers(100, 20), 7], max_tokens=2)
    loop.finish()
    assert loop.done[1:] == [on_screen, background]
    assert loop.computed(on_screen) == [20, 21]


def test_a_request_that_was_put_back_waits_until_it_has_room_for_a_step() -> None:
    """Otherwise it would be admitted, and put back, in every step of the other."""
    loop = StepLoop(num_blocks=8, max_batch_tokens=16)
    loop.submit(numbers(0, 12), max_tokens=18)
    loop.submit(numbers(100, 12), max_tokens=18)
    loop.finish()
    assert loop.num_admissions == 3
    assert len(loop.done) == 2


def test_what_was_found_and_given_back_unused_is_not_counted_as_cached() -> None:
    """Trap 26: success reported, nothing restored."""
    loop = StepLoop(full_group(), sliding_group(1), num_blocks=[15, 13], max_batch_tokens=3)
    loop.submit([*numbers(0, 8), *numbers(0, 19)], max_tokens=11)
    loop.step()
    loop.submit(numbers(100, 18), max_tokens=2)
    last = loop.submit([0, 200])
    loop.finish()
    assert min(loop.computed(last)) == last.cached_len


def test_the_last_request_is_not_refused_for_the_block_that_a_copy_needs() -> None:
    loop = StepLoop(num_blocks=4, max_batch_tokens=16)
    first = loop.submit(numbers(0, 14), max_tokens=2)
    loop.finish()
    edited = loop.submit([*numbers(0, 13), 77], max_tokens=2)
    loop.finish()
    assert loop.refused == []
    assert loop.done == [first, edited]
    assert loop.computed(edited) == [12, 13, 14]


def test_a_request_that_can_never_fit_is_refused_and_the_next_one_runs() -> None:
    loop = StepLoop(num_blocks=4, max_batch_tokens=32)
    too_long = loop.submit(numbers(0, 18))
    short = loop.submit(numbers(100, 6))
    loop.finish()
    assert loop.refused == [too_long]
    assert short in loop.done
    assert loop.computed(short) == list(range(6))


def test_an_answer_that_outgrows_the_cache_is_ended_and_not_repeated_for_ever() -> None:
    loop = StepLoop(num_blocks=3, max_batch_tokens=8)
    growing = loop.submit(numbers(0, 6), max_tokens=50)
    loop.finish()
    assert loop.refused == [growing]
    assert loop.computed(growing) == list(range(12))


requests = st.lists(
    st.tuples(
        st.integers(1, 30), st.integers(1, 12), st.integers(0, 2), st.integers(0, 8), st.integers(0, 3)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50)
@given(requests=requests, window_len=st.integers(1, 9), max_batch_tokens=st.integers(1, 20))
def test_whatever_fits_alone_completes_and_nobody_starves(
    requests: list[tuple[int, int, int, int, int]], window_len: int, max_batch_tokens: int
) -> None:
    """Prompts that share beginnings, a pool that holds one and a half of them, arrivals over time."""
    loop = StepLoop(
        full_group(), sliding_group(window_len), num_blocks=[15, 13], max_batch_tokens=max_batch_tokens
    )
    for prompt_len, max_tokens, priority, agreed, num_steps in requests:
        prompt = [*numbers(0, agreed), *numbers(100 * len(loop.entries), prompt_len)]
        loop.submit(prompt, max_tokens=max_tokens, priority=priority)
        for _ in range(num_steps):
            loop.step()
    loop.finish()
    assert loop.refused == []
    for entry in loop.entries:
        assert entry.num_generated == entry.max_tokens
        last = entry.prompt_len + entry.max_tokens - 2
        assert max(loop.computed(entry)) == last
