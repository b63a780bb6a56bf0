"""Lines to choose from, and a line to write in."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.screens.interrupting_dialog import InterruptingDialog


class ChoiceScreen(InterruptingDialog[int | None]):
    """A list; the dismissal value is the number of the line that was chosen."""

    def __init__(self, title: str, lines: Sequence[str], *, highlighted: int = 0) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._highlighted = highlighted

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield OptionList(*map(Option, self._lines), markup=False, compact=True)
            yield Static("enter chooses · esc closes", classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.highlighted = self._highlighted if self._lines else None
        listed.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class LineScreen(Dialog[str | None]):
    """One line; the dismissal value is what was written."""

    def __init__(self, title: str, value: str, hint: str) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._hint = hint

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Input(self._value, compact=True)
            yield Static(self._hint, classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
