"""A reader without a thread: blocks land when a test says so, or as a simulated clock goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvchat.engine.cache.block_operations import Fetch, LoadUnit
from kvchat.engine.memory.reader import Job, Landed
from tests.hand_clock import HandClock


@dataclass
class SteppedReader:
    """Stands in for `Reader`; one block is on its way at any time, as with the real one.

    Args:
        fetch: carries out one move.
        per_step: blocks that land with each call of `collect`.
        block_s: what one is said to take.
        first_more_s: what the first one takes besides.
    """

    fetch: Callable[[Fetch], bool]
    per_step: int = 1
    block_s: float = 0.0001
    first_more_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    landed: list[Landed] = field(default_factory=list)
    num_read: int = 0
    fails_at: int | None = None
    """Number of the block, counted as they are read, that is not to be had."""

    def submit(self, units: Sequence[LoadUnit], *, is_urgent: bool) -> Job | None:
        self.jobs.append(Job(units, is_urgent))
        return self.jobs[-1]

    def claim(self, job: Job, end: int) -> int:
        job.front = max(job.front, min(end, job.lowest_taken))
        return job.front

    def cancel(self, job: Job) -> None:
        job.is_cancelled = True

    def collect(self) -> list[Landed]:
        for _ in range(self.per_step):
            self._land_one()
        landed, self.landed = self.landed, []
        for each in landed:
            each.job.num_landed += 1
        self.jobs = [job for job in self.jobs if not job.is_over]
        return landed

    def wait(self, timeout_s: float) -> None:
        if not self.landed:
            self._land_one()

    def close(self) -> None:
        for job in self.jobs:
            job.is_cancelled = True
        while self._land_one():
            pass

    @property
    def next_s(self) -> float:
        """What the block that lands next takes."""
        return self.block_s + (self.first_more_s if not self.num_read else 0.0)

    def _land_one(self) -> bool:
        """Land what is on its way, and take the next block."""
        for job in self.jobs:
            if job.num_taken > job.num_landed + sum(each.job is job for each in self.landed):
                unit = job.units[job.num_taken - 1]
                seconds = self.next_s
                self.num_read += 1
                arrived = tuple([self.num_read != self.fails_at and self.fetch(move) for move in unit.moves])
                self.landed.append(Landed(job=job, unit=unit, arrived=arrived, seconds=seconds))
                self._take()
                return True
        return self._take()

    def _take(self) -> bool:
        due = [job for job in self.jobs if job.next is not None]
        job = next((job for job in due if job.is_urgent), due[0] if due else None)
        if job is not None:
            job.num_taken += 1
        return job is not None


@dataclass
class TimedReader(SteppedReader):
    """Reads one block in `block_s` of a simulated clock."""

    clock: HandClock = field(default_factory=HandClock)
    done_s: float = 0.0
    """When the block on its way lands."""

    def submit(self, units: Sequence[LoadUnit], *, is_urgent: bool) -> Job | None:
        job = super().submit(units, is_urgent=is_urgent)
        if len(self.jobs) == 1:
            self.done_s = self.clock() + self.next_s
            self._take()
        return job

    def claim(self, job: Job, end: int) -> int:
        self._catch_up()
        return super().claim(job, end)

    def collect(self) -> list[Landed]:
        self.per_step = 0
        self._catch_up()
        return super().collect()

    def wait(self, timeout_s: float) -> None:
        if self._is_reading:
            self.clock.now_s = max(self.clock.now_s, self.done_s)

    @property
    def _is_reading(self) -> bool:
        return any(
            job.num_taken > job.num_landed + sum(each.job is job for each in self.landed) for job in self.jobs
        )

    def _catch_up(self) -> None:
        while self._is_reading and self.done_s <= self.clock():
            self._land_one()
            self.done_s += self.next_s
