"""Block references: how many blocks each sequence holds, and how many it shares.

Sequences take and let go of blocks here and nowhere else, so the counts are kept where they change, and
nobody has to walk the tables to know them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from kvchat.engine.api.ids import BlockId, GroupId, SequenceId
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.sequences.sequence import Sequence

Place = tuple[SequenceId, GroupId]


class BlockHolders:
    """Holders of blocks by sequence. Every operation is O(holders of one block)."""

    def __init__(self) -> None:
        self._pools: Mapping[GroupId, BlockPool] = {}
        self._num_held: Counter[Place] = Counter()
        self._num_shared: Counter[Place] = Counter()
        self._holders: dict[tuple[GroupId, BlockId], set[SequenceId]] = {}
        self._owners: dict[SequenceId, str] = {}
        self._num_exclusive: Counter[tuple[str, GroupId]] = Counter()

    def watch(self, pools: Mapping[GroupId, BlockPool]) -> None:
        """Take blocks from these pools, which call `note_shared`."""
        self._pools = pools

    def holders(self, group: GroupId, block: BlockId) -> Collection[SequenceId]:
        """Return the sequences that hold a block. Pure."""
        return self._holders.get((group, block), ())

    def num_held(self, sequence: SequenceId, group: GroupId) -> int:
        return self._num_held[sequence, group]

    def num_shared(self, sequence: SequenceId, group: GroupId) -> int:
        """Return how many of a sequence's blocks have another holder: sequence, copy, transfer or pin."""
        return self._num_shared[sequence, group]

    def num_exclusive(self, owner: str, group: GroupId) -> int:
        """Return how many blocks are held by sequences of this owner and of no other: what nobody holds any
        more once all of them are closed.
        """
        return self._num_exclusive[owner, group]

    def allocate(self, sequence: Sequence, group: GroupId) -> BlockId:
        """Return a block that the sequence alone holds; see `BlockPool.allocate`."""
        block = self._pools[group].allocate()
        self._add(sequence, group, block)
        return block

    def share(self, sequence: Sequence, group: GroupId, block: BlockId) -> None:
        """Make the sequence a holder of a used or cached block."""
        self._pools[group].share(block)
        self._add(sequence, group, block)

    def release(self, sequence: Sequence, group: GroupId, block: BlockId) -> None:
        """Let go of a block that the sequence holds."""
        self.hand_over(sequence, group, block)
        self._pools[group].release(block)

    def hand_over(self, sequence: Sequence, group: GroupId, block: BlockId) -> None:
        """Let go of a block, whose holder is from now on the caller."""
        holders = self._holders[group, block]
        before = self._sole_owner(holders)
        holders.remove(sequence.id)
        self._move_exclusive(group, before, self._sole_owner(holders))
        if not holders:
            del self._holders[group, block]
        self._num_held[sequence.id, group] -= 1
        self._num_shared[sequence.id, group] -= self._pools[group].count(block) > 1

    def note_shared(self, group: GroupId, block: BlockId, is_shared: bool) -> None:
        """Note that a block has got a second holder, or has lost all but one."""
        for sequence in self._holders.get((group, block), ()):
            self._num_shared[sequence, group] += 1 if is_shared else -1

    def forget(self, sequence: SequenceId) -> None:
        """Drop the counts of a sequence that holds nothing."""
        self._owners.pop(sequence, None)
        for group in self._pools:
            assert not self._num_held.pop((sequence, group), 0)
            assert not self._num_shared.pop((sequence, group), 0)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert that the counts are what a walk over all tables finds."""
        num_held: Counter[Place] = Counter()
        num_shared: Counter[Place] = Counter()
        owners: dict[tuple[GroupId, BlockId], set[str]] = {}
        for sequence in sequences:
            for group, pool in self._pools.items():
                blocks = [block for block in sequence.tables[group] if block is not None]
                num_held[sequence.id, group] = len(blocks)
                num_shared[sequence.id, group] = sum(pool.count(block) > 1 for block in blocks)
                for block in blocks:
                    owners.setdefault((group, block), set()).add(sequence.owner)
        assert self._num_held == num_held
        assert self._num_shared == num_shared
        sole = ((*of, group) for (group, _), of in owners.items() if len(of) == 1)
        assert self._num_exclusive == Counter(sole)

    def _add(self, sequence: Sequence, group: GroupId, block: BlockId) -> None:
        self._owners[sequence.id] = sequence.owner
        holders = self._holders.setdefault((group, block), set())
        before = self._sole_owner(holders)
        holders.add(sequence.id)
        self._move_exclusive(group, before, self._sole_owner(holders))
        self._num_held[sequence.id, group] += 1
        self._num_shared[sequence.id, group] += self._pools[group].count(block) > 1

    def _sole_owner(self, holders: Iterable[SequenceId]) -> str | None:
        owners = {self._owners[sequence] for sequence in holders}
        return owners.pop() if len(owners) == 1 else None

    def _move_exclusive(self, group: GroupId, before: str | None, after: str | None) -> None:
        """Note who alone holds a block now, None being nobody or several."""
        if before == after:
            return
        if before is not None:
            self._num_exclusive[before, group] -= 1
            if not self._num_exclusive[before, group]:
                del self._num_exclusive[before, group]
        if after is not None:
            self._num_exclusive[after, group] += 1
