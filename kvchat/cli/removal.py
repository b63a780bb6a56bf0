"""Removing sessions together with the KV blocks that nothing else refers to."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.engine.memory.block_index import IndexedBlock
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


def remove_sessions(store: SessionStore, doomed: Iterable[SessionId], cache_dir: Path) -> Removed:
    """Delete sessions, their text first, and then the blocks that only they referred to.

    Blocks that no session of this store refers to stay: another store may share the directory.

    Raises:
        StorageError: the database or the blocks cannot be written.
    """
    doomed = tuple(doomed)
    if not cache_dir.is_dir():
        _delete(store, doomed)
        return Removed()
    with closing(BlockCatalog(cache_dir)) as catalog:
        blocks = catalog.blocks()
        own = _refer(store, blocks, doomed)
        _delete(store, doomed)
        others = _refer(store, blocks, None)
        shared = [block for block in blocks if _is_referenced(block, own) and _is_referenced(block, others)]
        freed = catalog.collect(lambda block: not _is_referenced(block, own) or _is_referenced(block, others))
    return Removed(
        freed_blocks=freed.num_blocks,
        freed_bytes=freed.num_bytes,
        shared_blocks=sum(len(block.groups) for block in shared),
        shared_bytes=sum(block.num_bytes for block in shared),
    )


def _delete(store: SessionStore, doomed: Iterable[SessionId]) -> None:
    for session_id in doomed:
        store.delete_session(session_id)


def _refer(
    store: SessionStore, blocks: Iterable[IndexedBlock], sessions: Iterable[SessionId] | None
) -> dict[int, References]:
    """Return what sessions (None: all) refer to, for every block size that is on disk."""
    sizes = {block.block_size for block in blocks}
    return {size: references(store, size, sessions) for size in sizes}


def _is_referenced(block: IndexedBlock, found: dict[int, References]) -> bool:
    known = found[block.block_size]
    if block.is_tail:
        return known.covers_tail(block.parent, block.token_ids)
    return block.key in known.keys
