"""Which requests run, seen through a loop that does all an engine does except for the tensors."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.batch import Batch
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.match import PrefixMatcher
from kvchat.engine.cache.spec import Group
from kvchat.engine.scheduler import Entry, Scheduler
from tests.engine.cache.caches import Cache, full_group, sliding_group
from tests.engine.cache.counting import counted_calls

pytestmark = pytest.mark.pure


class Loop:
    """Steps requests whose next token is a function of their tokens; remembers what was computed."""

    def __init__(self, *groups: Group, num_blocks: int | list[int] = 32, max_batch_tokens: int = 16) -> None:
        self.cache = Cache(*(groups or (full_group(),)), num_blocks=num_blocks)
        self.scheduler = Scheduler(self.cache.manager, max_batch_tokens)
        self.batches: list[Batch] = []
        self.entries: list[Entry] = []
        self.done: list[Entry] = []
        self.refused: list[Entry] = []
        self.num_admissions = 0

    def submit(
        self, token_ids: list[int], max_tokens: int = 1, priority: int = 0, branch: Branch | None = None
    ) -> Entry:
        branch = branch or self.cache.open(token_ids)
        branch.token_ids = list(token_ids)
        request = Request(token_ids=tuple(token_ids), priority=priority)
        entry = Entry(
            id=RequestId(len(self.entries) + 1),
            request=request,
            branch=branch,
            sampling=request.sampling,
            max_tokens=max_tokens,
            submitted_s=0.0,
            prompt_len=len(token_ids),
        )
        self.entries.append(entry)
        self.scheduler.add(entry)
        return entry

    def cancel(self, entry: Entry) -> None:
        self.scheduler.remove(entry)
        self.scheduler.touch(entry.branch.id)
        self.done.append(entry)

    def release(self, entry: Entry) -> None:
        self.cache.manager.release(entry.branch)

    def step(self) -> Batch:
        self._admit()
        batch = self.scheduler.schedule()
        assert batch.num_tokens <= self.scheduler.max_batch_tokens
        assert self.cache.device.execute(batch.moves)
        self.cache.manager.finish_moves()
        if batch.chunks:
            self._compute(batch)
        elif stuck := self.scheduler.running or self.scheduler.waiting:
            self.refused.append(stuck[0])
            self.cancel(stuck[0])
        self.batches.append(batch)
        self.cache.check()
        return batch

    def finish(self, max_steps: int = 500) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def computed(self, entry: Entry) -> list[int]:
        """Return the positions computed for a request, in order."""
        return [
            position
            for batch in self.batches
            for chunk in batch.chunks
            if chunk.request == entry.id
            for position in range(chunk.start, chunk.end)
        ]

    def _admit(self) -> None:
        while (entry := self.scheduler.next_waiting()) is not None:
            moves = self.scheduler.admit(entry)
            if moves is None:
                return
            self.num_admissions += 1
            if self.cache.device.execute(moves):
                self.cache.manager.finish_moves()
                self.cache.manager.confirm(entry.branch)
            else:
                self.cache.manager.finish_moves()
                self.scheduler.abandon(entry)

    def _compute(self, batch: Batch) -> None:
        self.cache.device.apply(batch.changes, batch.dropped)
        branches = self.cache.manager.branches
        for chunk in batch.chunks:
            branch = branches[chunk.branch]
            assert chunk.start == branch.computed_len
            assert chunk.token_ids == tuple(branch.token_ids[chunk.start : chunk.end])
            self.cache.device.write(branch, chunk.start, chunk.end)
        for chunk in batch.chunks:
            self.cache.device.check_seen(branches[chunk.branch], chunk.start, chunk.end)
        for chunk in batch.chunks:
            self.cache.manager.commit(branches[chunk.branch], chunk.end - chunk.start)
            if chunk.samples:
                self._sample(next(entry for entry in self.entries if entry.id == chunk.request))

    def _sample(self, entry: Entry) -> None:
        entry.branch.token_ids.append(random.Random(repr(entry.branch.token_ids)).randrange(50))
        entry.num_generated += 1
        if entry.num_generated >= entry.max_tokens:
            self.cancel(entry)


def test_a_step_without_tokens_keeps_table_changes_for_the_next() -> None:
    """Trap 9: a change that gets lost leaves the runner's table pointing at a block that others reuse."""
    loop = Loop()
    first = loop.submit([1, 2, 3, 4, 5, 6])
    loop.finish()
    child = loop.cache.manager.fork(first.branch)
    assert not loop.step().changes

    loop.submit([*child.token_ids, 7, 8], max_tokens=3, branch=child)
    loop.finish()


def numbers(start: int, num_tokens: int) -> list[int]:
    return list(range(start, start + num_tokens))


# Chunks and order


def test_a_long_prompt_is_computed_in_chunks_under_the_budget() -> None:
    loop = Loop(max_batch_tokens=16)
    loop.submit(numbers(0, 40))
    loop.finish()
    assert [batch.num_tokens for batch in loop.batches] == [16, 16, 8]
    assert [chunk.samples for batch in loop.batches for chunk in batch.chunks] == [False, False, True]


def test_every_position_is_computed_exactly_once_and_the_last_token_never() -> None:
    loop = Loop(full_group(), sliding_group(6), max_batch_tokens=7)
    entries = [loop.submit(numbers(100 * n, 9 + n), max_tokens=5) for n in range(3)]
    loop.finish()
    for entry in entries:
        assert loop.computed(entry) == list(range(entry.prompt_len + 4))
        assert entry.branch.num_uncomputed == 1


def test_cached_tokens_are_not_computed() -> None:
    loop = Loop()
    loop.submit(numbers(0, 10))
    loop.finish()
    again = loop.submit([*numbers(0, 10), 77])
    loop.finish()
    assert loop.computed(again) == [10]
    assert again.cached_len == 10
    assert again.loaded is not None
    assert again.loaded.device == 10


def test_tokens_from_the_slower_tier_are_counted_as_loaded() -> None:
    loop = Loop()
    first = loop.submit(numbers(0, 10))
    loop.finish()
    loop.cache.store_branch(first.branch)
    loop.release(first)
    loop.cache.forget_device()
    again = loop.submit([*numbers(0, 10), 77])
    loop.finish()
    assert again.loaded is not None
    assert (again.loaded.device, again.loaded.disk) == (0, 10)
    assert loop.computed(again) == [10]


def test_a_block_that_cannot_be_loaded_is_computed() -> None:
    """Trap 22: what was looked up can be gone when it is read."""
    loop = Loop()
    first = loop.submit(numbers(0, 10))
    loop.finish()
    loop.cache.store_branch(first.branch)
    loop.release(first)
    loop.cache.forget_device()
    loop.cache.tier.unreadable.add(list(loop.cache.tier.contents)[1])
    again = loop.submit([*numbers(0, 10), 77])
    loop.finish()
    assert loop.computed(again) == list(range(4, 11))


def test_a_long_prompt_never_stops_an_answer() -> None:
    loop = Loop(max_batch_tokens=8)
    answering = loop.submit(numbers(0, 6), max_tokens=12, priority=1)
    loop.step()
    loop.submit(numbers(100, 60), priority=0)
    for _ in range(5):
        batch = loop.step()
        assert batch.chunks[0].request == answering.id
        assert batch.num_tokens == 8


def test_an_important_request_overtakes_those_that_wait() -> None:
    loop = Loop(max_batch_tokens=8)
    background = loop.submit(numbers(0, 30), priority=1)
    loop.step()
    on_screen = loop.submit(numbers(100, 20), priority=0)
    loop.finish()
    assert loop.done == [on_screen, background]


def test_equal_requests_run_in_the_order_of_their_arrival() -> None:
    loop = Loop(max_batch_tokens=8)
    entries = [loop.submit(numbers(100 * n, 20)) for n in range(4)]
    loop.finish()
    assert loop.done == entries


def test_a_live_branch_goes_on_without_being_admitted() -> None:
    loop = Loop()
    first = loop.submit(numbers(0, 6))
    loop.finish()
    assert loop.num_admissions == 1
    second = loop.submit([*first.branch.token_ids, 50, 51], branch=first.branch)
    loop.finish()
    assert loop.num_admissions == 1
    assert loop.computed(second) == [6, 7, 8]


# Cancelling


@pytest.mark.parametrize("num_steps", range(8))
def test_a_request_that_is_cancelled_anywhere_leaves_only_what_it_has_written(num_steps: int) -> None:
    """Trap 7: cancel at every chunk of the prompt and every token of the answer, then ask again."""
    loop = Loop(full_group(), sliding_group(5), num_blocks=16, max_batch_tokens=5)
    prompt = numbers(0, 23)
    other = loop.submit(numbers(100, 9), max_tokens=20, priority=1)
    cancelled = loop.submit(prompt, max_tokens=4)
    for _ in range(num_steps):
        loop.step()
    num_computed = cancelled.branch.computed_len
    loop.cancel(cancelled)
    loop.cache.check()
    if num_steps % 2:
        loop.release(cancelled)
    again = loop.submit([*prompt, 99])
    loop.finish()
    assert loop.computed(again) == list(range(min(num_computed, 23), 24))
    assert other in loop.done


# Pressure


def test_idle_branches_lose_their_blocks_first_the_longest_idle_one_before_others() -> None:
    loop = Loop(num_blocks=9, max_batch_tokens=64)
    idle = [loop.submit(numbers(100 * n, 10)) for n in range(3)]
    loop.finish()
    running = loop.submit(numbers(500, 3), max_tokens=3)
    loop.finish()
    assert [entry.branch.computed_len for entry in idle] == [0, 10, 10]
    assert running.branch.computed_len == 5
    assert loop.refused == []


def test_a_branch_that_has_just_answered_is_the_last_to_lose_its_blocks() -> None:
    loop = Loop(num_blocks=9, max_batch_tokens=64)
    idle = [loop.submit(numbers(100 * n, 10)) for n in range(3)]
    loop.finish()
    loop.submit([*idle[0].branch.token_ids], branch=idle[0].branch)
    loop.finish()
    loop.submit(numbers(500, 3), max_tokens=3)
    loop.finish()
    assert [entry.branch.computed_len for entry in idle] == [11, 0, 10]


def test_the_queue_is_in_order_of_importance_and_who_is_put_back_keeps_its_place() -> None:
    loop = Loop()
    running = loop.submit(numbers(0, 12), max_tokens=10)
    loop.step()
    later = [loop.submit(numbers(100 * n, 12), priority=n) for n in (2, 0, 1)]
    assert loop.scheduler.waiting == [later[1], later[2], later[0]]
    loop.scheduler.requeue(running)
    assert loop.scheduler.waiting == [running, later[1], later[2], later[0]]


def test_the_least_important_and_most_recent_request_is_put_back_and_completes_later() -> None:
    loop = Loop(num_blocks=8, max_batch_tokens=16)
    first = loop.submit(numbers(0, 12), max_tokens=10)
    second = loop.submit(numbers(100, 12), max_tokens=10)
    loop.finish()
    assert loop.done == [first, second]
    assert loop.computed(first) == list(range(21))
    assert set(loop.computed(second)) == set(range(21))
    assert loop.refused == []


def test_an_answering_request_makes_way_for_a_more_important_prompt() -> None:
    loop = Loop(num_blocks=10, max_batch_tokens=16)
    background = loop.submit(numbers(0, 20), max_tokens=16, priority=1)
    for _ in range(4):
        loop.step()
    on_screen = loop.submit(numbers(100, 30), max_tokens=2)
    loop.finish()
    assert loop.done == [on_screen, background]
    assert loop.computed(on_screen) == list(range(31))


def test_a_request_is_put_back_for_a_more_important_one_that_needs_room_for_cached_blocks() -> None:
    loop = Loop(num_blocks=10, max_batch_tokens=32)
    stored = loop.submit(numbers(100, 20))
    loop.finish()
    loop.cache.store_branch(stored.branch)
    loop.release(stored)
    loop.cache.forget_device()
    background = loop.submit(numbers(0, 24), max_tokens=14, priority=1)
    loop.step()
    on_screen = loop.submit([*numbers(100, 20), 7], max_tokens=2)
    loop.finish()
    assert loop.done[1:] == [on_screen, background]
    assert loop.computed(on_screen) == [20, 21]


def test_a_request_that_was_put_back_waits_until_it_has_room_for_a_step() -> None:
    """Otherwise it would be admitted, and put back, in every step of the other."""
    loop = Loop(num_blocks=8, max_batch_tokens=16)
    loop.submit(numbers(0, 12), max_tokens=18)
    loop.submit(numbers(100, 12), max_tokens=18)
    loop.finish()
    assert loop.num_admissions == 3
    assert len(loop.done) == 2


def test_what_was_found_and_given_back_unused_is_not_counted_as_cached() -> None:
    """Trap 26: success reported, nothing restored."""
    loop = Loop(full_group(), sliding_group(1), num_blocks=[15, 13], max_batch_tokens=3)
    loop.submit([*numbers(0, 8), *numbers(0, 19)], max_tokens=11)
    loop.step()
    loop.submit(numbers(100, 18), max_tokens=2)
    last = loop.submit([0, 200])
    loop.finish()
    assert min(loop.computed(last)) == last.cached_len


def test_the_last_request_is_not_refused_for_the_block_that_a_copy_needs() -> None:
    loop = Loop(num_blocks=4, max_batch_tokens=16)
    first = loop.submit(numbers(0, 14), max_tokens=2)
    loop.finish()
    edited = loop.submit([*numbers(0, 13), 77], max_tokens=2)
    loop.finish()
    assert loop.refused == []
    assert loop.done == [first, edited]
    assert loop.computed(edited) == [12, 13, 14]


def test_a_request_that_can_never_fit_is_refused_and_the_next_one_runs() -> None:
    loop = Loop(num_blocks=4, max_batch_tokens=32)
    too_long = loop.submit(numbers(0, 18))
    short = loop.submit(numbers(100, 6))
    loop.finish()
    assert loop.refused == [too_long]
    assert short in loop.done
    assert loop.computed(short) == list(range(6))


def test_an_answer_that_outgrows_the_cache_is_ended_and_not_repeated_for_ever() -> None:
    loop = Loop(num_blocks=3, max_batch_tokens=8)
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
    loop = Loop(
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


def crowd(*groups: Group, num_running: int = 4, num_spare: int = 24) -> tuple[Loop, Entry]:
    """Return answers at work, and a long prompt for which there is no room beside them."""
    loop = Loop(*(groups or (full_group(),)), num_blocks=40 + num_spare, max_batch_tokens=200)
    for number in range(num_running):
        loop.submit([100 * number + token for token in range(40)], max_tokens=20)
    loop.step()
    waiting = loop.submit(list(range(1000, 1150)), max_tokens=2)
    loop.step()
    assert waiting in loop.scheduler.waiting
    return loop, waiting


@pytest.mark.parametrize("groups", [(full_group(),), (full_group(), sliding_group(6))])
def test_a_request_that_waits_for_room_is_not_matched_in_every_step(groups: tuple[Group, ...]) -> None:
    loop, waiting = crowd(*groups)
    with counted_calls(PrefixMatcher.match) as calls:
        for _ in range(15):
            loop.step()
    assert waiting in loop.scheduler.waiting
    assert calls["match"] <= 1
    loop.finish()
    assert waiting in loop.done


def test_a_request_that_waits_is_matched_again_when_its_path_is_being_computed() -> None:
    loop, waiting = crowd()
    loop.cancel(loop.entries[0])
    loop.release(loop.entries[0])
    loop.step()
    other = loop.submit([*waiting.branch.token_ids[:20], 7], max_tokens=9, priority=-1)
    loop.step()
    assert other in loop.scheduler.running
    with counted_calls(PrefixMatcher.match) as calls:
        loop.step()
        loop.step()
    assert calls["match"] == 1


def test_a_request_that_waits_is_matched_again_when_its_rank_changes() -> None:
    loop, waiting = crowd()
    loop.scheduler.prioritise(waiting, -1)
    loop.step()
    assert waiting in loop.scheduler.running


def test_a_request_that_waits_takes_the_room_that_somebody_leaves() -> None:
    loop, waiting = crowd()
    for entry in loop.entries[:3]:
        loop.cancel(entry)
    loop.step()
    assert waiting in loop.scheduler.running
