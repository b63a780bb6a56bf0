"""How many blocks each branch holds, and how many of them somebody else holds too.

Branches take and let go of blocks here and nowhere else, so the counts are kept where they change, and nobody
has to walk the tables to know them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from kvchat.engine.api.ids import BlockId, BranchId, GroupId
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.branch import Branch

Place = tuple[BranchId, GroupId]


class Holdings:
    """Holders of blocks by branch. Every operation is O(1), or O(holders) where a block becomes shared."""

    def __init__(self) -> None:
        self._pools: Mapping[GroupId, BlockPool] = {}
        self._num_held: Counter[Place] = Counter()
        self._num_shared: Counter[Place] = Counter()
        self._holders: dict[tuple[GroupId, BlockId], set[BranchId]] = {}

    def watch(self, pools: Mapping[GroupId, BlockPool]) -> None:
        """Take blocks from these pools, which call `note_shared`."""
        self._pools = pools

    def num_held(self, branch: BranchId, group: GroupId) -> int:
        return self._num_held[branch, group]

    def num_shared(self, branch: BranchId, group: GroupId) -> int:
        """Return how many of a branch's blocks have another holder: a branch, a copy or a transfer."""
        return self._num_shared[branch, group]

    def allocate(self, branch: Branch, group: GroupId) -> BlockId:
        """Return a block that the branch alone holds; see `BlockPool.allocate`."""
        block = self._pools[group].allocate()
        self._add(branch.id, group, block)
        return block

    def share(self, branch: Branch, group: GroupId, block: BlockId) -> None:
        """Make the branch a holder of a used or cached block."""
        self._pools[group].share(block)
        self._add(branch.id, group, block)

    def release(self, branch: Branch, group: GroupId, block: BlockId) -> None:
        """Let go of a block that the branch holds."""
        self.hand_over(branch, group, block)
        self._pools[group].release(block)

    def hand_over(self, branch: Branch, group: GroupId, block: BlockId) -> None:
        """Let go of a block, whose holder is from now on the caller."""
        holders = self._holders[group, block]
        holders.remove(branch.id)
        if not holders:
            del self._holders[group, block]
        self._count(branch.id, group, -1, is_shared=self._pools[group].count(block) > 1)

    def note_shared(self, group: GroupId, block: BlockId, is_shared: bool) -> None:
        """Note that a block has got a second holder, or has lost all but one."""
        for branch in self._holders.get((group, block), ()):
            self._num_shared[branch, group] += 1 if is_shared else -1

    def forget(self, branch: BranchId) -> None:
        """Drop the counts of a branch that holds nothing."""
        for group in self._pools:
            assert not self._num_held.pop((branch, group), 0)
            assert not self._num_shared.pop((branch, group), 0)

    def check_integrity(self, branches: Iterable[Branch]) -> None:
        """Assert that the counts are what a walk over all tables finds."""
        num_held: Counter[Place] = Counter()
        num_shared: Counter[Place] = Counter()
        for branch in branches:
            for group, pool in self._pools.items():
                blocks = [block for block in branch.tables[group] if block is not None]
                num_held[branch.id, group] = len(blocks)
                num_shared[branch.id, group] = sum(pool.count(block) > 1 for block in blocks)
        assert self._num_held == num_held
        assert self._num_shared == num_shared

    def _add(self, branch: BranchId, group: GroupId, block: BlockId) -> None:
        self._holders.setdefault((group, block), set()).add(branch)
        self._count(branch, group, 1, is_shared=self._pools[group].count(block) > 1)

    def _count(self, branch: BranchId, group: GroupId, change: int, *, is_shared: bool) -> None:
        self._num_held[branch, group] += change
        if is_shared:
            self._num_shared[branch, group] += change
