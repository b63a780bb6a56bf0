"""A chat made on first use, so that the window is drawn before the tokenizer is read."""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
