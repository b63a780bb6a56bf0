"""Plans: what bookkeeping asks of storage, and tells the runner.

Moves are carried out at once, in the order in which they were planned. Fetches bring blocks that nobody uses
yet, in any order and beside everything else.
"""

from dataclasses import dataclass

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first `num_tokens` slots of `source` to `target`, both in the device pool."""

    group: GroupId
    source: BlockId
    target: BlockId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read a stored block into the device block `target`.

    `token_ids` are all ids of the stored block; a sequence may use only the first of them.
    """

    group: GroupId
    key: BlockKey
    parent: BlockKey
    token_ids: tuple[int, ...]
    target: BlockId


@dataclass(frozen=True, slots=True)
class Demote:
    """Copy a device block that is about to be reused to its place in host memory."""

    group: GroupId
    source: BlockId
    place: BlockId


@dataclass(frozen=True, slots=True)
class Promote:
    """Copy a block from its place in host memory to the device block `target`."""

    group: GroupId
    place: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True)
class Prune:
    """Once a step has been computed, write what is kept of the blocks `sources` into `targets`.

    Args:
        first: logical number of the first of `sources`, which stand one behind the other.
    """

    group: GroupId
    first: int
    sources: tuple[BlockId, ...]
    targets: tuple[BlockId, ...]


Move = Copy | Demote
Fetch = Load | Promote


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """What one block lacks on the device.

    Args:
        number: the block's place in the prompt.
        node: its name and ids.
        tier: the slowest tier that one of its groups comes from.
    """

    number: int
    node: IndexNode
    moves: tuple[Fetch, ...]
    num_bytes: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class Save:
    """Write a device block to the store. `replaces`: the tail that this one makes superfluous."""

    group: GroupId
    key: BlockKey
    parent: BlockKey
    token_ids: tuple[int, ...]
    block: BlockId
    replaces: BlockKey | None = None


@dataclass(frozen=True, slots=True)
class TableChange:
    """Entries `[start, start + len(block_ids))` of one sequence's table in one group have new values."""

    sequence: SequenceId
    group: GroupId
    start: int
    block_ids: tuple[BlockId, ...]


class TableLog:
    """Table entries with new values since the runner last read them, of each sequence in order, and sequences
    that are gone.

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
