"""Owners of the blocks on disk, and removal of blocks without touching conversations."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from kvchat.app.config import Settings
from kvchat.app.session_service import SessionService
from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.catalog import BlockCatalog
from kvchat.engine.memory.disk.index import DiskUsage, IndexedBlock
from kvchat.session.kv.references import References
from kvchat.session.packs import PackStore
from kvchat.session.tree import SessionId

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
    with closing(BlockCatalog(settings.paths.cache_dir, encryptor=settings.engine.encryptor)) as catalog:
        blocks = catalog.blocks()
    sizes = {block.block_size for block in blocks}
    held: dict[tuple[str, str, str], list[IndexedBlock]] = {}
    for summary in store.list_sessions():
        session = summary.session
        known = {size: store.references(size, [session.id]) for size in sizes}
        held["session", session.title, session.id] = [one for one in blocks if is_covered(one, known)]
    for pack in PackStore(settings.paths.packs_dir, settings.engine.encryptor).all():
        keys = _keys_of(pack.fingerprint, pack.keys)
        held["pack", pack.name, pack.id] = [one for one in blocks if (one.fingerprint, one.key) in keys]
    counts: dict[int, int] = {}
    for of_holder in held.values():
        for block in of_holder:
            counts[id(block)] = counts.get(id(block), 0) + 1
    held["nobody", _NOBODY, ""] = [block for block in blocks if id(block) not in counts]
    rows = [_row(name, found, counts) for name, found in held.items() if found]
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
    with closing(BlockCatalog(settings.paths.cache_dir, encryptor=settings.engine.encryptor)) as catalog:
        if to_bytes is not None:
            return catalog.shrink(to_bytes)
        return catalog.collect(_kept_without(store, catalog, chosen))


def is_covered(block: IndexedBlock, known: Mapping[int, References]) -> bool:
    """Return whether a block is among what is referred to, by block size."""
    found = known.get(block.block_size)
    if found is None:
        return False
    return found.covers_tail(block.parent, block.token_ids) if block.is_tail else block.key in found.keys


def _kept_without(store: SessionService, catalog: BlockCatalog, chosen: Iterable[SessionId]) -> "PinnedBytes":
    chosen = set(chosen)
    others = [one.session.id for one in store.list_sessions() if one.session.id not in chosen]
    sizes = {block.block_size for block in catalog.blocks()}
    return PinnedBytes(
        own={size: store.references(size, chosen) for size in sizes},
        others={size: store.references(size, others) for size in sizes},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedBytes:
    """Says which blocks stay: all but those that `own` refers to and `others` does not."""

    own: Mapping[int, References]
    others: Mapping[int, References]

    def __call__(self, block: IndexedBlock) -> bool:
        return not is_covered(block, self.own) or is_covered(block, self.others)


def _keys_of(fingerprint: str, keys: Iterable[BlockKey]) -> set[tuple[bytes, BlockKey]]:
    return {(bytes.fromhex(fingerprint), key) for key in keys}


def _row(name: tuple[str, str, str], blocks: Sequence[IndexedBlock], counts: Mapping[int, int]) -> BlockOwner:
    kind, shown, holder_id = name
    return BlockOwner(
        kind=kind,
        name=shown,
        id=holder_id,
        num_blocks=sum(len(block.groups) for block in blocks),
        num_bytes=sum(block.num_bytes for block in blocks),
        own_bytes=sum(block.num_bytes for block in blocks if counts.get(id(block), 0) <= 1),
    )
