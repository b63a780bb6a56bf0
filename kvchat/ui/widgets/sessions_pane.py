"""The left pane: a field to find sessions and messages by words, and the list."""

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from kvchat.ui.widgets.list_search_field import FindField
from kvchat.ui.widgets.session_list import SessionList


class SessionsPane(Vertical):
    """Lists what matches the words in its field."""

    DEFAULT_CLASSES: ClassVar[str] = "pane"

    @dataclass
    class Searched(Message):
        """The words to look for have changed; none: everything is shown."""

        words: str

    class Closed(Message):
        """The person is done with the pane."""

    def __init__(self, find_key: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._find_key = find_key

    def compose(self) -> ComposeResult:
        yield Static("sessions", classes="pane-title", markup=False)
        yield FindField(f"find · {self._find_key}", id="find")
        yield SessionList(id="sessions")

    @property
    def words(self) -> str:
        return self.query_one(FindField).value.strip()

    def find(self, words: str = "") -> None:
        """Let the person look for words."""
        field = self.query_one(FindField)
        field.value = words or field.value
        field.cursor_position = len(field.value)
        field.focus()

    def clear(self) -> None:
        self.query_one(FindField).value = ""

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Searched(event.value.strip()))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        listed = self.query_one(SessionList)
        if listed.highlighted is None and listed.lines:
            listed.highlighted = 0
        listed.action_select()

    def on_find_field_moved(self, event: FindField.Moved) -> None:
        event.stop()
        event.move_in(self.query_one(SessionList))

    def on_find_field_left(self, event: FindField.Left) -> None:
        event.stop()
        self.post_message(self.Closed())
