"""The blocks of pinned sessions stay on disk, in the way those of packs do.

What is kept is named by token ids, so it is drawn up from the stored text: when a session is pinned, and
again whenever one of its answers has ended. Of tails, which are replaced as they grow, those are kept with
which branches end, and with them the states of recurrent layers from which the branches go on.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.engine.api.ids import BlockKey, path_keys
from kvchat.errors import KvchatError, PinRefused
from kvchat.session.kv.block_references import References, chain_root, leaf_paths, runs_of
from kvchat.session.kv.provenance import origin_of
from kvchat.session.store import SessionStore
from kvchat.session.tree import SessionId
from kvchat.text.figures import bytes_text

if TYPE_CHECKING:
    from kvchat.engine.memory.disk.cache_admin import CacheAdmin

log = logging.getLogger(__name__)

MOST_KEPT = 2
"""At most one byte in so many of the disk's limit may be kept, by packs and pinned sessions together."""
_PREFIX = "session-"


class SessionPins:
    """Keeps the blocks of sessions, and lets them make room again.

    Args:
        store: where their text is.
        cache_dir: where the blocks are.
        open_admin: opens them; called where there are any.
        limit_bytes: what blocks and prepared weights may take on disk; None: there is no limit.
        block_size: of a model that has no blocks on disk yet.
    """

    def __init__(
        self,
        store: SessionStore,
        cache_dir: Path,
        open_admin: "Callable[[], CacheAdmin]",
        *,
        limit_bytes: int | None,
        block_size: int,
    ) -> None:
        self._store = store
        self._cache_dir = cache_dir
        self._admin = open_admin
        self._limit_bytes = limit_bytes
        self._block_size = block_size
        self._left_out: frozenset[SessionId] = frozenset()
        """Sessions of which it was said that not all is kept."""

    def keep(self, session_id: SessionId) -> None:
        """Keep the blocks that a session has by now, there or still to be written, and no others.

        Raises:
            PinRefused: more would be kept than may be; what was kept of them stays so.
            StorageError: it cannot be written.
        """
        if not self._cache_dir.is_dir():
            return  # there is no block, and the next answer comes here again
        with closing(self._admin()) as admin:
            wanted = self._wanted(session_id, admin)
            self._let_go_of_others(admin, session_id, wanted)
            self._refuse_too_many(admin, session_id, wanted)
            for fingerprint, keys in wanted.items():
                admin.keep(_name(session_id, fingerprint), fingerprint, keys)

    def keep_grown(self, session_id: SessionId) -> str | None:
        """Keep what a pinned session has added. What cannot be kept is like any other.

        Returns: why it cannot be kept, once for each session until it can; else None.
        """
        try:
            self.keep(session_id)
        except KvchatError as error:
            log.warning("what session %s has added is not kept: %s", session_id, error)
            is_known, self._left_out = session_id in self._left_out, self._left_out | {session_id}
            return None if is_known else f"what this pinned session has added is not kept on disk: {error}"
        self._left_out -= {session_id}
        return None

    def let_go(self, session_ids: Iterable[SessionId]) -> None:
        """Let the blocks of sessions make room again."""
        if self._cache_dir.is_dir():
            with closing(self._admin()) as admin:
                self.let_go_in(admin, session_ids)

    def let_go_in(self, admin: "CacheAdmin", session_ids: Iterable[SessionId]) -> None:
        for name in pin_names(admin, session_ids):
            admin.let_go(name)

    def _let_go_of_others(
        self, admin: "CacheAdmin", session_id: SessionId, wanted: "dict[bytes, list[BlockKey]]"
    ) -> None:
        """Let blocks make room again that a session does not have any more: their names tell of its words."""
        lists = {_name(session_id, fingerprint): fingerprint for fingerprint in wanted}
        for name in pin_names(admin, [session_id]):
            if name in lists:
                admin.narrow(name, lists[name], wanted[lists[name]])
            else:
                admin.let_go(name)

    def let_go_of_strays(self, admin: "CacheAdmin") -> None:
        """Let blocks make room again that are kept for sessions which nobody has pinned any more."""
        pinned = {one.session.id for one in self._store.list_sessions() if one.session.pinned}
        for name in admin.kept_names():
            if name.startswith(_PREFIX) and _session_of(name) not in pinned:
                admin.let_go(name)

    def _refuse_too_many(
        self, admin: "CacheAdmin", session_id: SessionId, wanted: "dict[bytes, list[BlockKey]]"
    ) -> None:
        # Imported by whoever pins: a list of sessions is to be there at once.
        from kvchat.engine.models.checkpoints.prepared import blocks_limit

        limit_bytes = blocks_limit(self._limit_bytes, self._cache_dir)
        if limit_bytes is None:
            return
        num_bytes = admin.kept_bytes(but=pin_names(admin, [session_id]), beside=wanted)
        if num_bytes * MOST_KEPT > limit_bytes:
            raise PinRefused(
                f"packs and pinned sessions would keep {bytes_text(num_bytes)}, more than one byte in"
                f" {MOST_KEPT} of the {bytes_text(limit_bytes)} that blocks may take on disk; unpin a"
                " session, remove a pack with `kvchat pack rm`, or give more --kv-disk-bytes"
            )

    def _wanted(self, session_id: SessionId, admin: "CacheAdmin") -> "dict[bytes, list[BlockKey]]":
        """Return the keys of a session's full blocks and of its branches' tails, by fingerprint."""
        # Imported by whoever pins: a list of sessions is to be there at once.
        from kvchat.app.retention.view_blocks import add_view_turns

        session, turns = self._store.session(session_id), self._store.all_turns(session_id)
        known = {turn.fingerprint for turn in turns}
        if (conversion := origin_of(session.namespace)) is not None:
            known.add(conversion.fingerprint)
        paths = list(leaf_paths(turns))
        found: dict[bytes, list[BlockKey]] = {}
        for fingerprint in sorted(known):
            if (root := chain_root(fingerprint, session.namespace)) is None:
                continue
            digest = bytes.fromhex(fingerprint)
            size = admin.block_size(digest) or self._block_size
            referred = References()
            referred.add(runs_of(turns, root, size))
            add_view_turns(referred, session, turns, size, self._cache_dir)
            # The last token of an answer is not computed before the next message.
            ends = (path_keys(root, ids[:-1], size)[-1:] for ids in paths)
            found[digest] = sorted(referred.keys.union(*ends))
        return found


def pin_names(admin: "CacheAdmin", session_ids: Iterable[SessionId]) -> frozenset[str]:
    """Return the names under which blocks are kept for some sessions."""
    chosen = set(session_ids)
    kept = admin.kept_names()
    return frozenset(name for name in kept if name.startswith(_PREFIX) and _session_of(name) in chosen)


def _name(session_id: SessionId, fingerprint: bytes) -> str:
    return f"{_PREFIX}{session_id}-{fingerprint.hex()[:16]}"


def _session_of(name: str) -> str:
    return name.removeprefix(_PREFIX).rpartition("-")[0]
