"""Notices of this run: all that were shown, and those that stay on the screen until they are read."""

from collections.abc import Callable, Sequence
from time import localtime, strftime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from kvchat.text.fit_text import one_line
from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.widgets.long_text import LongText

_MOST = 500
_SHORT = {"information": "info"}


class NoticeLog:
    """Keeps the newest notices.

    Args:
        draw: shows the lines of those that stay, oldest first.
    """

    def __init__(self, draw: Callable[[Sequence[str]], None]) -> None:
        self._draw = draw
        self._lines: list[str] = []
        self._standing: dict[str, str] = {}

    def add(self, severity: str, title: str, message: str) -> None:
        words = f"{title}: {message}" if title else message
        line = f"{strftime('%H:%M:%S', localtime())} {_SHORT.get(severity, severity):<7} {words}"
        self._lines = [*self._lines, line][-_MOST:]

    def stand(self, about: str, words: str) -> None:
        """Note it, and show it until it is dismissed; it takes the place of another about the same."""
        self.add("warning", "", words)
        self._standing[about] = one_line(words)
        self._draw([*self._standing.values()])

    def dismiss(self, about: str | None = None) -> None:
        """Take a line away; None: all of them."""
        for one in [*self._standing] if about is None else [about]:
            if self._standing.pop(one, None):
                self._draw([*self._standing.values()])

    def text(self) -> str:
        """Return a line for each notice, the newest last."""
        return "\n".join(self._lines) or "no notices yet"


class NoticesScreen(Dialog[str | None]):
    """Shows the log from its end; the dismissal value is a text to copy."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,enter,f10", "dismiss", "Close"),
        Binding("c", "copy", "Copy"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Static("Notices of this run", classes="dialog-title", markup=False)
            yield LongText(self._text)
            yield Static("↑↓ scroll · c copies all · esc closes", classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        body = self.query_one(VerticalScroll)
        body.focus()
        body.scroll_end(animate=False)

    def action_copy(self) -> None:
        self.dismiss(self._text)
