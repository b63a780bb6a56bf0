"""Block pool of one group: free, cached and used blocks with their reference counts."""

from collections.abc import Callable
from time import monotonic

from kvchat.engine.api.ids import BlockId, BlockKey
from kvchat.engine.cache.eviction import EvictionOrder


class ChildCounts:
    """Counts resident children by their parent's key: either may come first. Every operation is O(1)."""

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, BlockId] = {}
        self._parents: dict[BlockKey, BlockKey] = {}
        self._num_children: dict[BlockKey, int] = {}

    def num_children(self, key: BlockKey) -> int:
        return self._num_children.get(key, 0)

    def add(self, block: BlockId, key: BlockKey, parent: BlockKey) -> None:
        assert key not in self._blocks
        self._blocks[key] = block
        self._parents[key] = parent
        self._num_children[parent] = self._num_children.get(parent, 0) + 1

    def remove(self, key: BlockKey) -> BlockId | None:
        """Forget a block, and return its parent if that is resident and has no child any more."""
        if self._blocks.pop(key, None) is None:
            return None
        parent = self._parents.pop(key)
        self._num_children[parent] -= 1
        if self._num_children[parent]:
            return None
        del self._num_children[parent]
        return self._blocks.get(parent)


class BlockPool:
    """Integer bookkeeping of a fixed number of blocks; no bytes.

    A block is free (no holder, no key), cached (no holder, named by a key, may be evicted) or used (held by
    tables, moves or pins; may be named too). free + cached + used = total.
    """

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[BlockKey], None],
        order: EvictionOrder,
        on_share: Callable[[BlockId, bool], None] = lambda *_: None,
    ) -> None:
        """Args:
        num_blocks: size of the pool, > 0.
        on_evict: told the key of each block that is evicted.
        order: which cached block gives way first.
        on_share: told of each block that gets a second holder (True), or loses all but one (False).
        """
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._on_share = on_share
        self._used_s = [0.0] * num_blocks
        self._free = [BlockId(index) for index in reversed(range(num_blocks))]
        self._cached = order
        self._child_counts = ChildCounts()
        self._counts = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self.num_shared = 0
        self.num_claimed = 0
        """How often a cached block was taken under its name."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free ones, then cached ones."""
        return self.num_free + self.num_cached

    def count(self, block: BlockId) -> int:
        return self._counts[block]

    def key(self, block: BlockId) -> BlockKey | None:
        return self._keys[block]

    def unused_s(self, block: BlockId) -> float:
        """Return for how long nobody has taken, let go of or asked for a block that is not free."""
        return monotonic() - self._used_s[block]

    def num_children(self, key: BlockKey) -> int:
        """Return how many blocks here name this one as their parent, whether or not it is here."""
        return self._child_counts.num_children(key)

    def is_cached(self, block: BlockId) -> bool:
        """Whether a block may be evicted."""
        return block in self._cached

    def is_leaf(self, block: BlockId) -> bool:
        """Whether no block here is worth nothing without this one."""
        key = self._keys[block]
        return key is None or not self.num_children(key)

    def allocate(self) -> BlockId:
        """Return a block with one holder and no key, evicting a cached one if none is free."""
        if self._free:
            block = self._free.pop()
        else:
            block = self._cached.victim(self.is_leaf)
            self._on_evict(self._take_name(block))
        self._counts[block] = 1
        self._used_s[block] = monotonic()
        return block

    def share(self, block: BlockId) -> None:
        """Add a holder to a used or cached block."""
        if block in self._cached:
            self._cached.remove(block)
            self.num_claimed += 1
        self._counts[block] += 1
        self._used_s[block] = monotonic()
        if self._counts[block] == 2:
            self.num_shared += 1
            self._on_share(block, True)

    def release(self, block: BlockId) -> None:
        """Take a holder away; without holders a named block is cached and another one free."""
        assert self._counts[block] > 0
        self._counts[block] -= 1
        self._used_s[block] = monotonic()
        if self._counts[block] == 1:
            self.num_shared -= 1
            self._on_share(block, False)
        if self._counts[block]:
            return
        key = self._keys[block]
        if key is None:
            self._free.append(block)
        else:
            self._cached.add(block, key)

    def touch(self, block: BlockId) -> None:
        """Note that a request uses a block; what is used again is kept longer, if it has a name."""
        self._used_s[block] = monotonic()
        if self._keys[block] is not None:
            self._cached.touch(block)

    def name(self, block: BlockId, key: BlockKey, parent: BlockKey | None) -> None:
        """Give a used block its key; from now on its bytes do not change.

        Args:
            parent: key of the block without which this one is worth nothing, which is then evicted after it;
                None: there is no such block.
        """
        assert self._counts[block] > 0
        assert self._keys[block] is None
        self._keys[block] = key
        if parent is not None:
            self._child_counts.add(block, key, parent)

    def forget(self, block: BlockId) -> None:
        """Take the key of a block away: its bytes are no longer wanted."""
        if block in self._cached:
            self._cached.remove(block)
            self._free.append(block)
        self._take_name(block)

    def check_integrity(self, holders: list[int]) -> None:
        """Assert that counts equal `holders` (index: block id) and that every block has exactly one state."""
        assert self._counts == holders
        free = set(self._free)
        assert len(free) == len(self._free)
        used = {BlockId(index) for index, count in enumerate(holders) if count}
        assert free.isdisjoint(used), f"blocks {free & used} are free and used"
        others = set(map(BlockId, range(self.num_blocks))) - free - used
        assert len(self._cached) == len(others)
        assert all(block in self._cached for block in others), "a block is neither free, cached nor used"
        named = {BlockId(index) for index, key in enumerate(self._keys) if key is not None}
        assert named.isdisjoint(free)
        assert others <= named
        assert self.num_shared == sum(count > 1 for count in holders)

    def _take_name(self, block: BlockId) -> BlockKey:
        key = self._keys[block]
        assert key is not None
        self._keys[block] = None
        self._cached.forget(block)
        parent = self._child_counts.remove(key)
        if parent is not None:
            self._cached.due(parent)
        return key
