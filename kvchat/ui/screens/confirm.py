"""A question with two answers."""

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from kvchat.ui.screens.late import LateScreen


class ConfirmScreen(LateScreen[bool]):
    """Asks before something is lost; the dismissal value says whether to go on."""

    ANSWERS: ClassVar[Mapping[str, Any]] = {"y": True, "enter": True, "n": False}
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss(False)", "No")]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="dialog-title", markup=False)
            yield Static(self._consequence, markup=False)
            yield Static("enter yes · esc no", classes="dialog-keys", markup=False)
