"""Screen services: what controllers need of the screen."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from textual.screen import ModalScreen
from textual.timer import Timer

from kvchat.ui.screens.deferred import DeferredScreen, Result

Work = Callable[[], Coroutine[Any, Any, None]]
"""Something that may wait for a file, for the engine or for the person."""


class ScreenServices(Protocol):
    """A screen that tells, asks, and runs what may wait."""

    @property
    def is_engine_ready(self) -> bool: ...

    def tell(self, message: str, *, title: str = "") -> None: ...

    def warn(self, message: str) -> None: ...

    def note(self, title: str, text: str) -> None: ...

    def confirm(self, question: str, consequence: str, *, is_offer: bool = False) -> Awaitable[bool]:
        """Ask, and wait for the answer; inside work. `is_offer`: nobody has asked for it."""
        ...

    def ask(self, screen: ModalScreen[Any]) -> Awaitable[Any]:
        """Show a screen and wait for what it is dismissed with; inside work."""
        ...

    def ask_late(self, offer: str, make: Callable[[], DeferredScreen[Result]]) -> Awaitable[Result]:
        """Show a screen that may come while something is typed; it is offered in a line then."""
        ...

    def begin(self, work: Work, *, group: str = "", asked_s: float | None = None) -> object:
        """Run something that may wait. Work of a group replaces what runs in it.

        Args:
            asked_s: when the key was pressed that led to it, where that is not the key that is answered now.
        """
        ...

    def set_timer(self, delay: float, callback: Callable[[], None]) -> Timer: ...
