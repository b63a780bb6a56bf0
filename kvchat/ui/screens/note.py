"""Something to read, and one key to close it."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class NoteScreen(ModalScreen[None]):
    """A title and a text, as they are."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,ctrl+c", "dismiss", "Close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Static(self._text, markup=False)
            yield Static("esc closes", classes="dialog-keys", markup=False)
