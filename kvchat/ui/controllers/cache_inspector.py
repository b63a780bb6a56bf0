"""Opens the inspector on the cache, and reads for it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvchat.app.interface_types import EngineView
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import InspectionRequest
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.tree import path_token_ids
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.turn_runner import TurnRunner
from kvchat.ui.widgets.cache.inspector_rows import RowSource, sources
from kvchat.ui.widgets.cache.panel_rows import BranchNames

if TYPE_CHECKING:
    from kvchat.chat.service import Chat
    from kvchat.ui.screens.inspector import BlocksWithWords


class InspectorController:
    """Reads blocks for the inspector; the engine answers between two steps.

    Args:
        names: says what live branches are called.
    """

    def __init__(
        self,
        screen: ScreenServices,
        chat: "Chat",
        engine: EngineView,
        turns: TurnRunner,
        names: Callable[[], BranchNames],
    ) -> None:
        self._screen = screen
        self._chat = chat
        self._engine = engine
        self._turns = turns
        self._names = names
        self._words: dict[tuple[int, ...], str] = {}

    def open(self) -> None:
        self._screen.begin(self._open)

    async def _open(self) -> None:
        from kvchat.ui.screens.inspector import InspectorScreen

        await self._screen.dialogs.ask(
            InspectorScreen(lambda: self._screen.snapshot, self._sources, self._blocks)
        )

    def _sources(self) -> Sequence[RowSource]:
        """Return whose blocks can be shown, that of the conversation on screen first."""
        snapshot = self._screen.snapshot
        if snapshot is None:
            return ()
        names = self._names()
        found = sources(snapshot, names, self._on_screen(names.active))
        return sorted(found, key=lambda source: source.mark != "●")

    async def _blocks(self, source: RowSource) -> "BlocksWithWords":
        return await asyncio.to_thread(self._read, source)

    def _read(self, source: RowSource) -> "BlocksWithWords":
        words: dict[tuple[int, ...], str] = {}
        blocks = self._engine.inspect(source.request)
        for block in blocks:
            ids = block.token_ids
            words[ids] = self._words.get(ids) or self._chat.variants.words(ids)
        self._words = words
        return [(block, words[block.token_ids]) for block in blocks]

    def _on_screen(self, active: SequenceId | None) -> InspectionRequest | None:
        """Return the path of the conversation on screen, for the engine to look for."""
        conversation = self._turns.conversation
        ids = path_token_ids(conversation.turns) if conversation is not None else None
        if conversation is None or not ids or active is not None:
            return None
        return InspectionRequest(
            token_ids=tuple(ids), namespace=namespace_of(conversation.session, conversation.turns)
        )
