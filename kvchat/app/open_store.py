"""Stored sessions and blocks as they are opened, and the short ids by which people name sessions."""

from collections.abc import Iterable
from itertools import pairwise, starmap
from typing import TYPE_CHECKING

from kvchat.app.config import Settings
from kvchat.errors import SessionNotFound
from kvchat.session.store import SessionStore
from kvchat.session.tree import SessionId, num_common

if TYPE_CHECKING:
    from kvchat.app.retention.session_removal import SessionService
    from kvchat.engine.memory.disk.cache_admin import CacheAdmin

_MIN_PREFIX = 4


def open_to_read(settings: Settings) -> SessionStore:
    """Open the person's sessions to look at them; the database is made if there is none."""
    return SessionStore(settings.paths.sessions_db, settings.engine.encryptor)


def open_store(settings: Settings) -> "SessionService":
    """Open the person's sessions; the database is made if there is none."""
    from kvchat.app.retention.session_removal import SessionService

    return SessionService(
        settings.paths.sessions_db,
        settings.paths.cache_dir,
        settings.engine.encryptor,
        limit_bytes=settings.engine.disk_bytes,
        block_size=settings.engine.block_size,
    )


def open_cache(settings: Settings) -> "CacheAdmin":
    """Open the blocks on disk, of whatever model; the directory is made if there is none."""
    from kvchat.engine.memory.disk.cache_admin import CacheAdmin

    return CacheAdmin(settings.paths.cache_dir, encryptor=settings.engine.encryptor)


def last_used(store: SessionStore) -> SessionId:
    """Return the session that was used last.

    Raises:
        SessionNotFound: there is none.
    """
    summaries = store.list_sessions()
    if not summaries:
        raise SessionNotFound("there is no session to continue; ask without -c to start one")
    return summaries[0].session.id


def short_id(store: SessionStore, session_id: str) -> str:
    """Return the shortest start of a session's id, of four characters or more, that no other one has."""
    return short_ids([session_id, *(one.session.id for one in store.list_sessions())])[session_id]


def short_ids(all_ids: Iterable[str]) -> dict[str, str]:
    """Return for each of these ids the shortest start, of four characters or more, that no other has."""
    ordered = sorted(set(all_ids))
    # Of all others, the neighbours have most in common with an id.
    common = [0, *starmap(num_common, pairwise(ordered)), 0]
    shared = map(max, pairwise(common)) if ordered else ()
    return {id_: id_[: max(_MIN_PREFIX, length + 1)] for id_, length in zip(ordered, shared, strict=True)}
