"""What is stored in a home, read as another kvchat would."""

from contextlib import closing
from pathlib import Path

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.session.store import SessionStore
from kvchat.session.tree import Session, Turn


def block_bytes(home: Path) -> dict[str, int]:
    """Return the bytes of blocks on disk by the fingerprint of what computed them."""
    with closing(CacheAdmin(home / "cache", encryptor=None)) as admin:
        return {name.hex(): usage.num_bytes for name, usage in admin.usages().items()}


def session_of(home: Path, title: str = "demo") -> Session:
    with closing(SessionStore(home / "data" / "sessions.db")) as store:
        return store.find(title)


def turns_of(home: Path, title: str = "demo") -> tuple[Turn, ...]:
    """Return all turns of a session, in the order in which they were stored."""
    with closing(SessionStore(home / "data" / "sessions.db")) as store:
        return tuple(store.all_turns(store.find(title).id))
