"""Letting blocks go for others under the limit of a cache directory, and holding room before it is needed."""

import fcntl
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from kvchat.engine.cache.eviction import SMALL_SHARE, Eviction, Ghosts
from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.block_file import FoundBlock
from kvchat.engine.memory.disk.index import BlockIndex, BlockName, IndexedBlock
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.pinned_blocks import Kept, PinnedBlocks
from kvchat.engine.memory.disk.quarantine import Quarantine
from kvchat.engine.memory.disk.write_intents import WriteIntents
from kvchat.errors import StorageError

MAX_GHOSTS: Final = 8192


class DiskEvictionOrder:
    """The order of one cache directory, over all fingerprints. Called under the directory's lock."""

    def __init__(self, index: BlockIndex, kept: Sequence[PinnedBlocks]) -> None:
        self.eviction = Eviction.S3FIFO
        self._index = index
        self._kept_lists = tuple(kept)
        self._ghosts = Ghosts(MAX_GHOSTS)
        self._refused = Ghosts(MAX_GHOSTS)

    def due(self, limit: int) -> list[IndexedBlock]:
        """Return the leaves that go next, at most `limit`; none if all that is there is kept or being
        written.
        """
        if self.eviction is Eviction.LRU:
            return self._free(limit, None)
        is_small_due = not self._is_small(0, self._index.usage().num_blocks)
        return self._free(limit, not is_small_due) or self._free(limit, is_small_due)

    def welcomes(self, name: BlockName, parent: DiskKey, num_bytes: int, limit_bytes: int) -> bool:
        """Return whether room is to be made for a block that has not been used since it was computed: not
        where all that would have to go was used again, nor behind a block for which there was none.
        """
        is_behind_refused = self._is_behind_refused(name, parent)
        if not is_behind_refused and self._has_room(name, num_bytes, limit_bytes):
            return True
        if name[:2] in self._kept():
            return True
        # Neither for its own parent, nor for what another group has of the same block.
        own = (parent, name[1])
        if not is_behind_refused and any(leaf.name not in own for leaf in self._free(len(own) + 1, False)):
            return True
        self.refuse([name])
        return False

    def refuse(self, names: Iterable[BlockName]) -> None:
        """Note that there was no room for blocks: what comes behind them would be of no use."""
        for name in names:
            self._refused.add(name[:2])
            self._refused.add(name)

    def _is_behind_refused(self, name: BlockName, parent: DiskKey) -> bool:
        """Whether there was no room for a block's parent, or for the block itself in another group."""
        if (name[0], parent) in self._refused:
            return True
        return name[:2] in self._refused and name not in self._refused

    def _has_room(self, name: BlockName, num_bytes: int, limit_bytes: int) -> bool:
        """Whether nothing has to go for a block, or what was used again."""
        usage = self._index.usage()
        has_room = usage.num_bytes + num_bytes <= limit_bytes or name in self._ghosts
        if has_room or self.eviction is Eviction.LRU:
            return True
        return self._is_small(1, usage.num_blocks + 1) or self._num_unproven() == 0

    def _is_small(self, num_more: int, num_blocks: int) -> bool:
        """Whether less than its share of the blocks was never used again, and may give way to others."""
        num_unproven = self._index.num_unproven() + num_more
        # Only where it matters, since what is kept has to be looked up.
        return num_unproven * SMALL_SHARE < num_blocks or (
            (self._num_unproven() + num_more) * SMALL_SHARE < num_blocks
        )

    def _num_unproven(self) -> int:
        """Return how many blocks were never used again and are not kept."""
        return self._index.num_unproven() - self._index.num_unproven_of(self._kept())

    def take_ghost(self, name: BlockName) -> bool:
        """Forget that a block had to go not long ago, as it is written now; return whether it had."""
        return self._ghosts.take(name)

    def restore(self, names: Iterable[BlockName]) -> None:
        """Remember what has to go though it was never used again, or had to and is not written after all."""
        for name in names:
            self._ghosts.add(name)

    def accept(self, names: Iterable[BlockName]) -> None:
        """Note that blocks are there now."""
        for name in names:
            self._refused.take(name[:2])
            self._refused.take(name)

    def _kept(self) -> Kept:
        """Return what never makes room."""
        return frozenset[tuple[bytes, DiskKey]]().union(*(kept.all() for kept in self._kept_lists))

    def _free(self, limit: int, is_proven: bool | None) -> list[IndexedBlock]:
        """Return leaves that are not kept, longest unused first; fewer only if there are no more."""
        kept = self._kept()
        num_seen = limit
        while True:
            found = self._index.oldest_leaves(num_seen, is_proven=is_proven)
            free = [leaf for leaf in found if (leaf.fingerprint, leaf.name) not in kept]
            if len(free) >= limit or len(found) < num_seen:
                return free[:limit]
            num_seen *= 4


_KIB, _MIB = 2**10, 2**20


def require_allowance(today_bytes: int, num_bytes: int, daily_bytes: int) -> None:
    """Raise StorageError if so many bytes more would be written on one day than may be."""
    if today_bytes + num_bytes > daily_bytes:
        raise StorageError(
            f"The cache has written its {daily_bytes:,} bytes of today; blocks are saved again tomorrow. "
            "Give it more with --kv-disk-daily-bytes."
        )


def no_room(
    *, limit_bytes: int, kept_bytes: int, elsewhere_bytes: int, block_bytes: int, aside_bytes: int
) -> str:
    """Return what holds the room although all that may go has gone, and what to do.

    Args:
        limit_bytes: what blocks may take.
        kept_bytes: what packs and pinned sessions have of that.
        elsewhere_bytes: what prepared weights take of the limit that a person gave.
        block_bytes: of the block that finds no room.
        aside_bytes: what damaged blocks that were set aside have of what blocks may take.
    """
    told = f"blocks may take {_size(limit_bytes)} on disk"
    if elsewhere_bytes:
        told += f", since prepared weights hold {_size(elsewhere_bytes)} of --kv-disk-bytes"
    if block_bytes > limit_bytes:
        return f"{told}, and one block takes {_size(block_bytes)}; give more with --kv-disk-bytes"
    advice = "give more with --kv-disk-bytes"
    if kept_bytes:
        told += f", and packs and pinned sessions keep {_size(kept_bytes)} of it"
        advice += ", unpin sessions with `kvchat sessions unpin`, or remove packs with `kvchat pack rm`"
    if aside_bytes:
        told += f", and damaged blocks that were set aside hold {_size(aside_bytes)} of it"
        advice += ", or let `kvchat cache gc` empty what was set aside"
    return f"{told}, and there is no room for more; {advice}"


def too_long(limit_bytes: int) -> str:
    """Return what is said where a conversation's end is left out, so that its beginning, and conversations
    that were used again, stay.
    """
    return (
        f"blocks may take {_size(limit_bytes)} on disk: of the last conversation its beginning alone is kept"
        " there, and its end is computed again; give more with --kv-disk-bytes"
    )


def _size(num_bytes: int) -> str:
    if num_bytes < _MIB:
        return f"{num_bytes / _KIB:,.1f} KiB"
    return f"{num_bytes / _MIB:,.1f} MiB"


PATIENCE_S = 5.0
_POLL_S = 0.002

Sources = tuple[bytes, Collection[DiskKey]]
"""A fingerprint, and names of blocks from which others are made."""


class DiskEviction:
    """Called under the directory's lock.

    Args:
        home: where files and index of the blocks are.
        remove: removes files of blocks, and their rows.

    Attributes:
        kept: what packs and pinned sessions keep.
        order: in which blocks go.
    """

    def __init__(
        self,
        home: Path,
        files: SystemFiles,
        index: BlockIndex,
        quarantine: Quarantine,
        in_progress: WriteIntents,
        remove: Callable[[Sequence[BlockName]], None],
    ) -> None:
        self._index = index
        self.kept = PinnedBlocks(home, files)
        self._held = PinnedBlocks(home, files, "held")
        """What is kept for as long as others are made from it, under the writer that makes them."""
        self._quarantine = quarantine
        self._in_progress = in_progress
        self._remove = remove
        self._lock_path = home / "room.lock"
        self.order = DiskEvictionOrder(index, [self.kept, self._held])

    def enforce(self, limit_bytes: int) -> bool:
        """Evict blocks in `DiskEvictionOrder` until the files fit: never a parent before its children, and
        none that is pinned.

        Returns: False if what is left is being written or kept, and is too much.
        """
        if not self._num_due(limit_bytes):
            return True
        with self._alone():
            self.settle_dead()
            return self._evict(limit_bytes)

    def _evict(self, limit_bytes: int) -> bool:
        while num_due := self._num_due(limit_bytes):
            leaves = self.order.due(num_due)
            if not leaves:
                return False
            self.order.restore(name for leaf in leaves if not leaf.is_proven for name in leaf.names)
            self._remove([name for leaf in leaves for name in leaf.names])
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have a lock (flock) on a file beside the blocks, of which the kernel lets go when its process ends.

        Two who make room at once for the same bytes would let go of twice as much, no more than that: so
        where the lock cannot be had, since a process was stopped that has it or the directory is read-only,
        things go on without.
        """
        with ExitStack() as end:
            with suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(self._lock_path, flags, 0o600)
                end.callback(os.close, descriptor)
                until_s = monotonic() + PATIENCE_S
                while not _is_taken(descriptor) and monotonic() < until_s:
                    sleep(_POLL_S)
            yield

    def hold(
        self,
        writer: str,
        blocks: Sequence[FoundBlock],
        names: Sequence[BlockName],
        sources: Sources,
        limit_bytes: int | None,
        elsewhere_bytes: int,
    ) -> None:
        """Hold room for blocks that this writer is to write, and keep what they are made from, until
        `let_go`: nobody takes either to make room. Others go first.

        Args:
            names: of the blocks.
            elsewhere_bytes: what prepared weights take of the limit that a person gave.

        Raises: StorageError: they have no room beside what may not go, with the numbers; nothing has gone.
            Or the disk refuses.
        """
        with self._alone():
            self.settle_dead()
            if limit_bytes is not None:
                new_bytes = sum(block.num_bytes for block in blocks)
                self._require_room(new_bytes, sources, limit_bytes, elsewhere_bytes)
            self._held.keep(writer, *sources)
            self._in_progress.hold(names)
            self._index.reserve(blocks, writer, [True] * len(blocks))
            if limit_bytes is not None:
                self._evict(limit_bytes)

    def let_go(self, writer: str, names: Sequence[BlockName]) -> None:
        """Hold room no longer for those of some blocks that were not written."""
        self._in_progress.release(names)
        with suppress(StorageError):  # then until this writer has ended
            self._held.let_go(writer)

    def settle_dead(self) -> None:
        """Give back what dead writers held, as far as that can be done now."""
        with suppress(StorageError):
            self._in_progress.settle_dead()
            for writer in self._held.names():
                if not self._in_progress.is_alive(writer):
                    self._held.let_go(writer)

    def remove_unfinished(self) -> None:
        """Remove lists that a killed process has left half written."""
        self.kept.remove_unfinished()
        self._held.remove_unfinished()

    def _require_room(self, new_bytes: int, sources: Sources, limit_bytes: int, elsewhere_bytes: int) -> None:
        """Raise StorageError, with the numbers, where blocks and what they are made from have no room
        together, beside what may not go either.
        """
        fingerprint, keys = sources
        made_from = frozenset((fingerprint, key) for key in keys)
        source_bytes = self._index.num_bytes(made_from)
        kept = (self.kept.all() | self._held.all()) - made_from
        others = (
            (self._index.num_bytes(kept), "packs and pinned sessions keep"),
            (self._index.unsettled_bytes(), "others are just writing"),
            (limit_bytes - self._quarantine.beside(limit_bytes), "damaged blocks that were set aside hold"),
        )
        if new_bytes + source_bytes + sum(num_bytes for num_bytes, _ in others) <= limit_bytes:
            return
        told = (
            f"new blocks of {_size(new_bytes)} have no room beside those of {_size(source_bytes)}"
            " that they are made from"
        )
        claims = (*others, (elsewhere_bytes, "prepared weights hold"))
        told += "".join(f", {words} {_size(num_bytes)}" for num_bytes, words in claims if num_bytes)
        raise StorageError(
            f"{told}, and the disk limit is {_size(limit_bytes + elsewhere_bytes)}; nothing was changed: give"
            " it more with KVCHAT_KV_DISK_BYTES for as long as this takes"
        )

    def _num_due(self, limit_bytes: int) -> int:
        """Return how many leaves go next so that the files fit, 0 where they do: a part of them at a time,
        since each that goes may turn its parent into the oldest leaf.
        """
        usage = self._index.usage()  # first: what is just being set aside counts twice then, and not never
        if self._quarantine.num_bytes() > limit_bytes // 2:
            self._quarantine.empty()
        excess_bytes = usage.num_bytes - self._quarantine.beside(limit_bytes)
        if excess_bytes <= 0:
            return 0
        return 1 + excess_bytes * usage.num_blocks // usage.num_bytes // 8


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
