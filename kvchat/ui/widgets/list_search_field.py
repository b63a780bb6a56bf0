"""Search field above a list that follows it."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.reactive import Reactive
from textual.widgets import Input, OptionList


class FindField(Input):
    """One line of words. Up, down and enter belong to the screen's list, escape ends the search."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("enter", "submit", "Open"),
        Binding("escape", "screen.leave_sessions", "Back"),
    ]

    virtual_size = Reactive(Size(0, 0))
    """Of what is written. Without a layout: nothing around the field moves."""

    def __init__(self, placeholder: str, *, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True, select_on_focus=False)

    def action_move(self, step: int) -> None:
        listed = self.screen.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()
