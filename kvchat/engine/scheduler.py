"""Which requests run, and what each computes in the next step.

Waiting requests are admitted in order of priority, then arrival. Each step serves decoding branches first and
fills the rest of the token budget with prompt chunks, so that a long prompt never stops an answer. Under
pressure idle branches let go of their blocks first, then the least important, most recent running request
goes back to the queue; what it had computed stays cached as long as there is room.
"""

from dataclasses import dataclass, field

from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import BranchId, RequestId
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.cache.match import PrefixMatch
from kvchat.engine.cache.plan import Move
from kvchat.engine.entry import Entry as Entry


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
        while (moves := self._take(entry, match)) is None:
            if self._reset_idle() or self._requeue_less_important(entry):
                match = self.manager.match(entry.branch)
            elif match.partial and not self.running:
                # The copy's source takes a block of its own; the last request must not fail for that.
                num_whole = len(match.keys) * self.manager.block_size
                match = self.manager.match(entry.branch, max_len=num_whole)
            else:
                return None
        self.waiting.remove(entry)
        self.running.append(entry)
        if entry.loaded is None:
            entry.loaded = _provenance(match)
        return moves

    def requeue(self, entry: Entry) -> None:
        """Put a running request back; it starts again from what is cached."""
        if entry.loaded and entry.branch.computed_len <= entry.loaded.total:
            # It has used nothing of what it found, and may find less next time.
            entry.loaded = None
        self.manager.reset(entry.branch)
        self._wait_again(entry)

    def abandon(self, entry: Entry) -> None:
        """Put a request back whose blocks could not all be loaded."""
        self.manager.abandon(entry.branch)
        self._wait_again(entry)

    def schedule(self) -> Batch:
        """Choose the next step's tokens and make their slots writable. Empty if nothing can run."""
        chunks: dict[RequestId, Chunk] = {}
        moves: list[Move] = []
        for entry in sorted(self.running, key=lambda entry: (not entry.is_decoding, entry.rank)):
            budget = self.max_batch_tokens - sum(len(chunk.token_ids) for chunk in chunks.values())
            if not budget or entry.is_held or entry not in self.running:
                continue
            num_tokens = min(entry.branch.num_uncomputed, budget)
            added = self._extend(entry, num_tokens, chunks)
            if added is None:
                continue
            moves += added
            chunks[entry.id] = _chunk(entry, num_tokens)
        # An empty batch reaches no runner, so what changed must wait for the next one.
        changes, dropped = self.manager.take_changes() if chunks else ((), ())
        return Batch(tuple(chunks.values()), tuple(moves), changes, dropped)

    def _take(self, entry: Entry, match: PrefixMatch) -> tuple[Move, ...] | None:
        """Admit a branch. Beside others there must also be room for its next chunk, or it would have to make
        way in the same step.
        """
        num_following = 0
        if self.running:
            num_following = min(len(entry.branch.token_ids) - match.length, self.max_batch_tokens)
        return self.manager.admit(entry.branch, match, num_following)

    def _extend(
        self, entry: Entry, num_tokens: int, chunks: dict[RequestId, Chunk]
    ) -> tuple[Move, ...] | None:
        """Make slots writable, taking blocks from idle branches and then from less important requests, also
        from those in `chunks`.
        """
        while (moves := self.manager.extend(entry.branch, num_tokens)) is None:
            if self._reset_idle():
                continue
            if len(self.running) == 1:
                return None
            victim = max(self.running, key=lambda other: other.rank)
            chunks.pop(victim.id, None)
            self.requeue(victim)
            if victim is entry:
                return None
        return moves

    def _wait_again(self, entry: Entry) -> None:
        self.running.remove(entry)
        self.waiting.append(entry)
        self.waiting.sort(key=lambda waiting: waiting.rank)

    def _requeue_less_important(self, entry: Entry) -> bool:
        """Take the blocks of the least important running request; False if none is less important."""
        victim = max(self.running, key=lambda other: other.rank, default=entry)
        if victim.rank <= entry.rank:
            return False
        self.requeue(victim)
        return True

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
    device_len = match.length - match.host_len - match.disk_len
    return Loaded(device=device_len, host=match.host_len, disk=match.disk_len)


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
