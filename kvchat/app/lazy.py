"""Chat and interface services made on first use, so that the window is drawn before them."""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvchat.app.config import Settings
from kvchat.app.interface_types import Appearance, appearance_of

if TYPE_CHECKING:
    from kvchat.app.retention.session_removal import SessionService
    from kvchat.chat.service import Chat

T = TypeVar("T")


class Lazy(Generic[T]):
    """Stands for something; whoever needs more of it than is known before waits until it is made.

    Args:
        make: makes it; called once, unless it fails.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._lock = Lock()

    def made(self) -> T:
        """Return the thing itself, in any thread.

        Raises:
            KvchatError: what `make` raises.
        """
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)


class LazyHost(Lazy[Any]):
    """Stands for an `InterfaceHost`. How the window looks is known before it is made."""

    def __init__(self, settings: Settings, make: Callable[[], Any]) -> None:
        super().__init__(make)
        self._settings = settings

    def appearance(self) -> Appearance:
        found: Appearance = appearance_of(self._settings) if self._made is None else self._made.appearance()
        return found


class LazyChat(Lazy["Chat"]):
    """Stands for a chat, whose store is there before its tokenizer is read."""

    def __init__(self, store: "SessionService", make: "Callable[[], Chat]") -> None:
        super().__init__(make)
        self.store = store

    def open(self, reference: str, branch: str | None = None) -> Any:
        """Do as `Chat.open`, which a window asks for before it is drawn, in a thread."""
        return self.made().open(reference, branch)
