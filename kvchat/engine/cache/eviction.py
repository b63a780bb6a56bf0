"""Which cached block makes room: the least recently used one.

A branch lets go of its blocks from the tail to the root, so a parent is always younger than its children and
leaves go first without a look at the tree.
"""

from kvchat.engine.api.ids import BlockId


class LeastRecentlyUsed:
    """Blocks that nothing holds, oldest first. Every operation is O(1)."""

    def __init__(self) -> None:
        self._order: dict[BlockId, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._order

    def add(self, block: BlockId) -> None:
        assert block not in self._order
        self._order[block] = None

    def remove(self, block: BlockId) -> None:
        del self._order[block]

    def victim(self) -> BlockId:
        """Remove and return the block to evict."""
        block = next(iter(self._order))
        del self._order[block]
        return block
