"""Lines to choose from, and a line to write in."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.screens.interrupting_dialog import InterruptingDialog

_KEYS = "enter chooses · esc closes"


class ChoiceScreen(InterruptingDialog[int | None]):
    """A list; the dismissal value is the number of the line that was chosen.

    Args:
        notes: what is said of each line while it is highlighted.
    """

    def __init__(
        self, title: str, lines: Sequence[str], *, highlighted: int = 0, notes: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._notes = notes
        self._title = title
        self._lines = lines
        self._highlighted = highlighted

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield OptionList(*map(Option, self._lines), markup=False, compact=True)
            yield Static(_KEYS, classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.highlighted = self._highlighted if self._lines else None
        listed.focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self._notes:
            self.query_one(".dialog-keys", Static).update(
                Content(f"{self._notes[event.option_index]}\n{_KEYS}")
            )

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
