"""Eviction order of cached blocks: S3-FIFO, or least recently used as a control.

Both evict leaves first: a block whose child is in the same pool stands aside when its turn comes, and it is
due again, before all others, when its last child has gone. So a chain is given up from its end, and what is
left of it can be used. In groups with a window a block does without its parent, and nothing stands aside.

Source: S3-FIFO, Yang et al., SOSP 2023. Differences: blocks are in the queues only while nothing holds them;
each time a block is spared it costs one of its uses, also on its way from the small to the main queue.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from kvchat.engine.api.ids import BlockId, BlockKey

SMALL_SHARE: Final = 10
"""The small queue is evicted from while it has at least one in so many of the cached blocks."""
MAX_USES: Final = 3

IsLeaf = Callable[[BlockId], bool]


class Eviction(StrEnum):
    """How cached blocks give way: scan-resistant, or as a control by age alone."""

    S3FIFO = "s3fifo"
    LRU = "lru"


class EvictionOrder(Protocol):
    """The cached blocks of one pool, in the order in which they give way."""

    def __len__(self) -> int: ...

    def __contains__(self, block: BlockId) -> bool: ...

    def add(self, block: BlockId, key: BlockKey) -> None:
        """Take in a named block that nothing holds any more."""
        ...

    def remove(self, block: BlockId) -> None:
        """Take out a block that is held again."""
        ...

    def touch(self, block: BlockId) -> None:
        """Note that a request uses a block, held or not."""
        ...

    def due(self, block: BlockId) -> None:
        """Note that a block's last child has gone; nothing happens unless it stands aside."""
        ...

    def forget(self, block: BlockId) -> None:
        """Note that a block has lost its name; it must not be in the order."""
        ...

    def victim(self, is_leaf: IsLeaf) -> BlockId:
        """Take out and return the block to evict; there must be one."""
        ...


class LeafQueue:
    """Blocks, first in first out, of which those with children stand aside. Amortised O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[BlockId, None] = OrderedDict()
        self._aside: dict[BlockId, None] = {}

    def __len__(self) -> int:
        return len(self._queue) + len(self._aside)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._queue or block in self._aside

    def append(self, block: BlockId) -> None:
        assert block not in self
        self._queue[block] = None

    def remove(self, block: BlockId) -> None:
        if block in self._aside:
            del self._aside[block]
        else:
            del self._queue[block]

    def due(self, block: BlockId) -> None:
        """Put a block that stands aside at the head: its turn came before that of all others."""
        if block in self._aside:
            del self._aside[block]
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)

    def pop(self, is_leaf: IsLeaf) -> BlockId | None:
        """Take out the first leaf, None if there is none."""
        while self._queue:
            block, _ = self._queue.popitem(last=False)
            if is_leaf(block):
                return block
            self._aside[block] = None
        return None

    def pop_aside(self) -> BlockId | None:
        """Take out a block that has children, all of which are held."""
        block = next(iter(self._aside), None)
        if block is not None:
            del self._aside[block]
        return block


class LeastRecentlyUsed(LeafQueue):
    """The block that was let go of longest ago gives way; one scan of a long document flushes everything."""

    def add(self, block: BlockId, key: BlockKey) -> None:
        self.append(block)

    def touch(self, block: BlockId) -> None:
        pass

    def forget(self, block: BlockId) -> None:
        pass

    def victim(self, is_leaf: IsLeaf) -> BlockId:
        block = self.pop(is_leaf)
        if block is None:
            block = self.pop_aside()
        assert block is not None
        return block


class S3Fifo:
    """A small queue for blocks used once, a main queue for the others, and the names of what left the small
    one: a block that comes back soon goes to the main queue at once.
    """

    def __init__(self, num_blocks: int) -> None:
        """Args:
        num_blocks: size of the pool; as many names are remembered as the main queue has room for.
        """
        self._small = LeafQueue()
        self._main = LeafQueue()
        self._ghosts = Ghosts(num_blocks - num_blocks // SMALL_SHARE)
        self._keys: dict[BlockId, BlockKey] = {}
        self._uses: dict[BlockId, int] = {}
        self._proven: set[BlockId] = set()
        """Blocks that belong into the main queue, held or not."""

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._keys

    def add(self, block: BlockId, key: BlockKey) -> None:
        self._keys[block] = key
        if self._ghosts.take(key) or block in self._proven:
            self._proven.add(block)
            self._main.append(block)
        elif not self._promote(block):
            self._small.append(block)

    def remove(self, block: BlockId) -> None:
        del self._keys[block]
        (self._main if block in self._main else self._small).remove(block)

    def touch(self, block: BlockId) -> None:
        self._uses[block] = min(MAX_USES, self._uses.get(block, 0) + 1)

    def due(self, block: BlockId) -> None:
        self._small.due(block)
        self._main.due(block)

    def forget(self, block: BlockId) -> None:
        assert block not in self
        self._uses.pop(block, None)
        self._proven.discard(block)

    def victim(self, is_leaf: IsLeaf) -> BlockId:
        block = next(self._unused_leaves(is_leaf), None)
        if block is None:
            block = self._small.pop_aside()
        if block is None:
            block = self._main.pop_aside()
        assert block is not None
        del self._keys[block]
        return block

    def _unused_leaves(self, is_leaf: IsLeaf) -> Iterator[BlockId]:
        """Yield leaves to evict; blocks that have been used go to the end of the main queue instead."""
        while True:
            block = self._small.pop(is_leaf) if self._is_small_due() else None
            if block is None:
                block = self._main.pop(is_leaf)
            if block is None:
                block = self._small.pop(is_leaf)
            if block is None:
                return
            if not self._promote(block):
                if block not in self._proven:
                    self._ghosts.add(self._keys[block])
                yield block

    def _is_small_due(self) -> bool:
        return len(self._small) * SMALL_SHARE >= len(self)

    def _promote(self, block: BlockId) -> bool:
        """Put a block that has been used at the end of the main queue, at the cost of one use."""
        uses = self._uses.get(block, 0)
        if not uses:
            return False
        self._uses[block] = uses - 1
        self._proven.add(block)
        self._main.append(block)
        return True


class Ghosts:
    """Names of blocks that were evicted, at most so many; the oldest are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def add(self, key: Hashable) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def take(self, key: Hashable) -> bool:
        """Forget a name and return whether it was known."""
        if key not in self._keys:
            return False
        del self._keys[key]
        return True


def make_order(eviction: Eviction, num_blocks: int) -> EvictionOrder:
    """Return an empty order for a pool of `num_blocks` blocks."""
    return S3Fifo(num_blocks) if eviction is Eviction.S3FIFO else LeastRecentlyUsed()


@dataclass(slots=True)
class _Snapshot:
    """A named state and its place.

    Args:
        num_tokens: that it stands behind.
        path: the root and the full blocks before the block that it stands in or ends.
        below: the next shorter one that it is behind; None: there is none.
        used: number of the request that used it last.
    """

    num_tokens: int
    path: Sequence[BlockKey]
    below: "_Snapshot | None"
    used: int

    @property
    def gap(self) -> int:
        """Tokens that are computed again without it, to within a block."""
        return self.num_tokens - (self.below.num_tokens if self.below else 0)

    def is_behind(self, other: "_Snapshot") -> bool:
        """Whether another one is on its path, or leaves it within the block that the other stands in."""
        num = len(other.path)
        return other.num_tokens < self.num_tokens and other.path[-1:] == self.path[num - 1 : num]


class SnapshotOrder:
    """The cached state snapshots of one pool: first goes what is least missed.

    Without a snapshot a request starts at the next one below it on the same path, so what it is worth is the
    gap between the two; it is worth less the more requests have come since one used it. None stands aside for
    a child: one does without all others. Finding a victim looks at all of them, which are hundreds at most.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        """Args:
        now: number of the last request.
        """
        self._now = now
        self._known: dict[BlockId, _Snapshot] = {}
        self._cached: dict[BlockId, None] = {}

    def __len__(self) -> int:
        return len(self._cached)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._cached

    def note(self, block: BlockId, num_tokens: int, path: Sequence[BlockKey]) -> None:
        """Note where a named state stands: see `_Snapshot`."""
        new = _Snapshot(num_tokens, path, None, self._now())
        new.below = self._below(new)
        for one in self._known.values():
            if one.is_behind(new) and (one.below is None or one.below.num_tokens < num_tokens):
                one.below = new
        self._known[block] = new

    def add(self, block: BlockId, key: BlockKey) -> None:
        self._cached[block] = None

    def remove(self, block: BlockId) -> None:
        del self._cached[block]

    def touch(self, block: BlockId) -> None:
        if block in self._known:
            self._known[block].used = self._now()

    def due(self, block: BlockId) -> None:
        pass

    def forget(self, block: BlockId) -> None:
        """Let those above it stand above the next one."""
        gone = self._known.pop(block)
        for one in self._known.values():
            if one.below is gone:
                one.below = self._below(one)

    def on_path(self, path: Sequence[BlockKey], num_tokens: int) -> list[BlockId]:
        """Return the states before `num_tokens` tokens behind a path's full blocks, or that leave it within
        the block that they stand in; the longest first. Pure.
        """
        end = _Snapshot(num_tokens + 1, path, None, 0)
        found = [(one.num_tokens, block) for block, one in self._known.items() if end.is_behind(one)]
        return [block for _, block in sorted(found, reverse=True)]

    def gap(self, block: BlockId) -> tuple[int, int]:
        """Return the tokens [start, end) that are computed again without a named state. Pure."""
        own = self._known[block]
        return own.num_tokens - own.gap, own.num_tokens

    def victim(self, is_leaf: IsLeaf) -> BlockId:
        block = min(self._cached, key=lambda block: self._worth(self._known[block]))
        del self._cached[block]
        return block

    def _below(self, one: _Snapshot) -> _Snapshot | None:
        shorter = (other for other in self._known.values() if one.is_behind(other))
        return max(shorter, key=lambda other: other.num_tokens, default=None)

    def _worth(self, one: _Snapshot) -> float:
        return one.gap / (1 + self._now() - one.used)
