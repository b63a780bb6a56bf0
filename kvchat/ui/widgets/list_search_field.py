"""Search field above a list that follows it."""

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.widgets import Input, OptionList


class FindField(Input):
    """One line of words. Up, down and enter belong to the list, escape ends the search."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("enter", "submit", "Open"),
        Binding("escape", "leave", "Back"),
    ]

    virtual_size = Reactive(Size(0, 0))
    """Of what is written. Without a layout: nothing around the field moves."""

    @dataclass
    class Moved(Message):
        """Another line of the list is wanted."""

        step: int

        def move_in(self, listed: OptionList) -> None:
            if self.step > 0:
                listed.action_cursor_down()
            else:
                listed.action_cursor_up()

    class Left(Message):
        """The person is done."""

    def __init__(self, placeholder: str, *, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True, select_on_focus=False)

    def action_move(self, step: int) -> None:
        self.post_message(self.Moved(step))

    def action_leave(self) -> None:
        self.value = ""
        self.post_message(self.Left())
