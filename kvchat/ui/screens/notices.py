"""Notices of this run: shown for some seconds, or until they are dismissed, and kept to be read again."""

from collections.abc import Awaitable, Callable
from time import localtime, strftime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widgets import Static

from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.fit_text import one_line
from kvchat.ui.controllers.dialogs import Dialogs
from kvchat.ui.key_names import name_for
from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.widgets.composer import Composer

_MOST = 500
_SHORT = {"information": "info"}


class Notices:
    """Shows notices on a screen, and keeps the newest."""

    def __init__(self, screen: Screen[None], dialogs: Dialogs) -> None:
        self._screen = screen
        self._dialogs = dialogs
        self._lines: list[str] = []
        self._standing: dict[str, str] = {}
        self._is_unsaved = False

    def toast(self, severity: SeverityLevel, message: str, title: str, timeout: float) -> None:
        self._note(severity, f"{title}: {message}" if title else message)
        self._screen.notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def stand(self, about: str, words: str) -> None:
        """Show a line until it is dismissed; it takes the place of another about the same."""
        self._note("warning", words)
        self._standing[about] = one_line(words)
        self._draw()

    def dismiss(self, about: str | None = None) -> None:
        """Take a line away; None: all of them."""
        for one in [*self._standing] if about is None else [about]:
            if self._standing.pop(one, None):
                self._draw()

    def look(self, snapshot: CacheSnapshot | None) -> None:
        """Say once why KV is not saved, in full, and once that it is again; None: nothing is known now."""
        if snapshot is not None and self._is_unsaved != (snapshot.problem is not None):
            self._is_unsaved = snapshot.problem is not None
            told = f"KV is not saved: {snapshot.problem}" if self._is_unsaved else "KV is saved again"
            self.toast("warning" if self._is_unsaved else "information", told, "", 8)

    async def show(self, copy: Callable[[str], Awaitable[object]]) -> None:
        """Show all, which may be copied; what stands on the screen has been read then. Inside work."""
        self.dismiss()
        self._screen.app.clear_notifications()
        text = self.text()
        if await self._dialogs.ask(NoticesScreen(text)):
            await copy(text)

    def text(self) -> str:
        return "\n".join(self._lines) or "no notices yet"

    def _note(self, severity: str, words: str) -> None:
        line = f"{strftime('%H:%M:%S', localtime())} {_SHORT.get(severity, severity):<7} {words}"
        self._lines = [*self._lines, line][-_MOST:]

    def _draw(self) -> None:
        for composer in self._screen.query(Composer):  # none while the window is being closed
            key = name_for(composer, "notices")
            lines = [f"! {words} · {key} dismisses" for words in self._standing.values()]
            composer.draw_lines("notices", lines)


class NoticesScreen(Dialog[bool | None]):
    """Shows the log from its end; the dismissal value says whether to copy it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,enter,f10", "dismiss", "Close"),
        Binding("c", "dismiss(True)", "Copy"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Static("Notices of this run", classes="dialog-title", markup=False)
            yield Static(Content(self._text), markup=False)
            yield Static("↑↓ scroll · c copies all · esc closes", classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        body = self.query_one(VerticalScroll)
        body.focus()
        body.scroll_end(animate=False)
