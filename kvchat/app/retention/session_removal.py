"""Removing sessions and branches together with the KV blocks that nothing else refers to."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.app.retention.session_pins import SessionPins, pin_names
from kvchat.engine.api.config import EngineConfig
from kvchat.errors import EngineFailed, SessionNotFound, StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.kv.block_references import References, add_turns
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.tree import Branch, BranchRemoval, SessionId, Turn, TurnId, Verification
from kvchat.text.figures import bytes_text, plural

if TYPE_CHECKING:
    from kvchat.engine.memory.disk.cache_admin import CacheAdmin
    from kvchat.engine.memory.disk.index import IndexedBlock


_BLOCK_SIZE = EngineConfig().block_size
_PATIENCE_S = 0.5
_SESSION_ID = re.compile("[a-z2-7]{8}")

Refer = Callable[[int], References]
"""Says what is referred to, in blocks of a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What the disk gave back, and what of the doomed blocks stays: others share it, or a pack keeps it."""

    freed_blocks: int = 0
    freed_bytes: int = 0
    shared_blocks: int = 0
    shared_bytes: int = 0


class SessionService(SessionStore):
    """A store that deletes, with a session or a branch, the blocks that only this one referred to.

    Args:
        path: see `SessionStore`.
        cache_dir: where the blocks are.
        encryptor: what both are encrypted with; None: they are in the clear.
        limit_bytes: what blocks may take on disk; None: there is no limit.
        block_size: of a model that has no blocks on disk yet.
    """

    def __init__(
        self,
        path: Path | None,
        cache_dir: Path,
        encryptor: Encryptor | None = None,
        *,
        limit_bytes: int | None = None,
        block_size: int = _BLOCK_SIZE,
    ) -> None:
        super().__init__(path, encryptor)
        self._cache_dir = cache_dir
        self._encryptor = encryptor
        self._pins = SessionPins(self, cache_dir, self._admin, limit_bytes=limit_bytes, block_size=block_size)
        self.drain: Callable[[], None] = lambda: None
        """Waits until an engine of this process has nothing on its way to the disk."""
        self._left_in_cache: Sequence[str] = ()
        self._notices: list[str] = []

    def is_gone(self, owner: str) -> bool:
        """Return whether an owner of blocks is a session that was deleted, maybe by another process.

        Waits for no write: an engine asks between its steps. What cannot be told at once is no.
        """
        if not _SESSION_ID.fullmatch(owner):
            return False
        try:
            with self._database.read(_PATIENCE_S):
                self.session(SessionId(owner))
        except SessionNotFound:
            return True
        except StorageError:  # it cannot be told
            return False
        return False

    def pin(self, session_id: SessionId, *, is_pinned: bool) -> None:
        """Keep a session at the top of the list and its full blocks on disk, or no longer.

        Raises:
            PinRefused: its blocks take more of the disk's limit than may be kept; nothing has changed.
        """
        if is_pinned:
            self._pins.keep(session_id)
        super().pin(session_id, is_pinned=is_pinned)
        if not is_pinned:
            self._pins.let_go([session_id])

    def finish_answer(self, turn_id: TurnId, outcome: Outcome) -> Turn:
        """End an answer, as `SessionStore` does; in a pinned session its blocks are kept too."""
        turn = super().finish_answer(turn_id, outcome)
        with suppress(SessionNotFound):  # deleted elsewhere since: the answer was stored, and went with it
            self._keep_rest(turn.session_id)
        return turn

    def take_notices(self) -> tuple[str, ...]:
        """Return what of pinned sessions is not kept, each once."""
        told, self._notices = tuple(self._notices), []
        return told

    def use_blocks_of(self, session_id: SessionId, namespace: str) -> None:
        """Note whose blocks a session uses from now on; of a pinned one those are kept, and no others."""
        super().use_blocks_of(session_id, namespace)
        self._keep_rest(session_id)

    def mark_verified(self, session_id: SessionId, verification: Verification, namespace: str) -> None:
        """Note what was found of a session's KV; of a pinned one the blocks it uses from now on are kept."""
        super().mark_verified(session_id, verification, namespace)
        self._keep_rest(session_id)

    def delete_sessions(self, doomed: Iterable[SessionId]) -> None:
        """Delete sessions, their text first, and then their blocks."""
        self.remove_sessions(doomed)

    def remove_sessions(self, doomed: Iterable[SessionId]) -> Removed:
        """Delete sessions and return what that freed.

        Blocks that no session of this store refers to stay: another store may share the directory.

        Raises:
            StorageError: the database or the blocks cannot be written.
        """
        doomed = tuple(doomed)
        return self._remove(
            lambda size: self.references(size, doomed),
            lambda: self._delete_text(doomed),
            lambda admin: self._pins.let_go_in(admin, doomed),
        )

    def remove_branch(self, session_id: SessionId, name: str) -> Removed:
        """Delete a branch with the messages that no other branch has, and return what that freed.

        Raises:
            SessionNotFound: there is no such branch.
            UsageError: the session has no other.
            StorageError: the database or the blocks cannot be written.
        """
        plan = self.removal_of(session_id, name)
        return self._remove_turns(plan.branch, plan.successor, plan.touched, [one.id for one in plan.doomed])

    def delete_branch(self, branch: Branch, successor: Branch, turn_ids: Sequence[TurnId] = ()) -> None:
        """Delete a branch's name, as `SessionStore` does, and the blocks of the turns that go with it."""
        if not turn_ids:
            super().delete_branch(branch, successor)
            return
        touched = {*turn_ids, *(turn.id for turn in self.turns_to(branch.leaf_id))}
        turns = [turn for turn in self.all_turns(branch.session_id) if turn.id in touched]
        self._remove_turns(branch, successor, turns, turn_ids)

    def still_readable(self) -> Sequence[str]:
        """Return in which files deleted words may still be read, each with what to do about it."""
        return (*super().still_readable(), *self._left_in_cache)

    def references(self, block_size: int, sessions: Iterable[SessionId] | None = None) -> References:
        """Return what some sessions (None: all) refer to in blocks of a size, over views too."""
        if sessions is None:
            sessions = [summary.session.id for summary in self.list_sessions()]
        found = References()
        for session_id in sessions:
            self._add(found, session_id, self.all_turns(session_id), block_size)
        return found

    def would_remove(self, doomed: Iterable[SessionId]) -> Removed:
        """Return what deleting sessions would free, and what of them would stay; changes nothing."""
        doomed = set(doomed)
        kept = [one.session.id for one in self.list_sessions() if one.session.id not in doomed]
        return self._would_remove(
            lambda size: self.references(size, doomed), lambda size: self.references(size, kept), doomed
        )

    def would_remove_branch(self, plan: BranchRemoval) -> Removed:
        """Return what deleting a branch would free, and what of it would stay; changes nothing."""
        own = plan.branch.session_id
        kept = [one.session.id for one in self.list_sessions() if one.session.id != own]

        def others(size: int) -> References:
            found = self.references(size, kept)
            self._add(found, own, plan.left, size)
            return found

        return self._would_remove(lambda size: self._of_turns(own, plan.touched, size), others, [own])

    def _admin(self) -> "CacheAdmin":
        # Imported by whoever removes: a list of sessions is to be there at once.
        from kvchat.engine.memory.disk.cache_admin import CacheAdmin

        return CacheAdmin(self._cache_dir, encryptor=self._encryptor)

    def _remove_turns(
        self, branch: Branch, successor: Branch, touched: Sequence[Turn], turn_ids: Sequence[TurnId]
    ) -> Removed:
        """Delete a branch with some of its turns.

        Args:
            touched: turns whose blocks are looked at, a parent before its children.
            turn_ids: those that go.
        """
        return self._remove(
            lambda size: self._of_turns(branch.session_id, touched, size),
            lambda: SessionStore.delete_branch(self, branch, successor, turn_ids),
            lambda _: self._keep_rest(branch.session_id),
        )

    def _of_turns(self, session_id: SessionId, turns: Sequence[Turn], block_size: int) -> References:
        found = References()
        self._add(found, session_id, turns, block_size)
        return found

    def _add(self, found: References, session_id: SessionId, turns: Sequence[Turn], block_size: int) -> None:
        # Imported by whoever removes: a list of sessions is to be there at once.
        from kvchat.app.retention.view_blocks import add_view_turns

        add_turns(found, self, session_id, turns, block_size)
        add_view_turns(found, self.session(session_id), turns, block_size, self._cache_dir)

    def _keep_rest(self, session_id: SessionId) -> None:
        """Keep of a pinned session what it has now."""
        words = self._pins.keep_grown(session_id) if self.session(session_id).pinned else None
        if words is not None:
            self._notices.append(words)

    def _remove(
        self, refer: Refer, delete: Callable[[], None], let_go: Callable[["CacheAdmin"], None]
    ) -> Removed:
        """Delete text, and then the blocks that it alone referred to.

        Args:
            let_go: ends what a pin has kept of it; called once the text is gone.
        """
        with suppress(EngineFailed):  # then it writes nothing more
            self.drain()
        self._left_in_cache = ()
        own = None
        with ExitStack() as opened:
            try:
                if self._has_cache():
                    admin = opened.enter_context(closing(self._admin()))
                    blocks = admin.blocks()
                    own = by_size(blocks, refer)
            except (StorageError, OSError) as error:
                self._left_in_cache = (_not_removed(error),)
            delete()  # text goes whatever becomes of its blocks
            if own is None:
                return Removed()
            try:
                return self._remove_blocks(admin, blocks, own, let_go)
            except (StorageError, OSError) as error:
                self._left_in_cache = (_not_removed(error),)
                return Removed()

    def _has_cache(self) -> bool:
        try:
            return self._cache_dir.is_dir()
        except OSError:  # whoever opens it is told why
            return True

    def _remove_blocks(
        self,
        admin: "CacheAdmin",
        blocks: Sequence["IndexedBlock"],
        own: dict[int, References],
        let_go: Callable[["CacheAdmin"], None],
    ) -> Removed:
        """Remove what was referred to by deleted text alone."""
        let_go(admin)
        others = by_size(blocks, self.references)
        expected = _expected(blocks, own, others, admin.kept_blocks())
        freed = admin.collect(lambda block: not is_referenced(block, own) or is_referenced(block, others))
        self._left_in_cache = admin.still_readable
        return replace(expected, freed_blocks=freed.num_blocks, freed_bytes=freed.num_bytes)

    def _would_remove(self, refer: Refer, refer_others: Refer, pinned: Collection[SessionId]) -> Removed:
        """Return what would be freed.

        Args:
            pinned: sessions whose pins would keep no more than others refer to.
        """
        if not self._has_cache():
            return Removed()
        with closing(self._admin()) as admin:
            kept = admin.kept_blocks(but=pin_names(admin, pinned))
            blocks = admin.blocks()
        return _expected(blocks, by_size(blocks, refer), by_size(blocks, refer_others), kept)

    def collect(self) -> Removed:
        """Remove every block that no session of this store refers to, and all damaged ones.

        What was not sent to sessions that are gone goes too.

        Raises:
            StorageError: the blocks or the texts cannot be removed.
        """
        self._forget_stray_texts()
        if not self._has_cache():
            return Removed()
        with closing(self._admin()) as admin:
            self._pins.let_go_of_strays(admin)
            freed = admin.collect_by(self._referenced)
            self._left_in_cache = admin.still_readable
        return Removed(freed_blocks=freed.num_blocks, freed_bytes=freed.num_bytes)

    def _referenced(self, blocks: Sequence["IndexedBlock"]) -> Callable[["IndexedBlock"], bool]:
        """Say of blocks whether any session of now refers to them."""
        known = by_size(blocks, self.references)
        return lambda block: is_referenced(block, known)

    def _delete_text(self, doomed: Iterable[SessionId]) -> None:
        super().delete_sessions(doomed)
        self._forget_stray_texts()

    def _forget_stray_texts(self) -> None:
        """Remove what another process kept for a session that had been deleted while it was shown there."""
        for owner in self.unsent.owners():
            if self.is_gone(owner):
                self.unsent.forget(owner)


def _not_removed(error: Exception) -> str:
    """Say that blocks stay whose text is gone, and what to do."""
    return (
        f"the KV of what was deleted is still on disk: {error}; `kvchat cache gc` removes it once the cache"
        " can be used again"
    )


def by_size(blocks: Iterable["IndexedBlock"], refer: Refer) -> dict[int, References]:
    """Return what is referred to, for every block size that is on disk."""
    return {size: refer(size) for size in {block.block_size for block in blocks}}


def is_referenced(block: "IndexedBlock", found: Mapping[int, References]) -> bool:
    """Return whether a block is among what is referred to, by block size."""
    known = found.get(block.block_size, References())
    if block.is_tail:
        return known.covers_tail(block.parent, block.token_ids)
    return block.key in known.keys


def _expected(
    blocks: Iterable["IndexedBlock"],
    own: Mapping[int, References],
    others: Mapping[int, References],
    kept: Iterable["IndexedBlock"],
) -> Removed:
    """Return what removing what `own` alone refers to frees, and what of it `others` or a pin keep."""
    kept_names = {(block.fingerprint, block.name) for block in kept}
    freed: list[IndexedBlock] = []
    shared: list[IndexedBlock] = []
    for block in blocks:
        if is_referenced(block, own):
            stays = is_referenced(block, others) or (block.fingerprint, block.name) in kept_names
            (shared if stays else freed).append(block)
    return Removed(
        freed_blocks=sum(len(block.groups) for block in freed),
        freed_bytes=sum(block.num_bytes for block in freed),
        shared_blocks=sum(len(block.groups) for block in shared),
        shared_bytes=sum(block.num_bytes for block in shared),
    )


OTHERS = "branches or sessions"
"""Who else may have what a branch has."""


def branch_words(plan: BranchRemoval) -> str:
    """Return which messages go with a branch, and which stay because other branches have them."""
    words = f"{plural(len(plan.doomed), 'message')} would be gone for good"
    if plan.num_shared:
        words += f"; {plural(plan.num_shared, 'message')} stay, since other branches share them"
    return words


def expected_words(count: Callable[[], Removed], owners: str = "sessions") -> str:
    """Return what a deletion would free, and what would stay; all of its KV where the cache cannot be used.

    Args:
        count: returns what would be freed.
        owners: who else may have it.
    """
    try:
        would = count()
    except (StorageError, OSError) as error:
        again = "`kvchat cache gc` removes it once the cache can be used again"
        return f"its KV would stay on disk: {error}; {again}"
    words = f"{plural(would.freed_blocks, 'block')} of KV ({bytes_text(would.freed_bytes)}) would be freed"
    if would.shared_blocks:
        shared = f"{plural(would.shared_blocks, 'block')} ({bytes_text(would.shared_bytes)})"
        words += f"; {shared} stay, since other {owners} share them"
    return words
