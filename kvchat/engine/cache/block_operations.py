"""Plans: what bookkeeping asks of storage.

Moves are carried out at once, in the order in which they were planned. Fetches bring blocks that nobody uses
yet, in any order and beside everything else.
"""

from dataclasses import dataclass

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId


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
