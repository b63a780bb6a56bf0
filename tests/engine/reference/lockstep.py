"""The real scheduler, loading and cache manager, step by step beside their references.

The device is a fake whose slots say which tokens they were computed from, and stored blocks come to it some
at a time, while others compute, are cancelled or need the room. After every action both sides must agree on
who runs, what each step computes, which sequences hold blocks, and how many blocks are held.
"""

import random
from collections import abc
from dataclasses import dataclass

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.load_controller import Obstacle
from tests.engine.assembly import Assembly, entry_of
from tests.engine.cache.caches import Cache
from tests.engine.drafters import MOST_GUESSES, Guesses
from tests.engine.reference.prefix_cache import Line, Reach, ReferenceCache
from tests.engine.reference.schedule import Job, ReferenceScheduler
from tests.engine.reference.shipments import Shipment, Shipments

BLOCK_SIZE = 4
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cache to drive. `reaches` say in the reference's words what `groups` see.

    Args:
        num_places: blocks of each group in host memory.
        num_tokens: ids there are; with few of them, texts agree often.
        landing_rate: stored blocks that arrive per step.
        guess_rate: how often a guess at the next token is made, and how often it is right; 0: never.
    """

    groups: tuple[Group, ...]
    reaches: tuple[Reach, ...]
    num_blocks: tuple[int, ...]
    num_places: int
    max_batch_tokens: int
    num_tokens: int = 2
    landing_rate: int = 1
    guess_rate: float = 0.0


class Lockstep:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.cache = Cache(
            *setting.groups,
            num_blocks=setting.num_blocks,
            block_size=BLOCK_SIZE,
            num_places=setting.num_places,
        )
        self.cache.reader.per_step = setting.landing_rate
        self.manager, self.flights = self.cache.manager, self.cache.flights
        guesses = Guesses(self._chosen, setting.guess_rate)
        assembly = Assembly(self.cache, setting.max_batch_tokens, drafter=guesses)
        self.scheduler, self.loading = assembly.scheduler, assembly.loading
        self.expected_cache = ReferenceCache(setting.reaches, setting.num_blocks, BLOCK_SIZE)
        self.shipments = Shipments(self.expected_cache)
        self.expected = ReferenceScheduler(
            self.expected_cache, setting.max_batch_tokens, self.shipments.let_go, guesses.draft
        )
        self.entries: dict[int, Completion] = {}
        self.ended: list[Job] = []
        self.refused: list[Job] = []
        self.texts: list[list[int]] = [[]]
        self.may_have_evicted = False
        self.num_exact = 0
        """Admissions whose reuse the reference knew to the token."""
        self.num_begun = 0
        """Requests that have waited for stored blocks."""
        self.num_accepted = 0
        """Guesses that were right."""

    # Actions

    @property
    def idle(self) -> list[Sequence]:
        """Return the sequences on which no request is open."""
        busy = {job.sequence for job in self.expected.jobs}
        return [sequence for sequence in self.manager.sequences.values() if sequence.id not in busy]

    def submit(self, prompt: abc.Sequence[int], max_tokens: int, priority: int) -> None:
        sequence = self.cache.open(prompt)
        self.expected_cache.lines[sequence.id] = Line(list(prompt))
        self._add(sequence, max_tokens, priority)

    def go_on(self, sequence: Sequence, prompt: abc.Sequence[int], max_tokens: int, priority: int) -> None:
        """Ask more on an idle sequence; a prompt it has outgrown makes it begin anew."""
        line = self.expected_cache.lines[sequence.id]
        if sequence.computed_len >= len(prompt):
            self.manager.reset(sequence)
            self.expected_cache.reset(line)
        sequence.token_ids = list(prompt)
        line.token_ids = list(prompt)
        self._add(sequence, max_tokens, priority)

    def fork(self, sequence: Sequence) -> None:
        child = self.manager.fork(sequence)
        self.expected_cache.fork(sequence.id, child.id)
        self._compare()

    def cancel(self, job: Job) -> None:
        """End a request where it stands, as the engine does between steps."""
        self._take_out(job)
        self._compare()

    def release(self, sequence: Sequence) -> None:
        self.manager.release(sequence)
        del self.expected_cache.lines[sequence.id]
        self._compare()

    def save(self, sequence: Sequence) -> None:
        """Write what a sequence holds to the slower tier."""
        self.cache.store_sequence(sequence)

    def forget_device(self) -> None:
        """Evict all that nobody holds; what other tiers have of it must come from there."""
        self.may_have_evicted = True
        self.cache.forget_device()
        self._compare()

    def step(self) -> None:
        first = min(self.expected.jobs, key=lambda job: job.rank, default=None)
        num_left, num_begun = self._num_left(first), self.num_begun
        was_busy = self.flights.is_busy
        self._note_evictions()
        self._advance_loads()
        self._admit_waiting()
        batch = self.scheduler.schedule()
        chunks = [(int(chunk.request), chunk.start, chunk.end) for chunk in batch.chunks]
        assert chunks == self.expected.schedule()
        self._compare_queues()
        self.cache.carry_out(batch.moves)
        self.expected_cache.finish_moves()
        if chunks:
            self._compute(batch)
        elif self.flights.is_busy:
            self.flights.wait(0)
        elif (stuck := self.scheduler.running or self.scheduler.waiting) != []:
            self._refuse(stuck[0])
        has_loaded = was_busy or self.num_begun > num_begun
        assert (
            first is None or self._num_left(first) < num_left or has_loaded or self._is_full_of_answers(batch)
        )
        self._compare()

    def finish(self) -> None:
        """Step until all is done, within a bound that no order of events can break.

        Each step brings the most important request on by a token, or is full of answers that grow, or ends a
        request that cannot go on, or brings stored blocks.
        """
        jobs = self.expected.jobs
        num_tokens = sum(len(job.line.token_ids) + 3 * (job.max_tokens - job.num_generated) for job in jobs)
        num_left = num_tokens + len(jobs)
        for _ in range(MOST_STEPS):
            if not self.scheduler.has_work:
                break
            num_begun, was_busy = self.num_begun, self.flights.is_busy
            self.step()
            num_left -= not was_busy and self.num_begun == num_begun
            assert num_left >= 0
        assert not self.scheduler.has_work
        self._advance_loads()
        while self.flights.is_busy:
            self.flights.wait(0)
            self._advance_loads()
        assert not self.flights.under_way

    # Parts of the above

    def _add(self, sequence: Sequence, max_tokens: int, priority: int) -> None:
        number = len(self.entries) + 1
        entry = entry_of(number, sequence, sequence.token_ids, max_tokens, priority)
        self.entries[number] = entry
        self.scheduler.add(entry)
        line = self.expected_cache.lines[sequence.id]
        self.expected.add(Job(number, priority, sequence.id, line, max_tokens))
        self.texts.append(list(sequence.token_ids))
        self._compare()

    def _advance_loads(self) -> None:
        """Let go of what was held for requests that are gone, once nothing of it is being read."""
        self.flights.collect()
        self.loading.advance()
        for shipment in self.shipments.known:
            if shipment.job not in self.expected.waiting:
                self.shipments.give_up(shipment)
        self.shipments.settle()
        self.shipments.compare(self.flights.under_way)
        for shipment in self.shipments.known:
            shipment.look()

    def _admit_waiting(self) -> None:
        waiting = sorted(self.expected.waiting, key=lambda job: job.rank)
        assert [int(entry.id) for entry in self.scheduler.waiting] == [job.number for job in waiting]
        for job in waiting:
            if not self._admit(self.entries[job.number], job):
                return

    def _admit(self, entry: Completion, job: Job) -> bool:
        """Admit one request; False if there is no room, for it or for those behind it."""
        found = self._check_match(entry.sequence)
        own = self.shipments.of(job)
        least = own.flight.match.length if own and own.flight.is_complete else found
        obstacle = self.loading.admit(entry)
        if own is not None and own.flight.is_over and not own.flight.is_complete:
            self.shipments.give_up(own)  # something of it is damaged, so it begins anew
        self._follow_those_who_made_way(job, found)
        if obstacle is Obstacle.LOADS:
            self._expect_load(job, entry)
            return True
        if obstacle is Obstacle.NO_ROOM:
            self._expect_no_room(job, found)
            return False
        if own is not None and own.is_wanted:
            self.shipments.give_up(own)
        self.shipments.compare(self.flights.under_way)
        known = entry.sequence.computed_len
        if known != found and not least <= known < found:
            # Alone, it may do without the block that the copy of a tail reads.
            assert not self.expected.running
            assert known < found
            assert not self._surely_fits(job, found)
        assert self._may_fit(job, known)
        self.expected.admit(job, known)
        return True

    def _expect_load(self, job: Job, entry: Completion) -> None:
        """Nobody waits for nothing: bytes move, and what begins to move is not on the device."""
        known = {shipment.flight for shipment in self.shipments.known}
        for flight in [flight for flight in self.flights.under_way if flight not in known]:
            self.num_begun += 1
            self.shipments.begin(Shipment(job, tuple(job.line.token_ids), flight, self.manager))
            there = self.manager.match(entry.sequence, resident=True)
            assert there.length < self.manager.match(entry.sequence).length
        self.shipments.compare(self.flights.under_way)
        assert self.flights.is_busy

    def _check_match(self, sequence: Sequence) -> int:
        """Return how much of a prompt is found, which is all there is if nothing can have been evicted."""
        prompt, found = sequence.token_ids, self.manager.match(sequence).length
        most = self.expected_cache.most_reusable(prompt)
        if self.may_have_evicted:
            assert self.expected_cache.least_reusable(prompt) <= found <= most
        else:
            assert found == most
            self.num_exact += 1
        return found

    def _follow_those_who_made_way(self, job: Job, found: int) -> None:
        """Take the blocks of those who lost them, in the order of the rules, and only if they are needed."""
        sequences = self.manager.sequences
        for line in self.expected.idle():
            number = next(n for n, known in self.expected_cache.lines.items() if known is line)
            if sequences[SequenceId(number)].computed_len == 0:
                assert not self._surely_fits(job, found)
                assert line is self.expected.idle()[0]
                self.expected_cache.reset(line)
        for shipment in self.shipments.behind(job):
            if shipment.flight.job.is_cancelled:
                assert not self._surely_fits(job, found)
                assert not self.expected.idle()
                assert shipment is self.shipments.behind(job)[0]
                self.shipments.give_up(shipment)
        still = {int(entry.id) for entry in self.scheduler.running}
        while any(other.number not in still for other in self.expected.running):
            last = max(self.expected.running, key=lambda other: other.rank)
            assert last.rank > job.rank
            assert not self.expected.idle()
            assert not self.shipments.behind(job)
            assert not self._surely_fits(job, found)
            self.expected.put_back(last)

    def _expect_no_room(self, job: Job, found: int) -> None:
        assert not self._surely_fits(job, found)
        assert not self.expected.idle()
        assert not self.shipments.behind(job)
        assert all(other.rank < job.rank for other in self.expected.running)

    def _surely_fits(self, job: Job, known: int) -> bool:
        """Whether there is room wherever the source of a copy lies."""
        num_following = self.expected.num_following(job, known)
        return self.expected_cache.can_admit(job.line.token_ids, known, num_following, num_sources=1)

    def _may_fit(self, job: Job, known: int) -> bool:
        num_following = self.expected.num_following(job, known)
        return self.expected_cache.can_admit(job.line.token_ids, known, num_following, num_sources=0)

    def _compute(self, batch: Batch) -> None:
        device, sequences = self.cache.device, self.manager.sequences
        device.apply(batch.changes, batch.dropped)
        for chunk in batch.chunks:
            sequence = sequences[chunk.sequence]
            end = chunk.start + chunk.num_certain
            assert chunk.token_ids == (*sequence.token_ids[chunk.start : end], *chunk.draft)
            device.write(sequence, chunk.start, chunk.end, chunk.draft)
        for chunk in batch.chunks:
            device.check_seen(sequences[chunk.sequence], chunk.start, chunk.end, chunk.draft)
        for chunk in batch.chunks:
            self.manager.commit(sequences[chunk.sequence], chunk.num_certain)
            self.expected_cache.compute(self.expected_cache.lines[chunk.sequence], chunk.num_certain)
            end = chunk.start + chunk.num_certain
            assert chunk.samples == (end == len(sequences[chunk.sequence].token_ids))
        for chunk in batch.chunks:
            if chunk.samples:
                job = next(job for job in self.expected.running if job.number == chunk.request)
                self._sample(job, chunk.draft)

    def _sample(self, job: Job, draft: abc.Sequence[int]) -> None:
        """Choose the next token, and those behind it as long as the draft has them right."""
        sequence, line = self.manager.sequences[SequenceId(job.sequence)], job.line
        for number, drafted in enumerate((*draft, None)):
            if number:
                self.manager.commit(sequence, 1)
                self.expected_cache.compute(line, 1)
                self.num_accepted += 1
            token = self._chosen(line.token_ids)
            self.entries[job.number].append(token, 0.0)
            line.token_ids.append(token)
            job.num_generated += 1
            if token != drafted or job.num_generated == job.max_tokens:
                break
        self.manager.retract(sequence)
        line.num_writable = 0
        if job.num_generated == job.max_tokens:
            self.texts.append(list(line.token_ids))
            self._take_out(job)

    def _chosen(self, token_ids: abc.Sequence[int]) -> int:
        """Return the token that is chosen behind others."""
        return random.Random(repr(list(token_ids))).randrange(self.setting.num_tokens)

    def _refuse(self, entry: Completion) -> None:
        """End the request that has no room though nobody else runs."""
        job = next(job for job in self.expected.jobs if job.number == entry.id)
        assert len(self.expected.running) <= 1
        self.refused.append(job)
        self._take_out(job)

    def _take_out(self, job: Job) -> None:
        entry = self.entries[job.number]
        self.scheduler.remove(entry)
        self.scheduler.touch(entry.sequence.id)
        self.expected.remove(job)
        self.ended.append(job)

    def _num_left(self, job: Job | None) -> int:
        """Return a measure of the work that a request has before it, 0 once it has ended."""
        if job is None or job in self.ended:
            return 0
        return 1 + job.num_uncomputed + 2 * (job.max_tokens - job.num_generated)

    def _is_full_of_answers(self, batch: Batch) -> bool:
        """Whether answers of others use the whole budget, each of which has come further."""
        is_full = batch.num_tokens == self.setting.max_batch_tokens
        return is_full and all(self.entries[chunk.request].num_generated for chunk in batch.chunks)

    def _note_evictions(self) -> None:
        """Remember if the next step could use up the free blocks: each request takes its own, and copies."""
        num_guesses = MOST_GUESSES if self.setting.guess_rate else 0
        most = sum((len(job.line.token_ids) + num_guesses) // BLOCK_SIZE + 3 for job in self.expected.jobs)
        if any(pool.num_free < most for pool in self.manager.pools.values()):
            self.may_have_evicted = True

    # What must agree after every action

    def _compare(self) -> None:
        self._compare_queues()
        self.shipments.compare(self.flights.under_way)
        self.cache.check()
        lines = self.expected_cache.lines
        assert {sequence.id: sequence.computed_len for sequence in self.manager.sequences.values()} == {
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
