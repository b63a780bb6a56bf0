"""Action menu: what can be done with one thing, a line and a key for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.style import Style
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kvchat.ui.screens.interrupting_dialog import InterruptingDialog


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One line: pressing `key` chooses it. `note` says what it costs."""

    key: str
    label: str
    note: str = ""


class ActionsScreen(InterruptingDialog[str | None]):
    """A short menu; the dismissal value is the chosen key."""

    def __init__(self, title: str, actions: Sequence[Action]) -> None:
        super().__init__()
        self._title = title
        self._actions = actions
        self.answer_keys = {action.key: action.key for action in actions}

    def compose(self) -> ComposeResult:
        width = max(cell_len(action.label) for action in self._actions)
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield OptionList(
                *(Option(_line(action, width), id=action.key) for action in self._actions),
                markup=False,
                compact=True,
            )
            yield Static("enter or the letter · esc closes", classes="dialog-keys", markup=False)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.highlighted = 0
        listed.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


def _line(action: Action, width: int) -> Content:
    key = Content.styled(f" {action.key}  ", Style(bold=True))
    note = Content.styled(f"   {action.note}" if action.note else "", "$note")
    return key + Content(action.label + " " * (width - cell_len(action.label))) + note
