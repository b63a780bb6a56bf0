"""The blocks of one fingerprint, as commands write them: within the same limits as an engine."""

from collections.abc import Mapping, Sequence

from kvchat.app.config import Settings
from kvchat.app.retention.session_removal import SessionService
from kvchat.app.retention.view_blocks import add_view_turns
from kvchat.engine.api.ids import GroupId, root_key
from kvchat.engine.memory.disk.block_file import Layout
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.models.checkpoints.prepared import elsewhere
from kvchat.session.kv.block_references import References, runs_of
from kvchat.session.tree import Session, Turn


def open_block_store(
    settings: Settings,
    fingerprint: bytes,
    layouts: Mapping[GroupId, Layout],
    *,
    block_size: int | None = None,
    files: SystemFiles = SYSTEM,
) -> DiskStore:
    """Open the blocks of a fingerprint; what exceeds the limits goes. `block_size`: None: as the engine's."""
    engine, cache_dir = settings.engine, settings.paths.cache_dir
    return DiskStore(
        cache_dir,
        fingerprint=fingerprint,
        layouts=layouts,
        block_size=engine.block_size if block_size is None else block_size,
        limit_bytes=engine.disk_bytes,
        daily_bytes=engine.disk_daily_bytes,
        encryptor=engine.encryptor,
        files=files,
        elsewhere=elsewhere(cache_dir),
    )


def drop_blocks(
    settings: Settings, store: SessionService, block_store: DiskStore, session: Session, turns: Sequence[Turn]
) -> int:
    """Remove a session's blocks that no session refers to any more, and that no pack keeps.

    Args:
        session: as it was when it had these blocks, with the namespace of then.

    Returns:
        Bytes of their numbers.
    """
    own, others = References(), store.references(block_store.block_size)
    own.add(runs_of(turns, root_key(block_store.fingerprint, session.namespace), block_store.block_size))
    add_view_turns(own, session, turns, block_store.block_size, settings.paths.cache_dir)
    doomed = own.keys - others.keys
    for parent in own.runs:
        for key, token_ids in block_store.tails_behind(parent):
            if not others.covers_tail(parent, token_ids):
                doomed.add(key)
    return block_store.remove_keys(doomed)
