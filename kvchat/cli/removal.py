"""Removing sessions together with the KV blocks that nothing else refers to."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.engine.memory.block_index import IndexedBlock
from kvchat.sealing.sealer import Sealer
from kvchat.session.references import References, references
from kvchat.session.store import SessionStore
from kvchat.session.tree import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What the disk gave back, and what of the sessions' blocks stays because others share it."""

    freed_blocks: int = 0
    freed_bytes: int = 0
    shared_blocks: int = 0
    shared_bytes: int = 0


class TidyStore(SessionStore):
    """A store that deletes, with a session, the blocks that only this session referred to.

    Args:
        path: see `SessionStore`.
        cache_dir: where the blocks are.
        sealer: what both are sealed with; None: they are in the clear.
    """

    def __init__(self, path: Path, cache_dir: Path, sealer: Sealer | None = None) -> None:
        super().__init__(path, sealer)
        self._cache_dir = cache_dir
        self._sealer = sealer

    def delete_session(self, session_id: SessionId) -> None:
        """Delete a session, its text first, and then its blocks."""
        self.remove_sessions([session_id])

    def remove_sessions(self, doomed: Iterable[SessionId]) -> Removed:
        """Delete sessions and return what that freed.

        Blocks that no session of this store refers to stay: another store may share the directory.

        Raises:
            StorageError: the database or the blocks cannot be written.
        """
        doomed = tuple(doomed)
        if not self._cache_dir.is_dir():
            self._delete_text(doomed)
            return Removed()
        with closing(BlockCatalog(self._cache_dir, sealer=self._sealer)) as catalog:
            blocks = catalog.blocks()
            own = _refer(self, blocks, doomed)
            self._delete_text(doomed)
            others = _refer(self, blocks, None)
            shared = [
                block for block in blocks if _is_referenced(block, own) and _is_referenced(block, others)
            ]
            freed = catalog.collect(
                lambda block: not _is_referenced(block, own) or _is_referenced(block, others)
            )
        return Removed(
            freed_blocks=freed.num_blocks,
            freed_bytes=freed.num_bytes,
            shared_blocks=_num_blocks(shared),
            shared_bytes=_num_bytes(shared),
        )

    def would_remove(self, doomed: Iterable[SessionId]) -> Removed:
        """Return what deleting sessions would free, and what of them would stay; changes nothing."""
        doomed = set(doomed)
        if not self._cache_dir.is_dir():
            return Removed()
        with closing(BlockCatalog(self._cache_dir, sealer=self._sealer)) as catalog:
            blocks = catalog.blocks()
        kept = [one.session.id for one in self.list_sessions() if one.session.id not in doomed]
        own, others = _refer(self, blocks, doomed), _refer(self, blocks, kept)
        touched = [block for block in blocks if _is_referenced(block, own)]
        shared = [block for block in touched if _is_referenced(block, others)]
        freed = [block for block in touched if not _is_referenced(block, others)]
        return Removed(
            freed_blocks=_num_blocks(freed),
            freed_bytes=_num_bytes(freed),
            shared_blocks=_num_blocks(shared),
            shared_bytes=_num_bytes(shared),
        )

    def collect(self) -> Removed:
        """Remove every block that no session of this store refers to, and all damaged ones.

        Raises:
            StorageError: the blocks cannot be removed.
        """
        if not self._cache_dir.is_dir():
            return Removed()
        with closing(BlockCatalog(self._cache_dir, sealer=self._sealer)) as catalog:
            known = _refer(self, catalog.blocks(), None)
            freed = catalog.collect(lambda block: _is_referenced(block, known))
        return Removed(freed_blocks=freed.num_blocks, freed_bytes=freed.num_bytes)

    def _delete_text(self, doomed: Iterable[SessionId]) -> None:
        for session_id in doomed:
            super().delete_session(session_id)


def _refer(
    store: SessionStore, blocks: Iterable[IndexedBlock], sessions: Iterable[SessionId] | None
) -> dict[int, References]:
    """Return what sessions (None: all) refer to, for every block size that is on disk."""
    sizes = {block.block_size for block in blocks}
    return {size: references(store, size, sessions) for size in sizes}


def _num_blocks(blocks: Iterable[IndexedBlock]) -> int:
    return sum(len(block.groups) for block in blocks)


def _num_bytes(blocks: Iterable[IndexedBlock]) -> int:
    return sum(block.num_bytes for block in blocks)


def _is_referenced(block: IndexedBlock, found: dict[int, References]) -> bool:
    known = found.get(block.block_size, _NOTHING)
    if block.is_tail:
        return known.covers_tail(block.parent, block.token_ids)
    return block.key in known.keys


_NOTHING = References()
