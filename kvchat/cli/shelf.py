"""The stored sessions, as the command line opens and names them."""

from collections.abc import Iterable

from kvchat.cli.removal import TidyStore
from kvchat.config import Settings

_MIN_PREFIX = 4


def open_store(settings: Settings) -> TidyStore:
    """Open the person's sessions; the database is made if there is none."""
    return TidyStore(
        settings.paths.sessions_db,
        settings.paths.cache_dir,
        settings.engine.sealer,
        limit_bytes=settings.engine.disk_bytes,
        block_size=settings.engine.block_size,
    )


def short_id(session_id: str, all_ids: Iterable[str]) -> str:
    """Return the shortest start of an id, of four characters or more, that no other id has."""
    others = [other for other in all_ids if other != session_id]
    for end in range(_MIN_PREFIX, len(session_id)):
        if not any(other.startswith(session_id[:end]) for other in others):
            return session_id[:end]
    return session_id
