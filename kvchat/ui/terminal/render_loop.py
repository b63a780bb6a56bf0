"""Render loop: draws what turns produce some times a second, and at once where something new begins.

While text streams it is drawn as often as its share of the processor allows, at most `1 / INTERVAL_S` times.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from time import monotonic, thread_time
from typing import Any, Final

from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import MountError

SHARE_OF_ALL: Final = 0.02
"""Of all cores together, that drawing may take while an answer streams."""
LONGEST_S: Final = 0.3
"""However dear a drawing is, text comes as often as this."""


class FrameBudget:
    """Says when the next drawing is due. What counts is what the interface's thread has really spent, layout
    and everything else included, so a wide terminal or a slow machine is drawn less often.

    Args:
        share: of one core.
    """

    def __init__(
        self,
        share: float | None = None,
        clock: Callable[[], float] = monotonic,
        spent: Callable[[], float] = thread_time,
    ) -> None:
        self._share = share or min(0.5, SHARE_OF_ALL * (os.cpu_count() or 1))
        self._clock = clock
        self._spent = spent
        self._spent_s = spent()
        self._drawn_s = clock()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last drawing for what was spent since."""
        passed_s = self._clock() - self._drawn_s
        return passed_s >= min(LONGEST_S, (self._spent() - self._spent_s) / self._share)

    def begin(self) -> None:
        """Note that something is drawn now."""
        self._drawn_s, self._spent_s = self._clock(), self._spent()


INTERVAL_S = 1 / 15
_SOON_S = 1e-4
"""Textual has no timer of no time."""


class RenderLoop:
    """Drains turns while any runs, never twice at one time, so that nothing is drawn out of its order."""

    def __init__(
        self, screen: Screen[Any], drain: Callable[[], Awaitable[None]], interval_s: float = INTERVAL_S
    ) -> None:
        self._screen = screen
        self._drain_turns = drain
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._pace = FrameBudget()
        self._timer = screen.set_interval(interval_s, self._drain_if_due, pause=True)

    def start(self) -> None:
        """Call when a turn has begun."""
        self._timer.resume()

    def stop(self) -> None:
        """Call when none runs."""
        self._timer.pause()

    def wake(self) -> None:
        """Do not wait for the next time. From any thread; costs the caller too much for every token."""
        with suppress(RuntimeError):  # the window is closed
            self._loop.call_soon_threadsafe(self._drain_soon, context=self._context)

    def _drain_soon(self) -> None:
        if self._screen.is_attached:
            self._screen.set_timer(_SOON_S, self._drain)

    async def _drain_if_due(self) -> None:
        if self._pace.is_due:
            await self._drain()

    async def _drain(self) -> None:
        async with self._lock:
            self._pace.begin()
            try:
                await self._drain_turns()
            except (NoMatches, MountError):
                # A window that closes takes its widgets away also while something is drawn into them.
                if self._screen.app.is_running and self._screen.is_attached:
                    raise
