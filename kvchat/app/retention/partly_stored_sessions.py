"""Conversations too long for the disk budget, of which only the beginning stays stored."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile

from kvchat.app.config import Settings
from kvchat.app.open_store import open_store, short_id
from kvchat.engine.api.ids import chain_keys
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.models.checkpoints.prepared import blocks_limit
from kvchat.errors import KvchatError
from kvchat.session.kv.block_references import chain_root, leaf_paths
from kvchat.session.store import SessionStore
from kvchat.session.tree import Session
from kvchat.text.figures import bytes_text
from kvchat.text.fit_text import one_line

_FULL_SHARE = 2
"""Where less than one byte in so many of the limit is used, nothing had to go for a conversation."""
_MARGIN = 4
"""Of the bytes that a conversation is taken to need, by its length and what a file takes: only where so many
times as much has no room, its blocks are looked for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyStoredSession:
    """A conversation whose blocks have no room on disk all together.

    Args:
        session: its id.
        num_tokens: of its longest branch, whole blocks.
        kept_tokens: from its beginning, that are on disk.
        least_bytes: what all its blocks would take, at least.
    """

    session: str
    title: str
    num_tokens: int
    kept_tokens: int
    least_bytes: int


def too_long(settings: Settings) -> tuple[PartlyStoredSession, ...]:
    """Return the conversations that are; none where that cannot be told. Creates nothing."""
    limit_bytes = blocks_limit(settings.engine.disk_bytes, settings.paths.cache_dir)
    if (
        limit_bytes is None
        or not settings.paths.cache_dir.is_dir()
        or not settings.paths.sessions_db.is_file()
    ):
        return ()
    try:
        with (
            closing(CacheAdmin(settings.paths.cache_dir, encryptor=settings.engine.encryptor)) as admin,
            closing(open_store(settings)) as store,
        ):
            if admin.usage().num_bytes * _FULL_SHARE < limit_bytes:
                return ()
            return tuple(_Disk(store, admin, limit_bytes).among_all())
    except KvchatError:
        return ()


def too_long_lines(found: Sequence[PartlyStoredSession], settings: Settings) -> Iterator[str]:
    """Yield what is said of them, a line each."""
    ids = [one.session for one in found]
    room = bytes_text(blocks_limit(settings.engine.disk_bytes, settings.paths.cache_dir) or 0)
    for one in found:
        name = f"{short_id(one.session, ids)}  {one_line(one.title) or '(untitled)'}"
        limit = f"all take at least {bytes_text(one.least_bytes)}, and blocks may take {room}"
        yield (
            f"too long  {name}: only the first {one.kept_tokens:,} of {one.num_tokens:,} tokens are kept, and"
            f" the rest is computed again, since {limit}; give more with --kv-disk-bytes"
        )


@dataclass(frozen=True, slots=True)
class _Disk:
    """What is on disk, and of whose text."""

    store: SessionStore
    admin: CacheAdmin
    limit_bytes: int

    def among_all(self) -> Iterator[PartlyStoredSession]:
        usages = self.admin.usages()
        sizes = {fingerprint: self.admin.block_size(fingerprint) or 0 for fingerprint in usages}
        for summary in self.store.list_sessions():
            session = summary.session
            num_files = {name: summary.num_tokens // size * _MARGIN for name, size in sizes.items() if size}
            likely = [
                name
                for name, most in num_files.items()
                if most * usages[name].num_bytes > self.limit_bytes * usages[name].num_blocks
            ]
            turns = self.store.all_turns(session.id) if likely else []
            found = [
                one
                for name in likely
                for path in leaf_paths(turns)
                if (one := self._of(session, path, name, sizes[name])) is not None
            ]
            if found:
                yield max(found, key=lambda one: (one.num_tokens, one.kept_tokens))

    def _of(
        self, session: Session, path: Sequence[int], fingerprint: bytes, size: int
    ) -> PartlyStoredSession | None:
        root = chain_root(fingerprint.hex(), session.namespace)
        if root is None:
            return None
        keys = chain_keys(root, path, size)
        there = self.admin.found(fingerprint, keys)
        kept = [there[key] for key in takewhile(there.__contains__, keys)]
        if not kept or len(kept) == len(keys):
            return None
        # Of layers with a window the last blocks alone are kept: the least that one takes, all of them take.
        least_bytes = len(keys) * min(block.num_bytes for block in kept)
        if least_bytes <= self.limit_bytes:
            return None
        return PartlyStoredSession(
            session=session.id,
            title=session.title,
            num_tokens=len(keys) * size,
            kept_tokens=len(kept) * size,
            least_bytes=least_bytes,
        )
