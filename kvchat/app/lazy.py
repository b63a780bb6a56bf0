"""Interface services created on first use, so that the window is drawn before them."""

from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING, Any

from kvchat.app.config import Settings
from kvchat.app.host import Appearance

if TYPE_CHECKING:
    from kvchat.app.interface_host import InterfaceHost
    from kvchat.app.session_service import SessionService
    from kvchat.chat.service import Chat


class LazyChat:
    """Stands for a chat. Whoever needs more of it than the store waits until it is made, in any thread.

    Args:
        store: the chat's.
        make: makes it; called once, unless it fails.
    """

    def __init__(self, store: "SessionService", make: "Callable[[], Chat]") -> None:
        self.store = store
        self._make = make
        self._made: Chat | None = None
        self._lock = Lock()

    def made(self) -> "Chat":
        """Return the chat itself.

        Raises:
            ModelError: see `Kvchat.load`.
        """
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def open(self, reference: str, branch: str | None = None) -> Any:
        """Do as `Chat.open`, which a window asks for before it is drawn, in a thread."""
        return self.made().open(reference, branch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)


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


def appearance_of(settings: Settings) -> Appearance:
    keys = {name: key for name, key in asdict(settings.keys).items() if key}
    return Appearance(theme=settings.display.theme, system=settings.system, keys=keys)
