"""Which requests run, and what each computes in the next step.

Waiting requests are admitted in order of priority, then arrival. Each step serves decoding branches first and
fills the rest of the token budget with prompt chunks, so that a long prompt never stops an answer. Under
pressure idle branches let go of their blocks first, then the least important, most recent running request
goes back to the queue; what it had computed stays cached as long as there is room.
"""

from dataclasses import dataclass, field

from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import BranchId, RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.cache.match import PrefixMatch
from kvchat.engine.cache.plan import Move


@dataclass(slots=True)
class Entry:
    """A request inside the scheduler."""

    id: RequestId
    request: Request
    branch: Branch
    max_tokens: int
    submitted_s: float
    prompt_len: int
    loaded: Loaded | None = None
    """Where its cached tokens came from when it was first admitted."""
    num_generated: int = 0
    first_token_s: float | None = None
    is_cancelled: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts by importance: priority, then arrival."""
        return (self.request.priority, self.id)

    @property
    def cached_len(self) -> int:
        """Prompt tokens that were found instead of computed."""
        return self.loaded.total if self.loaded else 0

    @property
    def is_decoding(self) -> bool:
        return self.branch.num_uncomputed == 1 and self.num_generated > 0


@dataclass(slots=True)
class Scheduler:
    """Queues over one cache manager. No tensors, no clock."""

    manager: CacheManager
    max_batch_tokens: int
    waiting: list[Entry] = field(default_factory=list)
    running: list[Entry] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, entry: Entry) -> None:
        """Queue a request. A branch that still holds its blocks needs no admission and runs at once."""
        if entry.branch.computed_len:
            entry.loaded = Loaded(device=entry.branch.computed_len)
            self.running.append(entry)
        else:
            self.waiting.append(entry)
            self.waiting.sort(key=lambda waiting: waiting.rank)

    def remove(self, entry: Entry) -> None:
        """Take a finished or cancelled request out; its branch stays live."""
        queue = self.running if entry in self.running else self.waiting
        queue.remove(entry)

    def next_waiting(self) -> Entry | None:
        return self.waiting[0] if self.waiting else None

    def admit(self, entry: Entry) -> tuple[Move, ...] | None:
        """Move the waiting request to the running ones with the blocks its prompt can reuse.

        Returns:
            The moves that fill them, or None if there is no room for them.
        """
        match = self.manager.match(entry.branch)
        moves = self.manager.admit(entry.branch, match)
        while moves is None and self._reset_idle():
            match = self.manager.match(entry.branch)
            moves = self.manager.admit(entry.branch, match)
        if moves is None:
            return None
        self.waiting.remove(entry)
        self.running.append(entry)
        if entry.loaded is None:
            entry.loaded = _provenance(match)
        return moves

    def requeue(self, entry: Entry) -> None:
        """Put a running request back; it starts again from what is cached."""
        self.manager.reset(entry.branch)
        self._wait_again(entry)

    def abandon(self, entry: Entry) -> None:
        """Put a request back whose blocks could not all be loaded."""
        self.manager.abandon(entry.branch)
        self._wait_again(entry)

    def schedule(self) -> Batch:
        """Choose the next step's tokens and make their slots writable. Empty if nothing can run."""
        budget = self.max_batch_tokens
        chunks: list[Chunk] = []
        moves: list[Move] = []
        order = sorted(self.running, key=lambda entry: (not entry.is_decoding, entry.rank))
        for entry in order:
            if not budget or entry not in self.running:
                continue
            num_tokens = min(entry.branch.num_uncomputed, budget)
            scheduled = {chunk.request for chunk in chunks}
            added = self._extend(entry, num_tokens, scheduled)
            if added is None:
                continue
            moves += added
            chunks.append(_chunk(entry, num_tokens))
            budget -= num_tokens
        # An empty batch reaches no runner, so what changed must wait for the next one.
        changes, dropped = self.manager.take_changes() if chunks else ((), ())
        return Batch(tuple(chunks), tuple(moves), changes, dropped)

    def _extend(self, entry: Entry, num_tokens: int, scheduled: set[RequestId]) -> tuple[Move, ...] | None:
        """Make slots writable, taking blocks from idle branches and then from less important requests."""
        while (moves := self.manager.extend(entry.branch, num_tokens)) is None:
            if self._reset_idle():
                continue
            victim = max(
                (other for other in self.running if other.id not in scheduled), key=lambda other: other.rank
            )
            alone = len(self.running) == 1
            if alone:
                return None
            self.requeue(victim)
            if victim is entry:
                return None
        return moves

    def _wait_again(self, entry: Entry) -> None:
        self.running.remove(entry)
        self.waiting.append(entry)
        self.waiting.sort(key=lambda waiting: waiting.rank)

    def _reset_idle(self) -> bool:
        """Take the blocks of the branch that has been idle longest; False if no idle branch holds any."""
        busy = {entry.branch.id for entry in self.running}
        for branch in self.manager.branches.values():
            if branch.id not in busy and branch.computed_len:
                self.manager.reset(branch)
                return True
        return False

    def touch(self, branch: BranchId) -> None:
        """Record that a branch has just become idle: it is the last to lose its blocks."""
        branches = self.manager.branches
        branches[branch] = branches.pop(branch)


def _provenance(match: PrefixMatch) -> Loaded:
    return Loaded(device=match.length - match.disk_len, disk=match.disk_len)


def _chunk(entry: Entry, num_tokens: int) -> Chunk:
    branch = entry.branch
    start = branch.computed_len
    end = start + num_tokens
    return Chunk(
        request=entry.id,
        branch=branch.id,
        start=start,
        token_ids=tuple(branch.token_ids[start:end]),
        samples=end == len(branch.token_ids),
    )
