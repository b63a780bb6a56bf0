"""Screen base with questions, notices and results for controllers."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from textual.screen import ModalScreen, Screen

from kvchat.text.plain_text import one_line
from kvchat.ui.controllers.screen_services import Work
from kvchat.ui.screens.deferred import Deferred, DeferredScreen, Result

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


_ASKED_S: ContextVar[float] = ContextVar("asked_s")
"""When the key was pressed that the running work answers."""

_UNCOVERED_S = 0.05
"""How often a screen is looked at that is to go when nothing stands above it."""


class ServicesScreen(Screen[None]):
    """A screen that tells, asks, and runs what may wait.

    Attributes:
        typed_s: when the last key was pressed, whatever took it.
        offers: what came while something was typed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.typed_s = 0.0
        self._command_s: float | None = None
        self.offers = PendingQuestions(self.draw_offers)

    def draw_offers(self, waiting: Sequence[str]) -> None:
        """Show what waits until it is asked for."""

    def tell(self, message: str, *, title: str = "") -> None:
        self.notify(message, title=title, timeout=6, markup=False)

    def warn(self, message: str) -> None:
        self.notify(message, severity="warning", timeout=8, markup=False)

    def fail(self, message: str, *, title: str = "") -> None:
        self.notify(message, title=title, severity="error", timeout=15, markup=False)

    async def confirm(self, question: str, consequence: str, *, is_offer: bool = False) -> bool:
        """Ask, and wait for the answer; inside a worker. `is_offer`: see `ConfirmScreen`."""
        from kvchat.ui.screens.confirm import ConfirmScreen

        ask = partial(ConfirmScreen, question, consequence, is_offer=is_offer)
        return await self.ask_late(question, ask)

    async def ask(self, screen: ModalScreen[Any]) -> Any:
        """Show a screen and wait for what it is dismissed with; inside a worker. Where another one has been
        asked for already nothing is shown, and the answer is None.
        """
        if self.has_dialog:
            return None
        answer = await self._shown(screen)
        _ASKED_S.set(self.typed_s)
        return answer

    @property
    def has_dialog(self) -> bool:
        """Whether a screen is open that a key has asked for: it may be pressed again before that counts."""
        asked = (one for one in self.app.screen_stack if not isinstance(one, DeferredScreen))
        return any(isinstance(one, ModalScreen) for one in asked)

    async def ask_late(self, offer: str, make: Callable[[], DeferredScreen[Result]]) -> Result:
        """Show a screen that may come while something is typed; then `offer` stands in a line instead, and
        the screen comes when the person asks for it. Inside a worker.
        """
        is_wanted = self.asked_s >= self.typed_s and self.app.screen is self
        while True:
            if not is_wanted:
                await self.offers.wait(offer)
            answer = await self._shown(make())
            if not isinstance(answer, Deferred):
                _ASKED_S.set(self.typed_s)
                return answer
            is_wanted = False

    async def _shown(self, screen: ModalScreen[Any]) -> Any:
        """Show a screen until it is dismissed, or nobody waits for it any more."""
        try:
            return await self.app.push_screen_wait(screen)
        except asyncio.CancelledError:
            self._withdraw(screen)
            raise

    def _withdraw(self, screen: ModalScreen[Any]) -> None:
        """Take a screen away, once nothing stands above it."""
        if not self.app.is_running:
            return
        if screen.is_active:
            screen.dismiss(None)
        elif screen in self.app.screen_stack:
            self.set_timer(_UNCOVERED_S, partial(self._withdraw, screen))

    def note(self, title: str, text: str) -> None:
        self.begin(partial(self._note, title, text))

    async def _note(self, title: str, text: str) -> None:
        from kvchat.ui.screens.confirm import NoteScreen

        await self.ask_late(title, partial(NoteScreen, title, text))

    @property
    def asked_s(self) -> float:
        """When the key was pressed that what runs now answers; of work that nothing else is known of, now."""
        return _ASKED_S.get(self.typed_s if self._command_s is None else self._command_s)

    def begin(self, work: Work, *, group: str = "", asked_s: float | None = None) -> None:
        """Run something that may wait. Work of a group replaces what runs in it.

        Args:
            asked_s: when the key was pressed that led to it, where that is not the key that is answered now.
        """
        asked = partial(_asked, self.asked_s if asked_s is None else asked_s, work)
        self.run_worker(asked, group=group or "course", exclusive=bool(group))  # type: ignore[arg-type]

    def at_key(self, pressed_s: float, run: Callable[[], object]) -> None:
        """Run what was asked for by a key behind which others may have been pressed already."""
        self._command_s = pressed_s
        try:
            run()
        finally:
            self._command_s = None


async def _asked(asked_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    _ASKED_S.set(asked_s)
    await work()
