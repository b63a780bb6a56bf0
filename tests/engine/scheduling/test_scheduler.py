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
