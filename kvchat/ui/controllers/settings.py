"""Settings, models, and an engine that begins anew."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kvchat.app.interface_types import ModelEntry, SettingEntry
from kvchat.errors import KvchatError, ModelError, UsageError
from kvchat.text.figures import UNKNOWN, bytes_text
from kvchat.text.fit_text import one_line, padded
from kvchat.ui.controllers.conversations import ConversationController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.completion import Argument, setting_arguments
from kvchat.ui.theme import KVCHAT_THEME, unknown_theme

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_NAME_WIDTH = 30
_VALUE_WIDTH = 26
_WITH_ORIGIN = 76
"""Columns of the screen."""

_LEAST_NAME, _MOST_NAME, _BESIDE_NAME = 12, 36, 52
_ANOTHER = "another: a Hugging Face id, a directory or a GGUF file"
_REDRAW_S = 0.25

Result = TypeVar("Result")


class SettingsController:
    """Runs what a person changes about kvchat itself. Whatever reads a file runs in a thread."""

    def __init__(self, screen: ScreenServices, conversations: ConversationController) -> None:
        self._screen = screen
        self._conversations = conversations
        self._chat = screen.chat
        self._host = screen.host
        self._turns = screen.turns
        self._download: list[str] | None = None
        """The line that says how much of a model is here, while it is fetched."""
        self._entries: Sequence[SettingEntry] = ()
        self._previewed: str | None = None

    def arguments(self, typed: str) -> Iterable[Argument]:
        """Return what the argument of `/set` may become; nothing until the settings have been read."""
        if not self._entries:
            self._screen.begin(self._read_entries, group="settings")
        return setting_arguments(self._entries, typed)

    def themes(self, _typed: str) -> Iterable[Argument]:
        """Return the names of themes, that of the one that is set first."""
        current = self._host.appearance().theme or KVCHAT_THEME.name
        names = sorted(self._screen.app.available_themes, key=lambda name: (name != current, name))
        return (Argument(usage=name, summary="as set" if name == current else "") for name in names)

    def preview_theme(self, line: str, chosen: object) -> None:
        """Show the theme that is chosen in the completion of a line; where none is, the one that is set."""
        is_theme = line.startswith("/theme ")
        name = chosen.usage if is_theme and isinstance(chosen, Argument) else None
        if name != self._previewed:
            self._previewed = name
            self._screen.show_theme(name or self._host.appearance().theme)

    def set_theme(self, name: str) -> None:
        self._previewed = None  # it stays
        self._screen.begin(partial(self.change, "display.theme", name))

    def reload(self) -> None:
        if self._turns.is_any_running:
            self._screen.warn("an answer is being written: esc stops it, then load again")
        else:
            self._screen.begin(partial(self.begin_anew, self._host.reload))

    def stop_download(self) -> bool:
        """Stop the download of a model, and return whether there was one."""
        is_any, self._download = self._download is not None, None
        return is_any

    async def use_model(self, model: str) -> None:
        """Load another model in the place of the engine's, once it is here; the chat goes on until then."""
        self.stop_download()
        try:
            await self._fetch(model)
            await asyncio.to_thread(self._host.check_model, model)
        except ModelError as error:
            words = str(error).replace("-m starter", "/model starter")
            self._screen.warn(f"{words}\nThe running model goes on; its cache stays as it is.")
            return
        if self._turns.is_any_running:
            self._screen.warn(f"an answer is being written: esc stops it, then /model {model} loads")
        else:
            await self.begin_anew(partial(self._host.reload, model))

    async def _fetch(self, model: str) -> None:
        """Wait until a model is here, with a line that says how much of it is.

        Raises:
            ModelError: there is none. UsageError: the person has stopped it.
        """
        name = one_line(model)
        line = self._download = [f"preparing {name}"]

        def note(num_bytes: int, total_bytes: int) -> None:
            if self._download is not line:
                raise UsageError(f"download stopped; /model {model} resumes it")
            sizes = f"{bytes_text(num_bytes)} of {bytes_text(total_bytes)}"
            line[:] = [f"downloading {name} · {sizes} · /model stop"]

        drawing = asyncio.create_task(self._draw_download(line))
        try:
            await asyncio.to_thread(self._host.fetch, model, note)
        finally:
            drawing.cancel()
            if self._download is line:
                self._download = None
            self._screen.draw_lines("download", ())

    async def _draw_download(self, line: Sequence[str]) -> None:
        while True:
            await asyncio.sleep(_REDRAW_S)
            self._screen.draw_lines("download", line)

    async def show_settings(self) -> None:
        """Show all settings; what is chosen is changed and written into the person's file."""
        from kvchat.ui.screens.choices import ChoiceScreen

        at, title = 0, "settings"
        while True:
            await self._read_entries()
            entries = self._entries
            lines = [setting_line(entry, self._screen.app.size.width) for entry in entries]
            notes = [entry.summary for entry in entries]
            listed = partial(ChoiceScreen, title, lines, highlighted=at, notes=notes)
            chosen = await self._screen.dialogs.ask_deferred("Settings are ready", listed)
            if chosen is None:
                return
            at = chosen
            told = await self.ask_for(entries[at].name)
            title = f"settings · {told}" if told else "settings"

    async def _read_entries(self) -> None:
        entries = await asyncio.to_thread(self._host.settings)
        self._entries = [replace(entry, choices=entry.choices or self._choices(entry)) for entry in entries]
        self._screen.prompt.complete()

    def _choices(self, entry: SettingEntry) -> tuple[str, ...]:
        if entry.name == "display.theme":
            return tuple(sorted(self._screen.app.available_themes))
        return ("true", "false") if entry.value in ("True", "False") else ()

    async def ask_for(self, name: str) -> str:
        """Ask for a setting's value, and return what was told of the change; empty: nothing changed."""
        await self._read_entries()
        entry = next((one for one in self._entries if one.name == name), None)
        if entry is None:
            return await self.change(name, "")  # says that there is none
        hint = f"{entry.summary}\nenter writes it into your file · empty resets it · esc closes"
        value = await self._screen.dialogs.ask_line(name, entry.value, hint)
        return "" if value in (None, entry.value) else await self.change(name, value)

    async def change(self, name: str, value: str) -> str:
        try:
            if name == "display.theme" and value and value not in self._screen.app.available_themes:
                raise UsageError(unknown_theme(value))
            words = await asyncio.to_thread(self._host.change_setting, name, value)
        except KvchatError as error:
            words = str(error)
            self._screen.warn(words)
        else:
            self._entries = ()
            self._screen.tell(words, title="settings")
        self._take_up(name)
        return words

    def _take_up(self, name: str) -> None:
        """Let a setting count in this window that can."""
        if name == "display.theme":
            self._screen.show_theme(theme := self._host.appearance().theme)
            if self._screen.app.theme not in (theme, KVCHAT_THEME.name):
                self._screen.tell(f"a terminal of 16 colours shows its own: {self._screen.app.theme}")
        elif name == "system":
            self._turns.system = self._host.appearance().system
        elif name.startswith("sampling."):
            self._chat.use_sampling(self._host.sampling())

    async def show_models(self) -> None:
        """Show the models that are here; the one that is chosen answers from now on."""
        from kvchat.ui.screens.choices import ChoiceScreen

        entries = await asyncio.to_thread(self._host.models)
        lines = [*model_lines(entries, self._screen.app.size.width), f"  {_ANOTHER} …"]
        listed = partial(ChoiceScreen, "models · size, context, memory with 8k tokens", lines)
        chosen = await self._screen.dialogs.ask_deferred("Models are ready", listed)
        if chosen is None:
            return
        if chosen == len(entries):
            hint = "enter loads, after a download if needed · esc closes"
            model = await self._screen.dialogs.ask_line(_ANOTHER, "", hint)
        else:
            model = None if entries[chosen].is_current else entries[chosen].name
        if model:
            await self.use_model(model)

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


def model_lines(entries: Sequence[ModelEntry], screen_width: int) -> list[str]:
    """Return a line for each model; the end of a long path says more than its beginning."""
    most = max(_LEAST_NAME, min(_MOST_NAME, screen_width - _BESIDE_NAME))
    names = [one_line(one.name) for one in entries]
    names = [name if len(name) <= most else f"…{name[1 - most :]}" for name in names]
    width = max(map(len, names), default=0)
    marked = zip(entries, names, strict=True)
    return [f"{'●' if one.is_current else ' '} {name:<{width}}  {one.summary}" for one, name in marked]


def setting_line(entry: SettingEntry, screen_width: int) -> str:
    """Return a setting with its value, the one that counts now where that is another, and its origin where
    there is room.
    """
    value = one_line(entry.value) or UNKNOWN
    if entry.in_force is not None:
        value += f" (now {one_line(entry.in_force) or UNKNOWN})"
    if screen_width < _WITH_ORIGIN:
        return f"{padded(entry.name, screen_width // 2)} {value}"
    return f"{entry.name:<{_NAME_WIDTH}} {value:<{_VALUE_WIDTH}} {entry.origin}"
