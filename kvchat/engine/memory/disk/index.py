"""Block index: a hint for quick answers, never the truth, which is the files.

One SQLite file serves every fingerprint in a cache directory. Losing it costs the time to look at the files
again, nothing else.

A row comes before its file and goes after it. Until file and row agree the row is unsettled: it names the
writer that is at work on it. So the totals never say less than what is on disk, and what a killed writer has
left is found without looking at every file.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, nextafter
from pathlib import Path
from typing import Any

from kvchat.engine.api.ids import BlockKey, GroupId, u32le
from kvchat.engine.memory.disk.block_encryption import PLAIN, BlockEncryption, DiskKey
from kvchat.engine.memory.disk.block_file import BlockHeader, FoundBlock
from kvchat.engine.memory.disk.index_file import IndexFile, Row
from kvchat.engine.memory.disk.io import SystemFiles

BlockName = tuple[bytes, DiskKey, GroupId]
"""Fingerprint, key as it is on disk, and group: what names one file."""

_KEYS_PER_QUERY = 900  # SQLite's oldest limit on variables is 999

_NAMED = "WHERE fingerprint=? AND key=? AND grp=?"
_IS_THERE = "is_there(fingerprint, key, grp)"
_RESERVE = (
    "INSERT INTO blocks VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET writer=excluded.writer"
)
_SETTLE = """INSERT INTO blocks SELECT ?1,?2,?3,?4,?5,?6,?7,?8,?9,0,NULL WHERE is_there(?1,?2,?3)
    ON CONFLICT DO UPDATE SET writer=NULL"""
_SETTLE_OWN = f"UPDATE blocks SET writer=NULL {_NAMED} AND writer=? AND {_IS_THERE}"
# What another writer is at work on is left to it: it settles its row when its file has its name.
_DROP = f"DELETE FROM blocks {_NAMED} AND writer IS NULL AND NOT {_IS_THERE}"
_DROP_OWN = f"DELETE FROM blocks {_NAMED} AND (writer IS NULL OR writer=?) AND NOT {_IS_THERE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """What is on disk. A block of one group is one file and counts once; tails are among the blocks.

    A block that is being written counts already.
    """

    num_blocks: int
    num_tails: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBytes:
    """Bytes of block files that were written. Losing the index begins the count anew."""

    today: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedBlock:
    """A block in the words of the index, all its groups together. `name` is its key as it is on disk."""

    fingerprint: bytes
    name: DiskKey
    key: BlockKey
    parent: BlockKey
    token_ids: tuple[int, ...]
    block_size: int
    groups: frozenset[GroupId]
    num_bytes: int
    is_proven: bool = False
    """Whether a request has used it since it was stored."""

    @property
    def is_tail(self) -> bool:
        return len(self.token_ids) < self.block_size

    @property
    def names(self) -> list[BlockName]:
        """The names of its files, one for each group."""
        return [(self.fingerprint, self.name, group) for group in self.groups]


class BlockIndex:
    """The rows of one cache directory. May be called from several threads and opened by several processes."""

    def __init__(
        self,
        path: Path,
        files: SystemFiles,
        is_there: Callable[[BlockName], bool],
        encryption: BlockEncryption = PLAIN,
    ) -> None:
        """Open the index, or begin an empty one.

        Args:
            is_there: whether a block's file has its name; must not raise.

        Raises: StorageError: the directory cannot be written.
        """
        self._encryption = encryption
        self._file = IndexFile(path, encryption, files, lambda *name: is_there(name))

    def take_lost(self) -> bool:
        """Return whether rows were lost since the last call, so that the files should be looked at again."""
        return self._file.take_lost()

    # Blocks

    def name_of(self, block: FoundBlock) -> BlockName:
        return block.fingerprint, self._encryption.name(block.header.key), block.header.group

    def contains(self, fingerprint: bytes, key: BlockKey, group: GroupId) -> bool:
        return bool(self.contained(fingerprint, [key], group))

    def contained(self, fingerprint: bytes, keys: Sequence[BlockKey], group: GroupId) -> set[BlockKey]:
        """Return those of `keys` that have a settled row; a few queries however long the chain."""
        by_name = {self._encryption.name(key): key for key in keys}
        query = "SELECT key FROM blocks WHERE fingerprint=? AND grp=? AND writer IS NULL AND key IN"
        return {by_name[name] for (name,) in self._among(list(by_name), query, fingerprint, group)}

    def children(self, fingerprint: bytes, parent: BlockKey) -> list[IndexedBlock]:
        """Return the blocks and tails directly behind a parent."""
        return list(self._blocks("fingerprint=? AND parent=?", fingerprint, self._encryption.name(parent)))

    def nearest(
        self, fingerprint: bytes, parent: BlockKey, token_ids: Sequence[int], most: int
    ) -> list[IndexedBlock]:
        """Return blocks and tails directly behind a parent: those that begin most like `token_ids`, at most
        `most` in each direction. In the order of their bytes they stand side by side.
        """
        if not self._encryption.keeps_order:
            return _nearest(self.children(fingerprint, parent), u32le(token_ids), most)
        keys = [
            key
            for side in (">= ? ORDER BY token_ids", "< ? ORDER BY token_ids DESC")
            for key, _ in self._file.read(
                "SELECT DISTINCT key, token_ids FROM blocks"
                f" WHERE fingerprint=? AND parent=? AND writer IS NULL AND token_ids {side} LIMIT ?",
                fingerprint,
                parent,
                u32le(token_ids),
                most,
            )
        ]
        marks = ",".join("?" * len(keys))
        return list(self._blocks(f"fingerprint=? AND key IN ({marks})", fingerprint, *keys)) if keys else []

    def blocks(self) -> list[IndexedBlock]:
        """Return all blocks of all fingerprints."""
        return list(self._blocks("TRUE"))

    def with_key(self, fingerprint: bytes, key: BlockKey) -> IndexedBlock | None:
        return self._with_name(fingerprint, self._encryption.name(key))

    def names(self) -> tuple[set[BlockName], set[BlockName]]:
        """Return the names of all rows: those that are settled, and those that are not."""
        settled: set[BlockName] = set()
        unsettled: set[BlockName] = set()
        for fingerprint, key, group, writer in self._file.read(
            "SELECT fingerprint, key, grp, writer FROM blocks"
        ):
            (settled if writer is None else unsettled).add((fingerprint, key, group))
        return settled, unsettled

    def check(self) -> None:
        """Look at every row, begin again if one is damaged, and count the totals anew."""
        self._file.check()

    def erase(self) -> None:
        """Take the token ids of rows that are gone out of the file and its log; see `IndexFile.erase`."""
        self._file.erase()

    def oldest_leaves(self, limit: int, *, is_proven: bool | None) -> list[IndexedBlock]:
        """Return blocks that no block on disk has as its parent, and that nobody writes or removes in any
        group, longest unused first; fewer than `limit` only where there are no more.

        Args:
            is_proven: only those that were, or were not, used after they were stored.
        """
        is_leaf = """NOT EXISTS (SELECT 1 FROM blocks AS child
                     WHERE child.fingerprint = blocks.fingerprint AND child.parent = blocks.key)"""
        # One row stands for a block of several groups, so that the limit counts blocks.
        worth = ["last_used", "grp"] if is_proven is None else ["proven", "last_used", "grp"]
        own, others = (", ".join(f"{table}.{column}" for column in worth) for table in ("blocks", "other"))
        is_newest = f"""NOT EXISTS (SELECT 1 FROM blocks AS other
                       WHERE other.fingerprint = blocks.fingerprint AND other.key = blocks.key
                       AND other.writer IS NULL AND ({others}) > ({own}))"""
        is_settled = """NOT EXISTS (SELECT 1 FROM blocks AS part WHERE part.fingerprint = blocks.fingerprint
                        AND part.key = blocks.key AND part.writer IS NOT NULL)"""
        chosen = "TRUE" if is_proven is None else "proven=?"
        rows = self._file.read(
            f"SELECT fingerprint, key FROM blocks WHERE {chosen} AND {is_settled}"
            f" AND {is_newest} AND {is_leaf} ORDER BY last_used LIMIT ?",
            *([] if is_proven is None else [is_proven]),
            limit,
        )
        found = (self._with_name(fingerprint, name) for fingerprint, name in rows)
        return [block for block in found if block is not None]

    def num_unproven(self) -> int:
        """Return how many blocks were not used since they were stored; O(number of fingerprints)."""
        return int(self._value("SELECT sum(num_blocks - num_proven) FROM totals") or 0)

    def usage(self, fingerprint: bytes | None = None) -> DiskUsage:
        """Return the totals of one fingerprint, or of all; O(number of fingerprints)."""
        chosen = [usage for name, usage in self.usages().items() if fingerprint in (None, name)]
        return DiskUsage(
            num_blocks=sum(usage.num_blocks for usage in chosen),
            num_tails=sum(usage.num_tails for usage in chosen),
            num_bytes=sum(usage.num_bytes for usage in chosen),
        )

    def block_size(self, fingerprint: bytes) -> int | None:
        """Return how many tokens a block of a fingerprint has; None if it has none."""
        query = "SELECT block_size FROM blocks WHERE fingerprint=? LIMIT 1"
        block_size: int | None = self._value(query, fingerprint)
        return block_size

    def num_bytes(self, names: Iterable[tuple[bytes, DiskKey]]) -> int:
        """Return what some blocks have on disk, by fingerprint and name, all groups together."""
        return self._sum_of(names, "coalesce(sum(bytes), 0)", "writer IS NULL")

    def num_unproven_of(self, names: Iterable[tuple[bytes, DiskKey]]) -> int:
        """Return how many of `num_unproven` some blocks are, by fingerprint and name."""
        return self._sum_of(names, "count(*)", "proven=0")

    def _sum_of(self, names: Iterable[tuple[bytes, DiskKey]], value: str, where: str) -> int:
        by_fingerprint: dict[bytes, list[DiskKey]] = {}
        for fingerprint, name in names:
            by_fingerprint.setdefault(fingerprint, []).append(name)
        query = f"SELECT {value} FROM blocks WHERE {where} AND fingerprint=? AND key IN"
        return sum(
            number
            for fingerprint, keys in by_fingerprint.items()
            for (number,) in self._among(keys, query, fingerprint)
        )

    def _among(self, names: Sequence[DiskKey], query: str, *values: object) -> Iterator[Any]:
        """Yield the rows of a query that ends with "key IN", for some names; a few queries for any number."""
        for start in range(0, len(names), _KEYS_PER_QUERY):
            part = names[start : start + _KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            yield from self._file.read(f"{query} ({marks})", *values, *part)

    def usages(self) -> dict[bytes, DiskUsage]:
        rows = self._file.read(
            "SELECT fingerprint, num_blocks, num_tails, bytes FROM totals WHERE num_blocks > 0"
        )
        return {
            fingerprint: DiskUsage(num_blocks=num_blocks, num_tails=num_tails, num_bytes=num_bytes)
            for fingerprint, num_blocks, num_tails, num_bytes in rows
        }

    def add(self, blocks: Iterable[FoundBlock]) -> None:
        """Insert settled rows for files that are there; a row that is there is settled."""
        self._file.write((_SETTLE, [self._row(block) for block in blocks]))

    def drop(self, names: Iterable[BlockName]) -> None:
        """Remove settled rows whose files are gone."""
        self._file.write((_DROP, list(names)))

    def touch(self, fingerprint: bytes, used_s: dict[BlockKey, float]) -> None:
        """Record when blocks were last used.

        Never as before what was used last, so that a clock that was set back does not make them the oldest;
        then they stand behind that in the order of their use.
        """
        moments: dict[float, float] = {}
        newest_s = self.newest_s()
        for moment in sorted(set(used_s.values())):
            newest_s = moments[moment] = _not_before(newest_s, moment)
        name = self._encryption.name
        rows = [(moments[moment], fingerprint, name(key)) for key, moment in used_s.items()]
        self._file.write(("UPDATE blocks SET last_used=?, proven=1 WHERE fingerprint=? AND key=?", rows))

    def newest_s(self) -> float:
        """Return when a block was last used; 0 where there is none."""
        return float(self._value("SELECT max(last_used) FROM blocks") or 0.0)

    def moment(self, now_s: float) -> float:
        """Return a moment, or one behind the last use of any block, where the clock was ahead then."""
        return _not_before(self.newest_s(), now_s)

    # Work in progress

    def reserve(self, blocks: Sequence[FoundBlock], writer: str, proven: Sequence[bool]) -> None:
        """Insert the unsettled rows of blocks that are about to be written, or make the rows that are there
        this writer's.

        Args:
            proven: for each, whether it counts as used again already.
        """
        rows = [(*self._row(block), flag, writer) for block, flag in zip(blocks, proven, strict=True)]
        self._file.write((_RESERVE, rows))

    def settle(self, blocks: Sequence[FoundBlock], writer: str, day: int) -> None:
        """Make blocks' rows settled, their files being durable, and count their bytes as written on a day.

        Another process may have removed a file since; then its row goes.
        """
        self._file.write(
            (_SETTLE, [self._row(block) for block in blocks]),
            (_DROP_OWN, [(*self.name_of(block), writer) for block in blocks]),
            (
                "INSERT INTO written VALUES (?,?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes",
                [(day, sum(block.num_bytes for block in blocks))],
            ),
        )

    def unsettle(self, names: Sequence[BlockName], writer: str) -> None:
        """Make the rows of blocks that are about to go this writer's."""
        self._file.write((f"UPDATE blocks SET writer=? {_NAMED}", [(writer, *name) for name in names]))

    def settle_again(self, names: Sequence[BlockName], writer: str) -> None:
        """End what one writer had begun: rows whose files are there are settled, the others go."""
        rows = [(*name, writer) for name in names]
        self._file.write((_SETTLE_OWN, rows), (_DROP_OWN, rows))

    def unsettled_bytes(self) -> int:
        """Return what is being written or removed, and what room is held for, by whatever writer."""
        return int(self._value("SELECT sum(bytes) FROM blocks WHERE writer IS NOT NULL") or 0)

    def writers_at_work(self) -> list[str]:
        """Return the writers that have unsettled rows."""
        rows = self._file.read("SELECT DISTINCT writer FROM blocks WHERE writer IS NOT NULL")
        return [name for (name,) in rows]

    def unsettled(self, writer: str) -> list[BlockName]:
        """Return the names of what a writer was at work on."""
        return list(self._file.read("SELECT fingerprint, key, grp FROM blocks WHERE writer=?", writer))

    def writers(self) -> dict[str, str]:
        """Return all writers that have not ended properly, and the boot in which each began."""
        return dict(self._file.read("SELECT id, boot FROM writers"))

    def announce(self, writer: str, boot: str) -> None:
        """Make it durable that a writer is at work, so that after a loss of power files are looked at."""
        self._file.write(("INSERT OR REPLACE INTO writers VALUES (?,?)", [(writer, boot)]), durable=True)

    def dismiss(self, writers: Iterable[str]) -> None:
        self._file.write(("DELETE FROM writers WHERE id=?", [(writer,) for writer in writers]))

    def written(self, day: int) -> WrittenBytes:
        """Return how many bytes of blocks were written on a day, and ever."""
        query = "SELECT coalesce(sum(bytes) FILTER (WHERE day=?), 0), coalesce(sum(bytes), 0) FROM written"
        rows = self._file.read(query, day)
        return WrittenBytes(today=rows[0][0], total=rows[0][1]) if rows else WrittenBytes(today=0, total=0)

    def close(self) -> None:
        self._file.close()

    def _value(self, query: str, *values: object) -> Any:
        """Return the only value that a query asks for; None where there is none."""
        rows = self._file.read(query, *values)
        return rows[0][0] if rows else None

    def _with_name(self, fingerprint: bytes, name: DiskKey) -> IndexedBlock | None:
        return next(self._blocks("fingerprint=? AND key=?", fingerprint, name), None)

    def _blocks(self, where: str, *values: object) -> Iterator[IndexedBlock]:
        columns = "fingerprint, key, parent, token_ids, block_size"
        merged = "group_concat(grp), sum(bytes), max(proven)"
        rows = self._file.read(
            f"SELECT {columns}, {merged} FROM blocks WHERE writer IS NULL AND {where}"
            " GROUP BY fingerprint, key",
            *values,
        )
        for fingerprint, name, parent_name, entry, block_size, groups, num_bytes, proven in rows:
            key, parent, token_ids = self._encryption.entry_of(name, parent_name, entry)
            yield IndexedBlock(
                fingerprint=fingerprint,
                name=name,
                key=key,
                parent=parent,
                token_ids=token_ids,
                block_size=block_size,
                groups=frozenset(GroupId(int(group)) for group in groups.split(",")),
                num_bytes=num_bytes,
                is_proven=bool(proven),
            )

    def _row(self, block: FoundBlock) -> Row:
        header: BlockHeader = block.header
        return (
            *self.name_of(block),
            self._encryption.name(header.parent),
            len(header.token_ids),
            block.block_size,
            self._encryption.entry(header.key, header.parent, header.token_ids),
            block.num_bytes,
            block.modified_s,
        )


def _not_before(newest_s: float, now_s: float) -> float:
    """Return a moment, or where that is past the next one that a row can tell from the newest."""
    return now_s if now_s >= newest_s else nextafter(newest_s, inf)


def _nearest(blocks: Iterable[IndexedBlock], wanted: bytes, most: int) -> list[IndexedBlock]:
    """Return of some blocks those that stand on either side of a place in the order of their ids' bytes."""
    in_order = sorted((u32le(block.token_ids), block.key, block) for block in blocks if block.token_ids)
    place = bisect_left(in_order, (wanted,))
    return [block for _, _, block in in_order[max(0, place - most) : place + most]]
