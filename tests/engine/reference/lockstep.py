"""The real scheduler and cache manager, step by step beside their references.

The device is a fake whose slots say which tokens they were computed from. After every action both sides must
agree on who runs, what each step computes, which branches hold blocks, and how many blocks are held.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.ids import BranchId, RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.batch import Batch
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.spec import Group
from kvchat.engine.scheduler import Entry, Scheduler
from tests.engine.cache.caches import Cache
from tests.engine.reference.prefix_cache import Line, Reach, ReferenceCache
from tests.engine.reference.schedule import Job, ReferenceScheduler

BLOCK_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cache to drive. `reaches` say in the reference's words what `groups` see.

    Args:
        num_places: blocks of each group in host memory.
        num_tokens: ids there are; with few of them, texts agree often.
    """

    groups: tuple[Group, ...]
    reaches: tuple[Reach, ...]
    num_blocks: tuple[int, ...]
    num_places: int
    max_batch_tokens: int
    num_tokens: int = 2


class Lockstep:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.cache = Cache(
            *setting.groups,
            num_blocks=setting.num_blocks,
            block_size=BLOCK_SIZE,
            num_places=setting.num_places,
        )
        self.manager = self.cache.manager
        self.scheduler = Scheduler(self.manager, setting.max_batch_tokens)
        self.expected_cache = ReferenceCache(setting.reaches, setting.num_blocks, BLOCK_SIZE)
        self.expected = ReferenceScheduler(self.expected_cache, setting.max_batch_tokens)
        self.entries: dict[int, Entry] = {}
        self.ended: list[Job] = []
        self.refused: list[Job] = []
        self.texts: list[list[int]] = [[]]
        self.may_have_evicted = False
        self.num_exact = 0
        """Admissions whose reuse the reference knew to the token."""

    # Actions

    @property
    def idle(self) -> list[Branch]:
        """Return the branches on which no request is open."""
        busy = {job.branch for job in self.expected.jobs}
        return [branch for branch in self.manager.branches.values() if branch.id not in busy]

    def submit(self, prompt: Sequence[int], max_tokens: int, priority: int) -> None:
        branch = self.cache.open(prompt)
        self.expected_cache.lines[branch.id] = Line(list(prompt))
        self._add(branch, max_tokens, priority)

    def go_on(self, branch: Branch, prompt: Sequence[int], max_tokens: int, priority: int) -> None:
        """Ask more on an idle branch; a prompt it has outgrown makes it begin anew."""
        line = self.expected_cache.lines[branch.id]
        if branch.computed_len >= len(prompt):
            self.manager.reset(branch)
            self.expected_cache.reset(line)
        branch.token_ids = list(prompt)
        line.token_ids = list(prompt)
        self._add(branch, max_tokens, priority)

    def fork(self, branch: Branch) -> None:
        child = self.manager.fork(branch)
        self.expected_cache.fork(branch.id, child.id)
        self._compare()

    def cancel(self, job: Job) -> None:
        """End a request where it stands, as the engine does between steps."""
        self._take_out(job)
        self._compare()

    def release(self, branch: Branch) -> None:
        self.manager.release(branch)
        del self.expected_cache.lines[branch.id]
        self._compare()

    def save(self, branch: Branch) -> None:
        """Write what a branch holds to the slower tier."""
        self.cache.store_branch(branch)

    def step(self) -> None:
        first = min(self.expected.jobs, key=lambda job: job.rank, default=None)
        num_left = self._num_left(first)
        self._note_evictions()
        self._admit_waiting()
        batch = self.scheduler.schedule()
        chunks = [(int(chunk.request), chunk.start, chunk.end) for chunk in batch.chunks]
        assert chunks == self.expected.schedule()
        self._compare_queues()
        assert self.cache.device.execute(batch.moves)
        self.manager.finish_moves()
        self.expected_cache.finish_moves()
        if chunks:
            self._compute(batch)
        elif (stuck := self.scheduler.running or self.scheduler.waiting) != []:
            self._refuse(stuck[0])
        assert first is None or self._num_left(first) < num_left or self._is_full_of_answers(batch)
        self._compare()

    def finish(self) -> None:
        """Step until all is done, within a bound that no order of events can break.

        Each step brings the most important request on by a token, or is full of answers that grow, or ends a
        request that cannot go on.
        """
        jobs = self.expected.jobs
        num_tokens = sum(len(job.line.token_ids) + 3 * (job.max_tokens - job.num_generated) for job in jobs)
        for _ in range(num_tokens + len(jobs)):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work

    # Parts of the above

    def _add(self, branch: Branch, max_tokens: int, priority: int) -> None:
        number = len(self.entries) + 1
        request = Request(token_ids=tuple(branch.token_ids), priority=priority)
        entry = Entry(
            id=RequestId(number),
            request=request,
            branch=branch,
            max_tokens=max_tokens,
            submitted_s=0.0,
            prompt_len=len(branch.token_ids),
        )
        self.entries[number] = entry
        self.scheduler.add(entry)
        line = self.expected_cache.lines[branch.id]
        self.expected.add(Job(number, priority, branch.id, line, max_tokens))
        self.texts.append(list(branch.token_ids))
        self._compare()

    def _admit_waiting(self) -> None:
        while (entry := self.scheduler.next_waiting()) is not None:
            job = self.expected.next_waiting()
            assert job is not None
            assert job.number == entry.id
            if not self._admit(entry, job):
                return

    def _admit(self, entry: Entry, job: Job) -> bool:
        """Admit one request; False if there is no room."""
        found = self._check_match(entry.branch)
        was_alone = not self.expected.running
        moves = self.scheduler.admit(entry)
        known = found if moves is None else entry.branch.computed_len
        self._follow_those_who_made_way(job, found)
        if moves is None:
            self._expect_no_room(job, found)
            return False
        if known != found:
            # Alone, it may do without the block that the copy of a tail reads.
            assert was_alone
            assert known <= found // BLOCK_SIZE * BLOCK_SIZE
            assert not self._surely_fits(job, found)
        assert self._may_fit(job, known)
        self.expected.admit(job, known)
        if not self.cache.device.execute(moves):
            self.manager.finish_moves()
            self.scheduler.abandon(entry)
            self.expected.put_back(job)
            return True
        self.manager.finish_moves()
        self.manager.confirm(entry.branch)
        return True

    def _check_match(self, branch: Branch) -> int:
        """Return how much of a prompt is found, which is all there is if nothing can have been evicted."""
        prompt, found = branch.token_ids, self.manager.match(branch).length
        most = self.expected_cache.most_reusable(prompt)
        if self.may_have_evicted:
            assert self.expected_cache.least_reusable(prompt) <= found <= most
        else:
            assert found == most
            self.num_exact += 1
        return found

    def _follow_those_who_made_way(self, job: Job, found: int) -> None:
        """Take the blocks of those who lost them, in the order of the rules, and only if they are needed."""
        branches = self.manager.branches
        for line in self.expected.idle():
            number = next(n for n, known in self.expected_cache.lines.items() if known is line)
            if branches[BranchId(number)].computed_len == 0:
                assert not self._surely_fits(job, found)
                assert line is self.expected.idle()[0]
                self.expected_cache.reset(line)
        still = {int(entry.id) for entry in self.scheduler.running}
        while any(other.number not in still for other in self.expected.running):
            last = max(self.expected.running, key=lambda other: other.rank)
            assert last.rank > job.rank
            assert not self.expected.idle()
            assert not self._surely_fits(job, found)
            self.expected.put_back(last)

    def _expect_no_room(self, job: Job, found: int) -> None:
        assert not self._surely_fits(job, found)
        assert not self.expected.idle()
        assert all(other.rank < job.rank for other in self.expected.running)

    def _surely_fits(self, job: Job, known: int) -> bool:
        """Whether there is room wherever the source of a copy lies."""
        num_following = self.expected.num_following(job, known)
        return self.expected_cache.can_admit(job.line.token_ids, known, num_following, num_sources=1)

    def _may_fit(self, job: Job, known: int) -> bool:
        num_following = self.expected.num_following(job, known)
        return self.expected_cache.can_admit(job.line.token_ids, known, num_following, num_sources=0)

    def _compute(self, batch: Batch) -> None:
        device, branches = self.cache.device, self.manager.branches
        device.apply(batch.changes, batch.dropped)
        for chunk in batch.chunks:
            branch = branches[chunk.branch]
            assert chunk.token_ids == tuple(branch.token_ids[chunk.start : chunk.end])
            device.write(branch, chunk.start, chunk.end)
        for chunk in batch.chunks:
            device.check_seen(branches[chunk.branch], chunk.start, chunk.end)
        for chunk in batch.chunks:
            self.manager.commit(branches[chunk.branch], chunk.end - chunk.start)
            self.expected_cache.compute(self.expected_cache.lines[chunk.branch])
            assert chunk.samples == (chunk.end == len(branches[chunk.branch].token_ids))
        for chunk in batch.chunks:
            if chunk.samples:
                self._sample(next(job for job in self.expected.running if job.number == chunk.request))

    def _sample(self, job: Job) -> None:
        token = random.Random(repr(job.line.token_ids)).randrange(self.setting.num_tokens)
        entry = self.entries[job.number]
        entry.append(token, 0.0)
        job.line.token_ids.append(token)
        job.num_generated += 1
        if job.num_generated == job.max_tokens:
            self.texts.append(list(job.line.token_ids))
            self._take_out(job)

    def _refuse(self, entry: Entry) -> None:
        """End the request that has no room though nobody else runs."""
        job = next(job for job in self.expected.jobs if job.number == entry.id)
        assert len(self.expected.running) <= 1
        self.refused.append(job)
        self._take_out(job)

    def _take_out(self, job: Job) -> None:
        entry = self.entries[job.number]
        self.scheduler.remove(entry)
        self.scheduler.touch(entry.branch.id)
        self.expected.remove(job)
        self.ended.append(job)

    def _num_left(self, job: Job | None) -> int:
        """Return a measure of the work that a request has before it, 0 once it has ended."""
        if job is None or job in self.ended:
            return 0
        return 1 + job.num_uncomputed + 2 * (job.max_tokens - job.num_generated)

    def _is_full_of_answers(self, batch: Batch) -> bool:
        """Whether answers of others use the whole budget, each of which has become longer."""
        return batch.num_tokens == self.setting.max_batch_tokens == len(batch.chunks)

    def _note_evictions(self) -> None:
        """Remember if the next step could use up the free blocks: each request takes its own, and copies."""
        most = sum(len(job.line.token_ids) // BLOCK_SIZE + 3 for job in self.expected.jobs)
        if any(pool.num_free < most for pool in self.manager.pools.values()):
            self.may_have_evicted = True

    # What must agree after every action

    def _compare(self) -> None:
        self._compare_queues()
        self.cache.check()
        lines = self.expected_cache.lines
        assert {branch.id: branch.computed_len for branch in self.manager.branches.values()} == {
            number: line.num_computed for number, line in lines.items()
        }
        for number, pool in enumerate(self.manager.pools.values()):
            assert pool.num_used == len(self.expected_cache.held(number))
            assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks

    def _compare_queues(self) -> None:
        for real, expected in (
            (self.scheduler.running, self.expected.running),
            (self.scheduler.waiting, self.expected.waiting),
        ):
            assert sorted(int(entry.id) for entry in real) == sorted(job.number for job in expected)
