"""Conversations that stay open behind the one on screen.

An open conversation holds its blocks: going back to it computes nothing, and the cache panel shows what two
branches share. But held blocks cannot be evicted, so only a few are kept, and none when room gets scarce.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.session.tree import SessionId
from kvchat.ui.state.conversation_tab import branch_key

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

MAX_KEPT = 4


class KeptConversations:
    """The conversations left most recently, oldest first. It only remembers; closing is the caller's."""

    def __init__(self) -> None:
        self._kept: dict[tuple[SessionId, str], Conversation] = {}

    def __iter__(self) -> "Iterator[Conversation]":
        return iter(self._kept.values())

    def keep(self, conversation: "Conversation") -> "list[Conversation]":
        """Remember a conversation that leaves the screen, and return those to close for it."""
        replaced = self._kept.pop(branch_key(conversation), None)
        self._kept[branch_key(conversation)] = conversation
        closing = [] if replaced is None or replaced is conversation else [replaced]
        while len(self._kept) > MAX_KEPT:
            closing.append(self._kept.pop(next(iter(self._kept))))
        return closing

    def take(self, fresh: "Conversation") -> "tuple[Conversation, list[Conversation]]":
        """Return what to show for a conversation that was just opened, and those to close for it.

        The kept one is as good as the fresh one, and holds its blocks, if nobody has moved the branch since.
        """
        kept = self._kept.pop(branch_key(fresh), None)
        if kept is None:
            return fresh, []
        if kept.branch.leaf_id == fresh.branch.leaf_id:
            return kept, []
        return fresh, [kept]

    def drop_session(self, session_id: SessionId) -> "list[Conversation]":
        """Forget a session's conversations and return them to be closed."""
        return [self._kept.pop(key) for key in list(self._kept) if key[0] == session_id]

    def drop_all(self) -> "list[Conversation]":
        """Forget all and return them to be closed."""
        dropped, self._kept = list(self._kept.values()), {}
        return dropped

    def drop_for_room(self, snapshot: CacheSnapshot) -> "list[Conversation]":
        """Forget the oldest if a whole context would no longer fit beside what is held."""
        if not self._kept or _evictable_tokens(snapshot) >= snapshot.max_context:
            return []
        return [self._kept.pop(next(iter(self._kept)))]


def _evictable_tokens(snapshot: CacheSnapshot) -> int:
    """Return what the pools of full layers could take if they gave up all that is kept for reuse."""
    full = [group for group in snapshot.groups if group.window is None]
    blocks = min((group.free_blocks + group.cached_blocks for group in full), default=0)
    return blocks * snapshot.block_size
