"""Questions and results that came while the person was typing: a line each, until they are asked for."""

import asyncio
from collections.abc import Callable, Sequence

from kvchat.text.plain_text import one_line

Waiting = tuple[str, asyncio.Event]


class PendingQuestions:
    """Lets what would open a dialog wait.

    Args:
        draw: shows the lines of what waits, oldest first.
    """

    def __init__(self, draw: Callable[[Sequence[str]], None]) -> None:
        self._draw = draw
        self._waiting: list[Waiting] = []

    async def wait(self, words: str) -> None:
        """Show a line until the person asks for what it stands for."""
        entry = (one_line(words), asyncio.Event())
        self._waiting.append(entry)
        self._redraw()
        try:
            await entry[1].wait()
        finally:
            self._waiting.remove(entry)
            self._redraw()

    def open(self) -> bool:
        """Let what has waited longest come, and return whether anything waited."""
        for _, asked_for in self._waiting:
            if not asked_for.is_set():
                asked_for.set()
                return True
        return False

    def _redraw(self) -> None:
        self._draw([words for words, _ in self._waiting])
