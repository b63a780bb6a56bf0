"""Brings blocks to the device beside decoding: a bounded queue of jobs and two threads.

The engine's thread hands in jobs, asks what has landed, and never waits for a medium. While a prompt is
computed from its front, its job is read from the tail; the two meet wherever they meet, because each takes
the next block under the same lock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from time import perf_counter

from kvchat.engine.cache.block_operations import Fetch, LoadUnit

NUM_THREADS = 2
NUM_AHEAD = 8
"""Units that are read ahead while one before them is read."""


@dataclass(slots=True, eq=False)
class Job:
    """Units in the order in which they are read, last block first. Only the reader changes it.

    `is_urgent`: a request waits for it, so it comes before those that nobody waits for.
    """

    units: Sequence[LoadUnit]
    is_urgent: bool = True
    num_taken: int = 0
    num_read_ahead: int = 0
    num_read: int = 0
    num_landed: int = 0
    """Units that were collected."""
    front: int = 0
    """Blocks before this number are computed, not read."""
    is_cancelled: bool = False

    @property
    def next(self) -> LoadUnit | None:
        """The unit to read next, None if nothing is left to take."""
        if self.is_cancelled or self.num_taken == len(self.units):
            return None
        unit = self.units[self.num_taken]
        return unit if unit.number >= self.front else None

    @property
    def is_at_rest(self) -> bool:
        """Whether no byte of it will move any more."""
        return self.next is None and self.num_read == self.num_taken

    @property
    def is_over(self) -> bool:
        """Whether no byte of it will move any more, and all that has landed was collected."""
        return self.next is None and self.num_landed == self.num_taken

    @property
    def lowest_taken(self) -> int:
        """Number of the first of the blocks that are read or being read."""
        return self.units[self.num_taken - 1].number if self.num_taken else self.units[0].number + 1

    @property
    def waiting_bytes(self) -> int:
        if self.is_cancelled:
            return 0
        return sum(unit.num_bytes for unit in self.units[self.num_taken :] if unit.number >= self.front)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A unit that has been read.

    Args:
        arrived: for each of its moves, whether the bytes are there.
        seconds: since the one before, or since it was begun if nothing was on its way then.
    """

    job: Job
    unit: LoadUnit
    arrived: tuple[bool, ...]
    seconds: float


@dataclass(slots=True, eq=False)
class Reader:
    """Reads jobs one after another in threads of its own: while one verifies a block, the other reads.

    Args:
        fetch: carries out one move; False if there is nothing to be had. Called in the reader's threads.
        max_bytes: most bytes that wait in the queue; a single larger job is taken when nothing else waits.
        read_ahead: called with moves some time before they are fetched. True if one is near already; then it
            is not called with some behind it. Must not wait.
    """

    fetch: Callable[[Fetch], bool]
    max_bytes: int
    read_ahead: Callable[[Fetch], bool] = lambda _: True
    num_threads: int = NUM_THREADS
    _jobs: deque[Job] = field(default_factory=deque)
    _landed: deque[Landed] = field(default_factory=deque)
    _lock: Lock = field(default_factory=Lock)
    _due: Condition = field(init=False)
    """Units can be taken, or the reader is closed."""
    _rested: Condition = field(init=False)
    """A job has come to rest."""
    _threads: list[Thread] = field(default_factory=list)
    _landed_s: float = 0.0
    _is_closed: bool = False
    _error: BaseException | None = None

    def __post_init__(self) -> None:
        self._due = Condition(self._lock)
        self._rested = Condition(self._lock)

    def submit(self, units: Sequence[LoadUnit], *, is_urgent: bool = True) -> Job | None:
        """Queue the units, to be read in this order; None if the queue has no room for them."""
        assert units
        job = Job(units, is_urgent)
        with self._lock:
            waiting_bytes = sum(job.waiting_bytes for job in self._jobs)
            if waiting_bytes and waiting_bytes + job.waiting_bytes > self.max_bytes:
                return None
            self._jobs.append(job)
            if not self._threads:  # an engine that never loads has no thread for it
                self._start()
            self._due.notify_all()
        return job

    def claim(self, job: Job, end: int) -> int:
        """Keep the blocks before `end` to be computed, but for what is being read already; return the number
        of the first that is not kept, at most `end`.
        """
        with self._lock:
            job.front = max(job.front, min(end, job.lowest_taken))
            return job.front

    def cancel(self, job: Job) -> None:
        """Take nothing more of a job; `is_over` tells when the unit being read has landed."""
        with self._lock:
            job.is_cancelled = True

    def collect(self) -> list[Landed]:
        """Return what has landed since the last call.

        Raises:
            Exception: what a move has raised; it is a bug, as a move answers False where a block is missing.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            landed = list(self._landed)
            self._landed.clear()
            for each in landed:
                each.job.num_landed += 1
            self._jobs = deque(job for job in self._jobs if not job.is_over)
            return landed

    def wait(self, timeout_s: float) -> None:
        """Wait until a job has come to rest, at most `timeout_s`; not at all if nothing is being read.

        Not until the next unit has landed: waking the engine for each would hold up the reader's threads.
        """
        with self._lock:
            self._rested.wait_for(
                lambda: self._error or not self._jobs or any(job.is_at_rest for job in self._jobs), timeout_s
            )

    def close(self) -> None:
        """End the threads after the units they are reading."""
        with self._lock:
            self._is_closed = True
            self._due.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        for number in range(self.num_threads):
            name = f"kvchat-block-reader-{number}"
            self._threads.append(Thread(target=self._run, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            job, unit, soon = taken
            begun_s = perf_counter()
            try:
                near = [self.read_ahead(move) for each in soon for move in each.moves]
                arrived = tuple([self.fetch(move) for move in unit.moves])
            except BaseException as error:
                with self._lock:
                    self._error = error
                    self._rested.notify_all()
                return
            with self._lock:
                now_s = perf_counter()
                seconds = now_s - max(begun_s, self._landed_s)
                self._landed_s = now_s
                self._landed.append(Landed(job=job, unit=unit, arrived=arrived, seconds=seconds))
                job.num_read += 1
                if near and all(near):
                    job.num_read_ahead = job.num_taken + 2 * NUM_AHEAD
                if job.is_at_rest:
                    self._rested.notify_all()

    def _take(self) -> tuple[Job, LoadUnit, Sequence[LoadUnit]] | None:
        """Wait for the next unit, and say which to read ahead; None once closed."""
        with self._lock:
            self._due.wait_for(lambda: self._is_closed or self._first() is not None)
            job = self._first()
            if self._is_closed or job is None:
                return None
            unit = job.next
            assert unit is not None
            job.num_taken += 1
            end = job.num_taken + NUM_AHEAD
            soon = [unit for unit in job.units[job.num_read_ahead : end] if unit.number >= job.front]
            job.num_read_ahead = max(job.num_read_ahead, end)
            return job, unit, soon

    def _first(self) -> Job | None:
        due = [job for job in self._jobs if job.next is not None]
        return next((job for job in due if job.is_urgent), due[0] if due else None)
