"""Which requests run, seen through a loop that does all an engine does except for the tensors."""

import random

import pytest

from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.batch import Batch
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.spec import Group
from kvchat.engine.scheduler import Entry, Scheduler
from tests.engine.cache.caches import Cache, full_group

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
        entry = Entry(
            id=RequestId(len(self.entries) + 1),
            request=Request(token_ids=tuple(token_ids), priority=priority),
            branch=branch,
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
