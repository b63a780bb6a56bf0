"""Owners of the blocks on disk, and removal of blocks without touching conversations."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter, sleep

from kvchat.app.config import Settings
from kvchat.app.interface_types import KvOnDisk
from kvchat.app.open_store import open_cache
from kvchat.app.retention.session_removal import SessionService, by_size, is_referenced
from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.index import DiskUsage, IndexedBlock
from kvchat.session.kv.block_references import References
from kvchat.session.packs import PackStore
from kvchat.session.session_queries import SessionSummary
from kvchat.session.tree import SessionId

_NOBODY = "no session"
_LONGEST_REST_S = 0.05


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


class StoredKv:
    """Counts for all sessions at once. What a session refers to is worked out once for each state of it."""

    def __init__(self, store: SessionService, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._known: dict[SessionId, tuple[object, dict[int, References]]] = {}
        """The state of each session when it was looked at, and by block size its full blocks
        and the runs that its branches end with.
        """

    def count(self, is_stopped: Callable[[], bool] = lambda: False) -> dict[SessionId, KvOnDisk]:
        """Return what each session has that has anything. Not for two threads at once.

        Args:
            is_stopped: asked before each session; then nothing is returned.

        Raises:
            StorageError: the database or the index cannot be read.
        """
        if not self._settings.paths.cache_dir.is_dir():
            return {}
        with closing(open_cache(self._settings)) as admin:
            blocks = admin.blocks()
        full = {(block.block_size, block.key): block for block in blocks if not block.is_tail}
        tails: dict[tuple[int, BlockKey], list[IndexedBlock]] = {}
        for block in blocks:
            if block.is_tail:
                tails.setdefault((block.block_size, block.parent), []).append(block)
        sizes = {block.block_size for block in blocks}
        held: dict[SessionId, list[IndexedBlock]] = {}
        for summary in self._store.list_sessions():
            if is_stopped():
                return {}
            found: list[IndexedBlock] = []
            for size in sizes:
                referred = self._of(summary, size)
                found += [full[size, key] for key in referred.keys if (size, key) in full]
                behind = (tail for parent in referred.runs for tail in tails.get((size, parent), ()))
                found += [tail for tail in behind if referred.covers_tail(tail.parent, tail.token_ids)]
            if found:
                held[summary.session.id] = found
        return _shares(held)

    def _of(self, summary: SessionSummary, block_size: int) -> References:
        session = summary.session
        state = (session.updated_at, session.namespace, summary.num_turns, summary.num_tokens)
        known_state, referred = self._known.get(session.id, (None, {}))
        if known_state != state:
            referred = {}
        if block_size not in referred:
            referred[block_size] = self._work_out(session.id, block_size)
        self._known[session.id] = state, referred
        return referred[block_size]

    def _work_out(self, session_id: SessionId, block_size: int) -> References:
        start_s = perf_counter()
        found = self._store.references(block_size, [session_id])
        ends = {
            parent: short
            for parent, runs in found.runs.items()
            if (short := {run for run in runs if len(run) < 4 * block_size})
        }
        sleep(min(_LONGEST_REST_S, perf_counter() - start_s))  # hundreds of them follow: others come first
        return References(found.keys, ends)


def _shares(held: Mapping[SessionId, Sequence[IndexedBlock]]) -> dict[SessionId, KvOnDisk]:
    """Return what each session alone has, and what it has with others."""
    num_holders = Counter(id(block) for blocks in held.values() for block in blocks)
    counted = {}
    for session_id, blocks in held.items():
        total = sum(block.num_bytes for block in blocks)
        own = sum(block.num_bytes for block in blocks if num_holders[id(block)] == 1)
        counted[session_id] = KvOnDisk(own_bytes=own, shared_bytes=total - own)
    return counted
