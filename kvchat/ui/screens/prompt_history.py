"""Earlier messages, found by words."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kvchat.text.fit_text import fitted, one_line
from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.widgets.list_search_field import FindField

_MOST = 100
_LINE_LEN = 200


class _Found(Option):
    """A message in the list. Another may be at its place by the time that it is known to be chosen."""

    def __init__(self, message: str) -> None:
        super().__init__(fitted(one_line(message), _LINE_LEN))
        self.message = message


class PromptHistoryScreen(Dialog[str | None]):
    """The newest first; the dismissal value is the message that was chosen."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__()
        self._messages = tuple(reversed(messages))

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

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if isinstance(event.option, _Found):
            self.dismiss(event.option.message)

    def _show(self, words: str) -> None:
        wanted = words.casefold().split()
        found = [one for one in self._messages if all(word in one.casefold() for word in wanted)]
        listed = self.query_one(OptionList)
        listed.set_options(map(_Found, found[:_MOST]))
        listed.highlighted = 0 if found else None
