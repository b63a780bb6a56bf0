"""Child counts of the named blocks of one pool."""

from kvchat.engine.api.ids import BlockId, BlockKey


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
