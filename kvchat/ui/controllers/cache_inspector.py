"""Reads blocks of the cache: for the inspector, and for the conversation on screen."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.inspection import InspectedBlock
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.ui.controllers.clipboard import named_file, write_text
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.cached_prefix import OnScreen, on_screen, path_request
from kvchat.ui.state.conversation_tab import State, state_of
from kvchat.ui.widgets.cache.inspector_rows import RowSource, sources
from kvchat.ui.widgets.cache.panel_rows import BranchNames

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation


class InspectorController:
    """Reads blocks for the inspector; the engine answers between two steps.

    Args:
        names: says what live branches are called.
    """

    def __init__(self, screen: ScreenServices, names: Callable[[], BranchNames]) -> None:
        self._screen = screen
        self._engine = screen.engine
        self._names = names
        self._words: dict[tuple[int, ...], str] = {}
        self._found: tuple[State, OnScreen] | None = None
        self._looked_at: object = None
        self._is_looking = False

    def on_screen(self) -> OnScreen | None:
        """Return what the device has of the conversation on screen while no live branch holds it.

        The engine is asked beside this, and only where the conversation or the cache has changed.
        """
        conversation, snapshot = self._screen.turns.conversation, self._screen.snapshot
        if conversation is None or snapshot is None or not conversation.turns:
            return None
        if conversation.engine_sequence in {branch.sequence for branch in snapshot.sequences}:
            return None
        state = state_of(conversation)
        looked_at = state, snapshot.groups, snapshot.fingerprint
        if looked_at != self._looked_at and not self._is_looking:
            self._looked_at, self._is_looking = looked_at, True
            self._screen.begin(partial(self._look_for, conversation, snapshot))
        return self._found[1] if self._found is not None and self._found[0] == state else None

    async def _look_for(self, conversation: "Conversation", snapshot: CacheSnapshot) -> None:
        state, request = state_of(conversation), path_request(conversation)
        try:
            blocks = await asyncio.to_thread(self._engine.inspect, request)
            self._found = state, on_screen(request, conversation.session.id, blocks, snapshot)
        except KvchatError:
            self._found = None
        finally:
            self._is_looking = False

    # For the inspector

    @property
    def snapshot(self) -> CacheSnapshot | None:
        """The cache as it was last looked at."""
        return self._screen.snapshot

    @property
    def titles(self) -> Mapping[str, str]:
        """What sessions are called, by id."""
        return self._names().of_sessions

    def sources(self) -> Sequence[RowSource]:
        """Return whose blocks can be shown, that of the conversation on screen first; none while it loads."""
        snapshot = self._screen.snapshot
        if snapshot is None:
            return ()
        found = sources(snapshot, self._names(), self.on_screen())
        return sorted(found, key=lambda source: source.mark != "●")

    def events(self, since: int) -> Sequence[CacheEvent]:
        """Return the cache's events from this number on. Waits for the engine."""
        return self._engine.cache_events(since)

    def blocks(self, source: RowSource) -> Sequence[tuple[InspectedBlock, str]]:
        """Return the blocks of a source, each with its words. Waits for the engine."""
        words: dict[tuple[int, ...], str] = {}
        blocks = self._engine.inspect(replace(source.request, with_states=True))
        for block in blocks:
            ids = block.token_ids
            words[ids] = self._words.get(ids) or self._screen.chat.variants.words(ids)
        self._words = words
        return [(block, words[block.token_ids]) for block in blocks]

    def write(self, what: str, values: Sequence[Any]) -> None:
        """Write values as JSON Lines to a file with a word in its name, and tell it."""
        self._screen.begin(partial(self._write, what, values))

    async def _write(self, what: str, values: Sequence[Any]) -> None:
        if not values:
            self._screen.warn(f"there are no {what} to write")
            return
        lines = "".join(f"{json.dumps(asdict(value))}\n" for value in values)
        file = named_file(f"kvchat-{what}", ".jsonl")
        self._screen.tell(await asyncio.to_thread(write_text, file, lines), title=what)
