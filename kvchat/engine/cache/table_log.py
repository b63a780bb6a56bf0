"""What has changed in block tables since the runner was last told."""

from kvchat.engine.api.ids import BlockId, BranchId, GroupId
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.plan import TableChange


class TableLog:
    """Table entries with new values, and branches that are gone, in order."""

    def __init__(self) -> None:
        self._changes: list[TableChange] = []
        self._dropped: list[BranchId] = []

    def note_from(self, branch: Branch, group: GroupId, start: int) -> None:
        """Note that a table's entries from `start` on are new; holes before its window are left out."""
        table = branch.tables[group]
        while start < len(table) and table[start] is None:
            start += 1
        blocks = tuple(block for block in table[start:] if block is not None)
        assert len(blocks) == len(table) - start, "a table has holes only before its window"
        if blocks:
            self._changes.append(TableChange(branch.id, group, start, blocks))

    def note_one(self, branch: Branch, group: GroupId, number: int, block: BlockId) -> None:
        """Note that one entry names another block."""
        self._changes.append(TableChange(branch.id, group, number, (block,)))

    def drop(self, branch: BranchId) -> None:
        self._dropped.append(branch)

    def take(self) -> tuple[tuple[TableChange, ...], tuple[BranchId, ...]]:
        """Return the changes and the dropped branches since the last call."""
        changes, dropped = tuple(self._changes), tuple(self._dropped)
        self._changes.clear()
        self._dropped.clear()
        return changes, dropped
