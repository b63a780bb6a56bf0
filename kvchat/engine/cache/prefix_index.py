"""Prefix index: blocks of the device pool by content key.

One node for each key, with the parent's key and the token ids (a look-up is verified by ids, not by the hash
alone) and the device block of every group that has its bytes. Full blocks and tails are nodes alike; tails
have fewer tokens.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, block_key
from kvchat.engine.cache.block_pool import BlockPool


class Siblings:
    """Sorted, so that those with the longest common run with given ids stand side by side."""

    def __init__(self) -> None:
        self._sorted: list[tuple[tuple[int, ...], BlockKey]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, token_ids: tuple[int, ...], key: BlockKey) -> None:
        """Add one that is not there yet."""
        self._sorted.insert(bisect_left(self._sorted, (token_ids, key)), (token_ids, key))

    def remove(self, token_ids: tuple[int, ...], key: BlockKey) -> None:
        """Remove one that is there."""
        del self._sorted[self._sorted.index((token_ids, key), bisect_left(self._sorted, (token_ids, key)))]

    def nearest(self, token_ids: Sequence[int], most: int) -> list[BlockKey]:
        """Return those before and behind the place of `token_ids`, at most `most` on either side. None of
        the others has a longer run in common with them than each of these on its side. Pure.
        """
        place = bisect_left(self._sorted, (tuple(token_ids),))
        return [key for _, key in self._sorted[max(0, place - most) : place + most]]


MOST_REMEMBERED = 4096


class ChangeLog:
    """The parents of the names that came or went, newest last. Older ones are forgotten."""

    def __init__(self) -> None:
        self._parents: deque[BlockKey] = deque(maxlen=MOST_REMEMBERED)
        self.length = 0
        """Number of changes since the beginning."""

    def note(self, parent: BlockKey) -> None:
        self._parents.append(parent)
        self.length += 1

    def has_touched(self, parents: Set[BlockKey], since: int) -> bool:
        """Whether a name behind one of `parents` has come or gone since the log had length `since`; True
        too if that is no longer known. Pure.
        """
        num_new = self.length - since
        if num_new > len(self._parents):
            return True
        return any(parent in parents for parent in islice(reversed(self._parents), num_new))


@dataclass(slots=True)
class IndexNode:
    """A named block or tail. `start`: position of its first token."""

    key: BlockKey
    parent: BlockKey
    token_ids: tuple[int, ...]
    start: int
    blocks: dict[GroupId, BlockId] = field(default_factory=dict)


class PrefixIndex:
    def __init__(self) -> None:
        self._nodes: dict[BlockKey, IndexNode] = {}
        self._children: dict[BlockKey, Siblings] = {}
        self.change_log = ChangeLog()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[IndexNode]:
        return iter(self._nodes.values())

    def find(self, key: BlockKey, token_ids: tuple[int, ...]) -> IndexNode | None:
        """Return the node named `key` if it holds exactly `token_ids`."""
        node = self._nodes.get(key)
        return node if node is not None and node.token_ids == token_ids else None

    def node(self, key: BlockKey) -> IndexNode:
        """Return a node that is known to be there."""
        return self._nodes[key]

    def block(self, key: BlockKey, group: GroupId) -> BlockId | None:
        node = self._nodes.get(key)
        return node.blocks.get(group) if node else None

    def nearest(self, parent: BlockKey, token_ids: Sequence[int], most: int) -> list[IndexNode]:
        """Return nodes directly behind `parent`: those that begin most like `token_ids`, at most `most` in
        each direction. Visits no other. Pure.
        """
        siblings = self._children.get(parent)
        return [self._nodes[key] for key in siblings.nearest(token_ids, most)] if siblings else []

    def add(self, node: IndexNode, group: GroupId, block: BlockId) -> None:
        """Record that `block` of `group` holds the tokens of a node that is new or equal to the known one."""
        known = self._nodes.get(node.key)
        if known is None:
            known = self._nodes[node.key] = node
            self._children.setdefault(node.parent, Siblings()).add(node.token_ids, node.key)
        assert (known.parent, known.token_ids) == (node.parent, node.token_ids)
        assert group not in known.blocks
        known.blocks[group] = block
        self.change_log.note(node.parent)

    def remove(self, key: BlockKey, group: GroupId) -> None:
        """Forget one group's block; the node goes with its last block."""
        node = self._nodes[key]
        del node.blocks[group]
        self.change_log.note(node.parent)
        if node.blocks:
            return
        del self._nodes[key]
        siblings = self._children[node.parent]
        siblings.remove(node.token_ids, key)
        if not siblings:
            del self._children[node.parent]

    def check_integrity(self, pools: Mapping[GroupId, BlockPool]) -> None:
        """Assert that names recompute, and that index and pools agree on who has which."""
        for node in self:
            assert block_key(node.parent, node.token_ids) == node.key
            for group, block in node.blocks.items():
                assert pools[group].key(block) == node.key
        for group, pool in pools.items():
            for block in map(BlockId, range(pool.num_blocks)):
                key = pool.key(block)
                assert key is None or self.block(key, group) == block
