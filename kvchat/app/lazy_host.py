"""Interface services made on first use, so that the window is drawn before them."""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from kvchat.app.config import Settings
from kvchat.app.host import Appearance, appearance_of

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost


class LazyHost:
    """Stands for a host. How the window looks is known before it is made.

    Args:
        settings: as this run begins with them.
        make: makes it; called once.
    """

    def __init__(self, settings: Settings, make: "Callable[[], InterfaceHost]") -> None:
        self._settings = settings
        self._make = make
        self._made: InterfaceHost | None = None
        self._lock = Lock()

    def made(self) -> "InterfaceHost":
        """Return the host itself, in any thread."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def appearance(self) -> Appearance:
        return appearance_of(self._settings) if self._made is None else self._made.appearance()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)
