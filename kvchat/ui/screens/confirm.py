"""A question with two answers."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from kvchat.ui.screens.interrupting_dialog import InterruptingDialog, Typed


class NoteScreen(InterruptingDialog[None]):
    """A title and a text, as they are."""

    answer_keys = {"enter": None, "q": None}

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Static(self._text, markup=False)
            yield Static("esc closes", classes="dialog-keys", markup=False)


class ConfirmScreen(InterruptingDialog[bool]):
    """Asks before something is lost; the dismissal value says whether to go on.

    Args:
        is_offer: nobody has asked for it; enter alone may be meant for the prompt, and agrees to nothing.
        default: what enter answers.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss(False)", "No")]

    def __init__(
        self, question: str, consequence: str, *, is_offer: bool = False, default: bool = True
    ) -> None:
        super().__init__()
        self.answer_keys = {"y": True, "enter": default, "n": False}
        self._question = question
        self._consequence = consequence
        self._is_offer = is_offer

    def text_of(self, event: Typed) -> Sequence[Typed] | None:
        is_enter = isinstance(event, events.Key) and event.key == "enter" and event.time > self._opened_s
        if is_enter and self._is_offer and self._held is None:
            return ()
        return super().text_of(event)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._question, classes="dialog-title", markup=False)
            yield Static(self._consequence, markup=False)
            keys = "enter yes · esc no" if self.answer_keys["enter"] else "y yes · enter or esc no"
            keys = "y yes · esc no" if self._is_offer else keys
            yield Static(keys, classes="dialog-keys", markup=False)
