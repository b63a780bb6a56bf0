"""Dialogs: screens above the window, each of which goes once."""

from typing import ClassVar, Generic, TypeVar

from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

Result = TypeVar("Result")


class Dialog(ModalScreen[Result], Generic[Result]):
    """A dialog that takes nothing away but itself: Textual would take away whatever is on top.

    A key that was pressed twice, or a list that was chosen from twice, dismisses it more than once.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss(None)", "Close")]

    @property
    def is_open(self) -> bool:
        """Whether it has its widgets: what it looks up may come when it has been dismissed."""
        return self in self.app.screen_stack

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()
