"""The engine's step without tensors: requests whose next token is a function of their tokens."""

import random

from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence
from tests.engine.assembly import Assembly, entry_of
from tests.engine.cache.caches import Cache, full_group


class StepLoop:
    """Steps requests whose next token is a function of their tokens; remembers what was computed."""

    def __init__(self, *groups: Group, num_blocks: int | list[int] = 32, max_batch_tokens: int = 16) -> None:
        self.cache = Cache(*(groups or (full_group(),)), num_blocks=num_blocks)
        self.assembly = Assembly(self.cache, max_batch_tokens)
        self.scheduler = self.assembly.scheduler
        self.batches: list[Batch] = []
        self.entries: list[Completion] = []
        self.done: list[Completion] = []
        self.refused: list[Completion] = []
        self.num_admissions = 0

    def submit(
        self, token_ids: list[int], max_tokens: int = 1, priority: int = 0, sequence: Sequence | None = None
    ) -> Completion:
        sequence = sequence or self.cache.open(token_ids)
        entry = entry_of(len(self.entries) + 1, sequence, token_ids, max_tokens, priority)
        self.entries.append(entry)
        self.scheduler.add(entry)
        return entry

    def cancel(self, entry: Completion) -> None:
        self.scheduler.remove(entry)
        self.scheduler.touch(entry.sequence.id)
        self.done.append(entry)

    def release(self, entry: Completion) -> None:
        self.cache.manager.release(entry.sequence)

    def step(self) -> Batch:
        self.assembly.advance_loads()
        self.num_admissions += sum(1 for _ in self.assembly.loading.admit_waiting())
        batch = self.scheduler.schedule()
        assert batch.num_tokens <= self.scheduler.max_batch_tokens
        self.cache.carry_out(batch.moves)
        if batch.chunks:
            self._compute(batch)
        elif self.cache.flights.is_busy:
            self.cache.flights.wait(0)
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

    def answered_and_stored(self, token_ids: list[int]) -> None:
        """Have a prompt answered, and keep what was computed for it on the slower tier alone."""
        entry = self.submit(token_ids)
        self.finish()
        self.cache.store_sequence(entry.sequence)
        self.release(entry)
        self.cache.forget_device()

    def computed(self, entry: Completion) -> list[int]:
        """Return the positions computed for a request, in order."""
        return [
            position
            for batch in self.batches
            for chunk in batch.chunks
            if chunk.request == entry.id
            for position in range(chunk.start, chunk.end)
        ]

    def _compute(self, batch: Batch) -> None:
        self.cache.device.apply(batch.changes, batch.dropped)
        sequences = self.cache.manager.sequences
        for chunk in batch.chunks:
            sequence = sequences[chunk.sequence]
            assert chunk.start == sequence.computed_len
            assert chunk.token_ids == tuple(sequence.token_ids[chunk.start : chunk.end])
            self.cache.device.write(sequence, chunk.start, chunk.end)
        for chunk in batch.chunks:
            self.cache.device.check_seen(sequences[chunk.sequence], chunk.start, chunk.end)
        for chunk in batch.chunks:
            self.cache.manager.commit(sequences[chunk.sequence], chunk.end - chunk.start)
            if chunk.samples:
                self._sample(next(entry for entry in self.entries if entry.id == chunk.request))

    def _sample(self, entry: Completion) -> None:
        entry.sequence.token_ids.append(random.Random(repr(entry.sequence.token_ids)).randrange(50))
        entry.num_generated += 1
        if entry.num_generated >= entry.max_tokens:
            self.cancel(entry)


def numbers(start: int, num_tokens: int) -> list[int]:
    return list(range(start, start + num_tokens))
