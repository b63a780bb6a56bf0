"""Earlier messages, found by words."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kvchat.ui.plain_text import fitted, one_line
from kvchat.ui.widgets.find_field import FindField

_MOST = 100
_LINE_LEN = 200


class HistoryScreen(ModalScreen[str | None]):
    """The newest first; the dismissal value is the message that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "dismiss(None)", "Close")]

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__()
        self._messages = tuple(reversed(messages))
        self._found: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static("earlier messages", classes="dialog-title", markup=False)
            yield FindField("words")
            yield OptionList(markup=False, compact=True)
            yield Static("enter puts it into the prompt · esc closes", classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self._show("")
        self.query_one(FindField).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def on_find_field_moved(self, event: FindField.Moved) -> None:
        listed = self.query_one(OptionList)
        if event.step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def on_find_field_left(self) -> None:
        self.dismiss(None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index])

    def _show(self, words: str) -> None:
        wanted = words.casefold().split()
        found = [one for one in self._messages if all(word in one.casefold() for word in wanted)]
        self._found = tuple(found[:_MOST])
        listed = self.query_one(OptionList)
        listed.set_options(Option(fitted(one_line(one), _LINE_LEN)) for one in self._found)
        listed.highlighted = 0 if self._found else None
