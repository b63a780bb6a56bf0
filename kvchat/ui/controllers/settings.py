"""Settings, models, and an engine that begins anew."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kvchat.app.interface_types import SettingEntry
from kvchat.errors import KvchatError
from kvchat.text.figures import UNKNOWN
from kvchat.text.fit_text import one_line
from kvchat.ui.controllers.conversations import ConversationController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.turn_runner import TurnRunner

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_NAME_WIDTH = 30
_VALUE_WIDTH = 26

Result = TypeVar("Result")


class SettingsController:
    """Runs what a person changes about kvchat itself. Whatever reads a file runs in a thread."""

    def __init__(
        self,
        screen: ScreenServices,
        chat: "Chat",
        host: "InterfaceHost",
        turns: TurnRunner,
        conversations: ConversationController,
    ) -> None:
        self._screen = screen
        self._conversations = conversations
        self._chat = chat
        self._host = host
        self._turns = turns

    def settings(self) -> None:
        """Show all settings; what is chosen is changed and written into the person's file."""
        self._screen.begin(self._settings)

    def change(self, name: str, value: str) -> None:
        self._screen.begin(partial(self._change, name, value))

    def models(self) -> None:
        """Show the models that are here; the one that is chosen answers from now on."""
        self._screen.begin(self._models)

    def reload(self, model: str | None = None) -> None:
        """Begin to load the engine again, or another model in its place."""
        if self._turns.is_any_running:
            self._screen.warn("an answer is being written: esc stops it, then load again")
        else:
            self._screen.begin(partial(self.begin_anew, partial(self._host.reload, model)))

    async def _settings(self) -> None:
        from kvchat.ui.screens.choices import ChoiceScreen

        at = 0
        while True:
            entries = await asyncio.to_thread(self._host.settings)
            lines = [setting_line(entry) for entry in entries]
            listed = partial(ChoiceScreen, "settings", lines, highlighted=at)
            chosen = await self._screen.dialogs.ask_deferred("Settings are ready", listed)
            if chosen is None:
                return
            at = chosen
            await self._ask_for(entries[at])

    async def _ask_for(self, entry: SettingEntry) -> None:
        from kvchat.ui.screens.choices import LineScreen

        hint = "enter writes it into your file · empty takes it out · esc closes"
        value = await self._screen.dialogs.ask(LineScreen(entry.name, entry.value, hint))
        if value is not None and value != entry.value:
            await self._change(entry.name, value)

    async def _change(self, name: str, value: str) -> None:
        try:
            words = await asyncio.to_thread(self._host.change_setting, name, value)
        except KvchatError as error:
            self._screen.warn(str(error))
            return
        self._screen.tell(words, title="settings")
        self._take_up(name)

    def _take_up(self, name: str) -> None:
        """Let a setting count in this window that can."""
        if name == "display.theme":
            self._screen.show_theme(self._host.appearance().theme)
        elif name == "system":
            self._turns.system = self._host.appearance().system
        elif name.startswith("sampling."):
            self._chat.use_sampling(self._host.sampling())

    async def _models(self) -> None:
        from kvchat.ui.screens.choices import ChoiceScreen

        entries = await asyncio.to_thread(self._host.models)
        width = max((len(entry.name) for entry in entries), default=0)
        lines = [
            f"{'●' if entry.is_current else ' '} {entry.name:<{width}}  {entry.summary}" for entry in entries
        ]
        listed = partial(ChoiceScreen, "models · /model NAME loads any other", lines)
        chosen = await self._screen.dialogs.ask_deferred("Models are ready", listed)
        if chosen is not None and not entries[chosen].is_current:
            self.reload(entries[chosen].name)

    async def begin_anew(self, change: Callable[[], Result]) -> Result | None:
        """Let go of the engine, change what it works with in a thread, and come back to the conversation.

        Returns:
            What the change returns; None where it was refused, which has been told then.
        """
        conversation, result = self._turns.conversation, None
        await self._conversations.let_go_of_engine()
        try:
            if conversation is not None:
                await asyncio.to_thread(self._chat.close, conversation)
            result = await asyncio.to_thread(change)
        except KvchatError as error:
            self._screen.warn(str(error))
        await self._conversations.let_go_of_engine()  # of what has been left meanwhile
        shown = self._turns.conversation
        if shown is not None:
            await self._open_anew(shown)
        if conversation not in (None, shown) and self._turns.is_answering(conversation.session.id):
            await self._open_anew(conversation)
        return result

    async def _open_anew(self, before: "Conversation") -> None:
        """Open a conversation once more: the object before it belongs to the engine that is gone.

        The person may have gone to another one meanwhile, and stays there.
        """
        try:
            fresh = await asyncio.to_thread(self._chat.open, before.session.id, before.branch.name)
        except KvchatError as error:
            self._screen.warn(str(error))
            if self._turns.conversation is before:
                await self._turns.show(None)
            return
        self._turns.replace(fresh)
        if self._turns.conversation is fresh:
            await self._turns.show(fresh)


def setting_line(entry: SettingEntry) -> str:
    """Return a setting with its value, the one that counts now where that is another, and its origin."""
    value = one_line(entry.value) or UNKNOWN
    if entry.in_force is not None:
        value += f" (now {one_line(entry.in_force) or UNKNOWN})"
    return f"{entry.name:<{_NAME_WIDTH}} {value:<{_VALUE_WIDTH}} {entry.origin}"
