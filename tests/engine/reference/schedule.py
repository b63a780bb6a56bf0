"""A scheduler in lists: who runs, who waits, who makes way, and what each computes next.

Its rules: the more important request goes first, then the older one. Answers that are being written are
served before prompts, also where a few of their tokens are computed again. Who needs room takes it from idle
sequences, beginning with the one that has been idle longest; then from less important jobs that wait for
stored blocks; then from the least important of those that run, which waits again. One that runs alone waits
for what is held for a more important one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvchat.engine.sequences.completion_sequence import MOST_OPEN
from tests.engine.reference.prefix_cache import Line, ReferenceCache


@dataclass(slots=True, eq=False)
class Job:
    """A request: `line` grows by `max_tokens` tokens."""

    number: int
    priority: int
    sequence: int
    line: Line
    max_tokens: int
    num_generated: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        return (self.priority, self.number)

    @property
    def num_uncomputed(self) -> int:
        return len(self.line.token_ids) - self.line.num_computed

    @property
    def is_decoding(self) -> bool:
        return self.num_generated > 0 and self.num_uncomputed == 1

    @property
    def is_answering(self) -> bool:
        return self.num_generated > 0 and self.num_uncomputed <= MOST_OPEN


@dataclass(slots=True)
class ReferenceScheduler:
    cache: ReferenceCache
    max_batch_tokens: int
    let_go: Callable[[Job], bool]
    """Gives up blocks that are held for less important jobs; False if none comes free."""
    guess: Callable[[int, Sequence[int]], tuple[int, ...]] = lambda number, text: ()
    """Job and text → tokens that may follow."""
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)

    @property
    def jobs(self) -> list[Job]:
        return [*self.running, *self.waiting]

    def add(self, job: Job) -> None:
        job.line.priority = job.priority
        (self.running if job.line.num_computed else self.waiting).append(job)

    def remove(self, job: Job) -> None:
        """Take a job out; its sequence is the last of the idle ones to lose its blocks."""
        (self.running if job in self.running else self.waiting).remove(job)
        self.cache.lines[job.sequence] = self.cache.lines.pop(job.sequence)

    def admit(self, job: Job, known: int) -> None:
        self.waiting.remove(job)
        self.running.append(job)
        self.cache.admit(job.line, known)

    def put_back(self, job: Job) -> None:
        self.running.remove(job)
        self.waiting.append(job)
        self.cache.reset(job.line)

    def idle(self) -> list[Line]:
        """Return the sequences that hold something nobody computes on: the least important first, and among
        equals the one idle longest.
        """
        busy = [job.line for job in self.running]
        idle = [line for line in self.cache.lines.values() if line.num_computed and line not in busy]
        return sorted(idle, key=lambda line: -line.priority)

    def num_following(self, job: Job, known: int) -> int:
        """Return the tokens behind the known ones for which there must be room beside others."""
        return min(len(job.line.token_ids) - known, self.max_batch_tokens) if self.running else 0

    def schedule(self) -> list[tuple[int, int, int]]:
        """Return who computes which tokens, as (number, start, end)."""
        chunks: dict[int, tuple[int, int]] = {}
        for job in sorted(self.running, key=lambda job: (not job.is_answering, job.rank)):
            left = self.max_batch_tokens - sum(end - start for start, end in chunks.values())
            num_tokens = min(left, job.num_uncomputed)
            if num_tokens and job in self.running and self._make_room(job, num_tokens, chunks):
                start = job.line.num_computed
                chunks[job.number] = (start, start + num_tokens)
        self._add_guesses(chunks)
        return [(number, start, end) for number, (start, end) in chunks.items()]

    def _add_guesses(self, chunks: dict[int, tuple[int, int]]) -> None:
        """Compute guesses with what budget and blocks are left over."""
        jobs = {job.number: job for job in self.running}
        left = self.max_batch_tokens - sum(end - start for start, end in chunks.values())
        for job in [jobs[number] for number in chunks if jobs[number].is_decoding]:
            most = min(left, job.max_tokens - job.num_generated - 1)
            guess = self.guess(job.number, job.line.token_ids)[:most]
            left -= len(guess)  # also where it finds no blocks
            if guess and self.cache.can_extend_further(job.line, 1 + len(guess)):
                job.line.num_writable = 1 + len(guess)
                start, end = chunks[job.number]
                chunks[job.number] = (start, end + len(guess))

    def _make_room(self, job: Job, num_tokens: int, chunks: dict[int, tuple[int, int]]) -> bool:
        while not self.cache.can_extend(job.line, num_tokens):
            if idle := self.idle():
                self.cache.reset(idle[0])
            elif self.let_go(job):
                continue
            elif self.running == [job]:
                return False
            else:
                last = max(self.running, key=lambda other: other.rank)
                chunks.pop(last.number, None)
                self.put_back(last)
                if last is job:
                    return False
        self.cache.extend(job.line, num_tokens)
        return True
