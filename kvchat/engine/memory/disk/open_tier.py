"""The disk tier of one fingerprint, opened as an engine's settings say."""

import logging

from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.pinned_blocks import note_view
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from kvchat.engine.memory.saver import Saver, SaveTransport
from kvchat.engine.models.checkpoints.prepared import elsewhere
from kvchat.errors import StorageError

log = logging.getLogger(__name__)

WRITE_QUEUE_BYTES = 64 * 2**20


def open_store(
    config: EngineConfig, pool: DevicePool, fingerprint: bytes
) -> tuple[DiskStore | None, str | None]:
    """Open the blocks of a fingerprint.

    Returns: the store, None without a disk tier, and why there is none although one was wanted: a directory
        that cannot be written costs time and never a conversation.
    """
    if config.cache_dir is None:
        return None, None
    view = parse_cache_format(config.cache_format).view
    try:
        if view is not None:
            note_view(config.cache_dir, view)
        store = DiskStore(
            config.cache_dir,
            fingerprint=fingerprint,
            layouts=pool.layouts(),
            block_size=config.block_size,
            limit_bytes=config.disk_bytes,
            daily_bytes=config.disk_daily_bytes,
            encryptor=config.encryptor,
            eviction=Eviction(config.eviction),
            elsewhere=elsewhere(config.cache_dir),
        )
    except StorageError as error:
        log.warning("there is no disk tier: %s", error)
        return None, str(error)
    return store, None


def open_saver(
    pool: DevicePool, store: DiskStore | None, manager: CacheManager, transport: SaveTransport | None = None
) -> Saver | None:
    """Start the thread that writes into a store; None without one."""
    if store is None:
        return None
    writer = BlockWriteQueue(store, max_bytes=WRITE_QUEUE_BYTES)
    return Saver(pool, store, writer, manager.is_resident, transport, manager.note_saved)
