"""Something to read, and one key to close it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from kvchat.ui.screens.deferred import DeferredScreen


class NoteScreen(DeferredScreen[None]):
    """A title and a text, as they are."""

    ANSWERS: ClassVar[Mapping[str, Any]] = {"enter": None, "q": None}
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss", "Close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Static(self._text, markup=False)
            yield Static("esc closes", classes="dialog-keys", markup=False)
