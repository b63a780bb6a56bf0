"""Dialogs that work waits for: asked for by a key, or come later and then wait while something is typed."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any

from textual.screen import ModalScreen, Screen

from kvchat.text.fit_text import one_line
from kvchat.ui.key_names import name_for
from kvchat.ui.screens.dialog import Deferred, InterruptingDialog, Result
from kvchat.ui.widgets.composer import Composer

Work = Callable[[], Coroutine[Any, Any, object]]
"""Something that may wait for a file, for the engine or for the person."""

_ASKED_S: ContextVar[float] = ContextVar("asked_s")
"""When the key was pressed that the running work answers."""

_UNCOVERED_S = 0.05
"""How often a screen is looked at that is to go when nothing stands above it."""


class Dialogs:
    """Shows dialogs above a screen, for work that waits for what they are dismissed with. What comes while
    something is typed is a line until the person asks for it.

    Attributes:
        typed_s: when the last key was pressed, whatever took it.
    """

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._command_s: float | None = None
        self.typed_s = 0.0
        self._pending: list[tuple[str, asyncio.Event]] = []

    @property
    def is_open(self) -> bool:
        """Whether a screen is open that a key has asked for: it may be pressed again before that counts."""
        asked = (one for one in self._screen.app.screen_stack if not isinstance(one, InterruptingDialog))
        return any(isinstance(one, ModalScreen) for one in asked)

    @property
    def asked_s(self) -> float:
        """When the key was pressed that what runs now answers; of work that nothing else is known of, now."""
        return _ASKED_S.get(self.typed_s if self._command_s is None else self._command_s)

    def at_key(self, pressed_s: float, run: Callable[[], object]) -> None:
        """Run what was asked for by a key behind which others may have been pressed already."""
        self._command_s = pressed_s
        try:
            run()
        finally:
            self._command_s = None

    async def run(self, work: Work, asked_s: float) -> None:
        _ASKED_S.set(asked_s)
        await work()

    async def ask(self, screen: ModalScreen[Any]) -> Any:
        """Show a screen and wait for what it is dismissed with; inside work. Where another one has been asked
        for already nothing is shown, and the answer is None.
        """
        if self.is_open:
            return None
        answer = await self._shown(screen)
        _ASKED_S.set(self.typed_s)
        return answer

    async def ask_deferred(self, offer: str, make: Callable[[], InterruptingDialog[Result]]) -> Result:
        """Show a screen that may come while something is typed; then `offer` stands in a line instead, and
        the screen comes when the person asks for it. Inside work.
        """
        is_wanted = self.asked_s >= self.typed_s and self._screen.app.screen is self._screen
        while True:
            if not is_wanted:
                await self._asked_for(offer)
            answer = await self._shown(make())
            if not isinstance(answer, Deferred):
                _ASKED_S.set(self.typed_s)
                return answer
            is_wanted = False

    def open_pending(self) -> bool:
        """Let what has waited longest come, and return whether anything waited."""
        waiting = [asked_for for _, asked_for in self._pending if not asked_for.is_set()]
        for asked_for in waiting[:1]:
            asked_for.set()
        return bool(waiting)

    async def _asked_for(self, words: str) -> None:
        """Show a line until the person asks for what it stands for."""
        entry = (one_line(words), asyncio.Event())
        self._pending.append(entry)
        self._draw_pending()
        try:
            await entry[1].wait()
        finally:
            self._pending.remove(entry)
            self._draw_pending()

    def _draw_pending(self) -> None:
        for composer in self._screen.query(Composer):  # none while the window is being closed
            key = name_for(composer, "answer")
            composer.draw_lines("offers", [f"{words} · {key} opens" for words, _ in self._pending])

    async def confirm(
        self, question: str, consequence: str, *, is_offer: bool = False, default: bool = True
    ) -> bool:
        """Ask, and wait for the answer; inside work; see `ConfirmScreen`."""
        from kvchat.ui.screens.choices import ConfirmScreen

        ask = partial(ConfirmScreen, question, consequence, is_offer=is_offer, default=default)
        return await self.ask_deferred(question, ask)

    async def ask_line(self, title: str, value: str, hint: str) -> str | None:
        """Let one line be written; inside work; see `ask`."""
        from kvchat.ui.screens.choices import LineScreen

        return await self.ask(LineScreen(title, value, hint))

    async def note(self, title: str, text: str) -> None:
        from kvchat.ui.screens.choices import NoteScreen

        await self.ask_deferred(title, partial(NoteScreen, title, text))

    async def _shown(self, screen: ModalScreen[Any]) -> Any:
        """Show a screen until it is dismissed, or nobody waits for it any more."""
        try:
            return await self._screen.app.push_screen_wait(screen)
        except asyncio.CancelledError:
            self._withdraw(screen)
            raise

    def _withdraw(self, screen: ModalScreen[Any]) -> None:
        """Take a screen away, once nothing stands above it."""
        if not self._screen.app.is_running:
            return
        if screen.is_active:
            screen.dismiss(None)
        elif screen in self._screen.app.screen_stack:
            self._screen.set_timer(_UNCOVERED_S, partial(self._withdraw, screen))
