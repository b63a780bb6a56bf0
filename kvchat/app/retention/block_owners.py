"""Owners of the blocks on disk, and removal of blocks without touching conversations."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from kvchat.app.config import Settings
from kvchat.app.open_store import open_cache
from kvchat.app.retention.session_removal import SessionService, by_size, is_referenced
from kvchat.engine.memory.disk.index import DiskUsage, IndexedBlock
from kvchat.session.packs import PackStore

_NOBODY = "no session"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOwner:
    """A session, a pack or nobody, with what it has on disk. `own_bytes`: what nobody else has."""

    kind: str
    name: str
    id: str
    num_blocks: int
    num_bytes: int
    own_bytes: int


def holders(store: SessionService, settings: Settings) -> list[BlockOwner]:
    """Return everybody who has blocks, most bytes first. Looks at every block."""
    if not settings.paths.cache_dir.is_dir():
        return []
    with closing(open_cache(settings)) as admin:
        blocks = admin.blocks()
    sizes = {block.block_size for block in blocks}
    held: dict[tuple[str, str, str], list[IndexedBlock]] = {}
    for summary in store.list_sessions():
        session = summary.session
        known = {size: store.references(size, [session.id]) for size in sizes}
        held["session", session.title, session.id] = [one for one in blocks if is_referenced(one, known)]
    for pack in PackStore(settings.paths.packs_dir, settings.engine.encryptor).all():
        keys = {(bytes.fromhex(pack.fingerprint), key) for key in pack.keys}
        held["pack", pack.name, pack.id] = [one for one in blocks if (one.fingerprint, one.key) in keys]
    counts = Counter(id(block) for of_holder in held.values() for block in of_holder)
    held["nobody", _NOBODY, ""] = [block for block in blocks if id(block) not in counts]
    rows = [
        BlockOwner(
            kind=kind,
            name=name,
            id=holder_id,
            num_blocks=sum(len(block.groups) for block in found),
            num_bytes=sum(block.num_bytes for block in found),
            own_bytes=sum(block.num_bytes for block in found if counts[id(block)] <= 1),
        )
        for (kind, name, holder_id), found in held.items()
        if found
    ]
    return sorted(rows, key=lambda row: -row.num_bytes)


def evicted(
    store: SessionService, settings: Settings, sessions: Sequence[str], to_bytes: int | None
) -> DiskUsage:
    """Remove what only these sessions refer to; or with `to_bytes` the longest unused, until so much is left.

    Blocks that packs and pinned sessions keep stay.

    Raises:
        SessionNotFound, SessionAmbiguous: a name is none.
        StorageError: blocks cannot be removed.
    """
    chosen = {store.find(name).id for name in sessions}
    if not settings.paths.cache_dir.is_dir():
        return DiskUsage(num_blocks=0, num_tails=0, num_bytes=0)
    with closing(open_cache(settings)) as admin:
        if to_bytes is not None:
            return admin.shrink(to_bytes)
        blocks = admin.blocks()
        unchosen = [one.session.id for one in store.list_sessions() if one.session.id not in chosen]
        own = by_size(blocks, lambda size: store.references(size, chosen))
        others = by_size(blocks, lambda size: store.references(size, unchosen))
        return admin.collect(lambda block: not is_referenced(block, own) or is_referenced(block, others))
