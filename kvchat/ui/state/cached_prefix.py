"""Cached prefix of a conversation that comes on screen: how much of it need not be computed."""

from typing import TYPE_CHECKING

from kvchat.app.interface_types import EngineView
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.tree import path_token_ids
from kvchat.text.cache_usage import reach_words

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat


class CachedPrefix:
    """Asks the engine, between two of its steps.

    Args:
        engine: what is asked for tiers.
    """

    def __init__(self, chat: "Chat", engine: EngineView) -> None:
        self._chat = chat
        self._engine = engine
        self._loaded_before = 0

    def begin(self) -> None:
        """Note what was loaded before a conversation is opened, which begins to load it."""
        self._loaded_before = _loaded_bytes(self._engine.snapshot())

    def words(self, conversation: "Conversation") -> str:
        """Return what need not be computed of a conversation, where it is, and what was loaded since `begin`.
        Waits for the engine.

        Raises:
            KvchatError: it cannot be told.
        """
        cost = self._chat.variants.reach(conversation)
        blocks = self._blocks(conversation)
        snapshot = self._engine.snapshot()
        loaded = max(0, _loaded_bytes(snapshot) - self._loaded_before)
        return reach_words(cost, snapshot, blocks, loaded)

    def _blocks(self, conversation: "Conversation") -> tuple[InspectedBlock, ...]:
        ids = path_token_ids(conversation.turns) or ()
        namespace = namespace_of(conversation.session, conversation.turns)
        request = InspectionRequest(
            sequence=conversation.engine_sequence, token_ids=tuple(ids), namespace=namespace
        )
        try:
            return self._engine.inspect(request)
        except KvchatError:
            return ()


def _loaded_bytes(snapshot: CacheSnapshot | None) -> int:
    return snapshot.moved.from_host + snapshot.moved.from_disk if snapshot is not None else 0
