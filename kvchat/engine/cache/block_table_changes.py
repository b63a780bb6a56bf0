"""Log of block-table changes since the runner last read it."""

from kvchat.engine.api.ids import BlockId, GroupId, SequenceId
from kvchat.engine.cache.block_operations import TableChange
from kvchat.engine.sequences.sequence import Sequence


class TableLog:
    """Table entries with new values, of each sequence in order, and sequences that are gone.

    A sequence that comes and goes between two batches leaves nothing: the runner never hears of it.
    """

    def __init__(self) -> None:
        self._changes: dict[SequenceId, list[TableChange]] = {}
        self._dropped: list[SequenceId] = []
        self._told: set[SequenceId] = set()
        """Sequences of which the runner knows."""

    def note_from(self, sequence: Sequence, group: GroupId, start: int) -> None:
        """Note that a table's entries from `start` on are new; hidden blocks are left out."""
        table = sequence.tables[group]
        while start < len(table):
            end = start
            while end < len(table) and table[end] is not None:
                end += 1
            blocks = tuple(block for block in table[start:end] if block is not None)
            if blocks:
                self._note(TableChange(sequence.id, group, start, blocks))
            start = end + 1

    def note_one(self, sequence: Sequence, group: GroupId, number: int, block: BlockId) -> None:
        """Note that one entry names another block."""
        self._note(TableChange(sequence.id, group, number, (block,)))

    def drop(self, sequence: SequenceId) -> None:
        """Note that a sequence is gone."""
        self._changes.pop(sequence, None)
        if sequence in self._told:
            self._told.remove(sequence)
            self._dropped.append(sequence)

    def take(self) -> tuple[tuple[TableChange, ...], tuple[SequenceId, ...]]:
        """Return the changes and the dropped sequences since the last call."""
        changes = tuple(change for noted in self._changes.values() for change in noted)
        dropped = tuple(self._dropped)
        self._told.update(self._changes)
        self._changes.clear()
        self._dropped.clear()
        return changes, dropped

    def _note(self, change: TableChange) -> None:
        self._changes.setdefault(change.sequence, []).append(change)
