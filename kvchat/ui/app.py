"""The terminal application: its window, its keys, its life."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, work
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.screen import Screen
from textual.types import IgnoreReturnCallbackType
from textual.widgets import Input

from kvchat.errors import KvchatError
from kvchat.session.tree import SessionId
from kvchat.text.figures import plural
from kvchat.ui.commands import COMMANDS
from kvchat.ui.controllers.turn_runner import TurnRunner
from kvchat.ui.key_names import APP_KEYS
from kvchat.ui.screens.chat import ChatScreen
from kvchat.ui.screens.dialog import InterruptingDialog
from kvchat.ui.terminal.driver import TerminalDriver, early_events
from kvchat.ui.terminal.stray_output import guarded_terminal, hang_up_told, key_by_key
from kvchat.ui.theme import KVCHAT_THEME, ThemedApp, unknown_theme
from kvchat.ui.widgets.prompt_input import Prompt
from kvchat.ui.widgets.session_list import SessionList

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.chat.engine_client import EngineClient
    from kvchat.chat.service import Chat

log = logging.getLogger(__name__)

_LATER = (
    "kvchat.ui.widgets.answer_markdown",
    "kvchat.ui.screens.choices",
    "kvchat.ui.screens.help",
    "kvchat.ui.screens.inspector",
    "kvchat.ui.screens.compare",
    "kvchat.ui.screens.tokens",
)
"""Not needed to draw the window, and imported right behind it, so that no answer and no key waits for it."""

_LATER_STYLES = Path(__file__).with_name("dialogs.tcss")
"""Of what is opened above the window."""

_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
_HUNG_UP = 129


class Palette(Provider):
    """Palette of kvchat's commands, most used first, and of the sessions by title: choosing one opens it."""

    async def discover(self) -> Hits:
        for name, summary, run in self._entries():
            yield DiscoveryHit(Content(name), run, name, summary)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, summary, run in self._entries():
            score = max(matcher.match(name), matcher.match(summary) / 2)
            if score:
                yield Hit(score, Content(name), run, name, summary)

    def _entries(self) -> Iterator[tuple[str, str, IgnoreReturnCallbackType]]:
        """Return names and summaries, in which nothing is markup, and what choosing each does."""
        window = self.screen
        assert isinstance(window, ChatScreen)
        for command in COMMANDS:
            yield command.usage, command.help, partial(window.run_command, command)
        stored = window.sessions.sessions
        for session, branches in stored.entries:
            several = f" · {plural(len(branches), 'branch', 'branches')}" if branches else ""
            opened = SessionList.Opened(session.id, None)
            yield (
                stored.titles[session.id],
                f"open this session{several}",
                partial(window.post_message, opened),
            )


class PaletteScreen(CommandPalette):
    """Textual's, which goes once: keys that come faster than it goes dismiss it again."""

    def dismiss(self, result: None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()


class KvchatApp(ThemedApp):
    """A window on one chat service and the engine behind it, neither of which it owns.

    Args:
        chat: the service that runs turns.
        engine: what the status line and the cache panel read.
        host: what may be done with the machine: files, settings, models.
        initial: the session to open; None begins a new conversation.
        log_path: where writes go that would spoil the screen.
        on_first_frame: called once when the window has been drawn, in a thread; a KvchatError that it raises
            ends the window.

    Attributes:
        chat_screen: the window's one screen.
    """

    TITLE = "kvchat"
    COMMANDS: ClassVar = {Palette}
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-high")]
    BINDINGS: ClassVar[list[BindingType]] = [
        *APP_KEYS,
        Binding("ctrl+c", "interrupt", "Stop", show=False, system=True),
    ]

    def __init__(
        self,
        chat: "Chat",
        engine: "EngineClient",
        host: "InterfaceHost",
        initial: str | None = None,
        *,
        log_path: Path,
        on_first_frame: Callable[[], object] = lambda: None,
    ) -> None:
        has_no_colours = "NO_COLOR" in os.environ
        super().__init__(driver_class=TerminalDriver, ansi_color=has_no_colours or None)
        self._has_few_colours = has_no_colours
        self._appearance = host.appearance()
        known = self._appearance.theme in self.available_themes
        self.theme = self._appearance.theme if known else KVCHAT_THEME.name
        self.chat_screen = ChatScreen(chat, engine, host, initial)
        self._log_path = log_path
        self._on_first_frame = on_first_frame
        self._early_input: list[events.Key | events.Paste] = []
        self._is_ready = False
        self._has_failed = False
        self._refusal: KvchatError | None = None

    def run_in_terminal(self) -> int:
        """Run until the person leaves and return the exit status; stray writes go to the log.

        Raises:
            KvchatError: what `on_first_frame` raised.
        """
        self._has_few_colours |= self.console.color_system not in ("256", "truecolor")
        failed = partial(self.call_later, self.thread_failed)
        with hang_up_told(), guarded_terminal(self._log_path, failed), key_by_key() as typed:
            self._early_input += early_events(typed)
            self.run()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is leaving already
        if self._has_failed:  # told now: until here the terminal was the window's
            print(f"kvchat: the interface failed; {self._log_path} says where", file=sys.stderr)
        if self._refusal is not None:
            raise self._refusal
        return self.return_code or 0

    @property
    def session_left(self) -> SessionId | None:
        """The session on screen, unless it is temporary; also when the window has been closed."""
        turns: TurnRunner | None = getattr(self.chat_screen, "turns", None)
        if turns is None or turns.conversation is None:
            return None
        session_id = turns.conversation.session.id
        return None if session_id in turns.temporary else session_id

    def thread_failed(self, error: Exception) -> None:
        """Leave because a thread that reads or draws has ended."""
        self._handle_exception(error)

    def _fatal_error(self) -> None:
        """Log where a bug is. Textual would print the values of variables too, which are what was said."""
        log.error("the interface failed", exc_info=self._exception or True)
        self._has_failed = True
        try:
            self.chat_screen.drafts.keep_all()
        except Exception:
            log.exception("what was not sent is not kept")
        try:
            self.chat_screen.conversations.temporary.delete_all()
        except Exception:
            log.exception("temporary conversations are not deleted")
        self.bell()
        self._close_messages_no_wait()

    def action_redraw(self) -> None:
        """Paint the whole window again: something has painted over it, or it was put to sleep."""
        for screen in self.screen_stack:
            screen.refresh(layout=True)

    def action_save_screen(self) -> None:
        """Write what the window shows to a file, dialogs too."""
        self.chat_screen.commands.screen()

    def get_default_screen(self) -> Screen[None]:
        return self.chat_screen

    def on_mount(self) -> None:
        self.set_keymap(self._appearance.keys)
        self.show_theme(self._appearance.theme)
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        loop = asyncio.get_running_loop()
        for number, status in _SIGNALS.items():
            loop.add_signal_handler(number, partial(self.chat_screen.quit, status))
        signal.signal(signal.SIGHUP, partial(self._hang_up, loop))

    def on_resize(self) -> None:
        """Paint everything: a terminal that was smaller for less than a frame has cut off what it showed."""
        for screen in self.screen_stack:
            screen.refresh()

    def _hang_up(self, loop: asyncio.AbstractEventLoop, *_: object) -> None:
        """Leave. A process whose terminal goes away is told by the system and by its shell: the second time
        must not end what is leaving, nor keep it from leaving however often it is told.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.chat_screen.quit, _HUNG_UP)

    async def on_event(self, event: events.Event) -> None:
        """Send what is typed to the prompt wherever the focus is; keep what comes before there is one."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            if not self._is_ready:
                self._early_input.append(event)
                return
            self.chat_screen.dialogs.typed_s = event.time
            dialog = self.screen if isinstance(self.screen, InterruptingDialog) else None
            if dialog is not None and (typed := dialog.text_of(event)) is not None:
                for one in typed:  # not meant for the dialog above the prompt
                    one._set_forwarded()
                    self.chat_screen.prompt.post_message(one)
                return
            is_text = isinstance(event, events.Paste) or event.is_printable
            if is_text and self.screen is self.chat_screen and not isinstance(self.focused, Prompt | Input):
                self.set_focus(self.chat_screen.prompt)
        await super().on_event(event)

    def on_ready(self) -> None:
        self.stylesheet.add_source(_LATER_STYLES.read_text(encoding="utf-8"), (str(_LATER_STYLES), ""))
        self._is_ready = True
        early, self._early_input = self._early_input, []
        for event in early:
            self.post_message(event)
        self.call_after_refresh(self._begin)

    @work
    async def _begin(self) -> None:
        """Do what only waits for the window to be drawn, in a thread: what is typed meanwhile is shown."""
        try:
            await asyncio.to_thread(self._on_first_frame)
        except KvchatError as error:
            self._refusal = error
            self.chat_screen.quit(error.exit_code)
        for name in _LATER:
            await asyncio.to_thread(import_module, name)

    def show_theme(self, name: str) -> None:
        """Take other colours; `ansi-dark` and `ansi-light` are the terminal's own, an empty name ours. A
        terminal of 16 colours shows only its own: the nearest to those of a theme are often one and the same.
        """
        theme = self.available_themes.get(name or KVCHAT_THEME.name)
        if theme is not None and self._has_few_colours and not theme.ansi:
            self.theme = "ansi-dark" if theme.dark else "ansi-light"
        elif theme is not None:
            self.theme = theme.name
        else:
            self.chat_screen.warn(unknown_theme(name))

    def refresh_css(self, animate: bool = True) -> None:
        """Apply the theme. Before there is a window that would read its styles twice, and change nothing."""
        if self.screen_stack:
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

    def action_command_palette(self) -> None:
        """Offer commands and sessions; a dialog has to go first."""
        if self.screen is self.chat_screen:
            self.push_screen(PaletteScreen(id="--command-palette"))

    def action_leave(self) -> None:
        self.chat_screen.quit()

    def action_interrupt(self) -> None:
        if self.screen is self.chat_screen:
            self.chat_screen.interrupt()
