"""Driving the interface in tests: an app on a script, waiting, and the screen as plain lines."""

from asyncio import sleep
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.screen import Screen

from kvchat.app.interface_types import Appearance
from kvchat.ui.app import KvchatApp
from kvchat.ui.screens.chat import ChatScreen
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.transcript import QuestionView, Transcript
from tests.patience import PATIENCE_S
from tests.ui.scripted import Answer, ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.scripted_files import ScriptedFiles

WIDE = (150, 40)
ScreenType = type[Screen[Any]]


class Window:
    """A running app and its script."""

    def __init__(
        self,
        app: KvchatApp,
        pilot: Pilot[None],
        chat: ScriptedChat,
        engine: ScriptedEngine,
        files: ScriptedFiles,
    ) -> None:
        self.app = app
        self.pilot = pilot
        self.chat = chat
        self.engine = engine
        self.files = files

    @property
    def screen(self) -> ChatScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def transcript(self) -> Transcript:
        return self.screen.transcript

    @property
    def questions(self) -> list[str]:
        return [view.turn.text for view in self.transcript.views if isinstance(view, QuestionView)]

    @property
    def answers(self) -> list[AnswerView]:
        return [view for view in self.transcript.views if isinstance(view, AnswerView)]

    @property
    def text(self) -> str:
        """The whole screen as plain lines."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def conversation_text(self) -> str:
        """The conversation's part of the screen."""
        area = self.transcript.region
        lines = self.text.splitlines()[area.y : area.bottom]
        return "\n".join(line[area.x : area.right].rstrip() for line in lines)

    @property
    def told(self) -> list[str]:
        """What stands in notices now."""
        return [notice.message for notice in self.app._notifications]

    async def type(self, text: str) -> None:
        """Type in one burst, as a terminal may; a pilot waits for rest behind each key it presses."""
        if not text:
            return
        self._send_keys(text[:-1])
        await self.pilot.press(_key_of(text[-1]))

    async def say(self, text: str) -> None:
        self._send_keys(text)
        await self.pilot.pause(0)
        await self.pilot.press("enter")

    def _send_keys(self, text: str) -> None:
        assert self.app._driver is not None
        for character in text:
            self.app._driver.send_message(events.Key(_key_of(character), _letter_of(character)))

    async def say_and_wait(self, text: str) -> None:
        """Send a message and wait for its answer."""
        await self.say(text)
        await self.until(lambda: text in self.chat.sent)
        await self.until(lambda: not self.screen.turns.is_running and bool(self.answers))

    async def burst(self, text: str, pressed_s: float | None = None) -> None:
        """Type faster than anybody reads, as if at a moment that may be given."""
        for letter in text:
            key = events.Key("enter" if letter == "\n" else letter, letter)
            key.time = key.time if pressed_s is None else pressed_s
            self.app.post_message(key)
        await self.pilot.pause()

    async def paste(self, text: str) -> None:
        self.app.post_message(events.Paste(text))
        await self.pilot.pause()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until something holds, also once every widget has worked off what it has been told; fail with
        the screen in the message.
        """
        deadline = monotonic() + PATIENCE_S
        while not predicate():
            assert monotonic() < deadline, f"waited in vain; told {self.told}; the screen shows:\n{self.text}"
            await sleep(0.02)
            if predicate():
                await self.pilot.pause(0)

    async def until_at_rest(self) -> None:
        """Wait until nothing runs beside the window that might still change something."""
        await self.until(lambda: all(worker.is_finished for worker in self.app.workers))

    async def until_answered(self) -> None:
        """Wait until the conversation on screen is answered."""
        await self.until(lambda: not self.screen.turns.is_running)

    async def until_sent(self, *texts: str) -> None:
        """Wait until these messages, and no others, have been sent and answered."""
        await self.until(lambda: self.chat.sent == list(texts) and not self.screen.turns.is_busy)

    async def until_told(self, words: str) -> None:
        await self.until(lambda: any(words in message for message in self.told))

    async def until_on_top(self, kind: ScreenType) -> None:
        """Wait until a screen of this kind is the one that keys go to."""
        await self.until(lambda: isinstance(self.app.screen, kind))

    async def until_back(self) -> None:
        """Wait until no dialog lies above the conversation."""
        await self.until(lambda: self.app.screen is self.screen)

    async def until_shown(self, text: str) -> None:
        await self.until(lambda: text in self.text)

    async def until_gone(self, text: str) -> None:
        await self.until(lambda: text not in self.text)


@asynccontextmanager
async def window(
    tmp_path: Path,
    *answers: Answer,
    engine: ScriptedEngine | None = None,
    prepare: Callable[[ScriptedChat], object] = lambda chat: None,
    initial: str | None = None,
    size: tuple[int, int] = WIDE,
    appearance: Appearance | None = None,
) -> AsyncIterator[Window]:
    """Run the interface on a script. `prepare` stores sessions before it starts."""
    engine = engine or ScriptedEngine()
    chat = ScriptedChat(engine, answers or (Answer(),))
    prepare(chat)
    files = ScriptedFiles(appearance)
    app = KvchatApp(chat, engine, files, initial, log_path=tmp_path / "kvchat.log")
    async with app.run_test(size=size, notifications=True) as pilot:
        shown = Window(app, pilot, chat, engine, files)
        await shown.until(lambda: bool(shown.screen.is_mounted))
        yield shown


def talk(chat: ScriptedChat) -> None:
    """Store a conversation of two messages."""
    chat.add_session("Oslo", [("By boat?", "By train."), ("How long?", "Seven hours or so.")])


@asynccontextmanager
async def talk_window(
    tmp_path: Path,
    *answers: Answer,
    prepare: Callable[[ScriptedChat], object] = talk,
    size: tuple[int, int] = WIDE,
) -> AsyncIterator[Window]:
    """Run the interface with the conversation of two messages on the screen."""
    async with window(tmp_path, *answers, prepare=prepare, initial="Oslo", size=size) as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        yield shown


def _key_of(character: str) -> str:
    """Return what Textual calls the key of a character."""
    if character == "\n":
        return "ctrl+j"
    return character if character.isalnum() else _character_to_key(character)


def _letter_of(character: str) -> str | None:
    return None if character == "\n" else character
