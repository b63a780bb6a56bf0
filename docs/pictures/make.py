"""Draw the README's pictures: a scripted person at the real interface, engine and model.

    python docs/pictures/make.py [MODEL]
    python docs/pictures/make.py --all DIRECTORY [MODEL]

Keys go in, screenshots come out as SVG beside this file; the sessions of the run are thrown away. With
`--all` every screen is drawn in all sizes and forms, to be looked at.
"""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from textual.pilot import Pilot

from kvchat.app.composition import opened
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.session.tree import Turn
from kvchat.ui.app import KvchatApp
from kvchat.ui.controllers.turn_runner import TurnRunner
from kvchat.ui.screens.compare import CompareScreen

HERE = Path(__file__).parent
SIZE = (132, 36)
SMALL = (80, 24)
SIZES = ((200, 60), (140, 45), (80, 24), (60, 18), (40, 12))
FORMS = {"dark": "kvchat", "light": "solarized-light", "ansi": "ansi-dark"}
PATIENCE_S = 120.0
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

TALK = (
    "Hello! My name is Ana.",
    "What is a KV cache?",
    "What is a block?",
    "What is a prefix?",
    "Why does a sliding layer need less memory?",
    "What is prefix sharing?",
    "What is the capital of Norway?",
    "How are you?",
    "What is a fork?",
    "What is copy-on-write?",
    "What is a tokenizer?",
    "What is my name?",
)


class Person:
    """Someone who types and waits."""

    def __init__(self, app: KvchatApp, pilot: Pilot[None]) -> None:
        self._app = app
        self._pilot = pilot

    async def says(self, text: str) -> None:
        turns = self._app.chat_screen.turns
        num_before = len(_said(turns))
        await self._types(text)
        await self._until(lambda: len(_said(turns)) >= num_before + 2 and not turns.is_running)
        await self._pilot.pause(0.8)

    async def commands(self, line: str) -> None:
        await self._types(line)
        await self._pilot.pause(0.8)

    async def presses(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause(0.8)

    async def waits_for_the_model(self) -> None:
        await self._until(lambda: self._app.chat_screen.is_engine_ready)
        await self._pilot.pause(0.8)

    async def looks(self, name: str) -> None:
        """Save what is on the screen."""
        self._app.clear_notifications()
        await self._pilot.pause(0.8)
        (HERE / f"{name}.svg").write_text(
            _tidy(self._app.export_screenshot(title="kvchat")), encoding="utf-8"
        )

    async def looks_everywhere(self, directory: Path, name: str) -> None:
        """Save what is on the screen in all sizes and forms."""
        self._app.clear_notifications()
        forms = {"plain": ""} if self._app.no_color else FORMS
        for width, height in SIZES:
            await self._pilot.resize_terminal(width, height)
            for form, theme in forms.items():
                self._app.show_theme(theme)
                await self._pilot.pause(0.2)
                picture = _tidy(self._app.export_screenshot(title="kvchat"))
                (directory / f"{name}-{width}x{height}-{form}.svg").write_text(picture, encoding="utf-8")
        await self.resizes(*SIZES[0])

    async def compares(self) -> None:
        """Let the model answer three times, again where it said the same thrice: it is a small one."""
        for _ in range(10):
            await self.commands("/retry 3")
            await self.waits_for("enter takes it")
            screen = self._app.screen
            assert isinstance(screen, CompareScreen)
            answers = {answer.text for answer in screen.answers}
            if len(answers) > 1:
                return
            await self.presses("escape")

    async def resizes(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)
        await self._pilot.pause(0.8)

    async def waits_for(self, text: str) -> None:
        """Wait until something stands on the screen."""
        await self._until(lambda: text in self._text())
        await self._pilot.pause(0.3)

    async def hears(self, text: str) -> None:
        """Wait for a notice."""
        await self._until(lambda: any(text in notice.message for notice in self._app._notifications))

    async def types(self, text: str) -> None:
        names = {" ": "space", "/": "slash", "@": "at", ".": "full_stop"}
        for character in text:
            await self._pilot.press(names.get(character, character))

    async def _types(self, text: str) -> None:
        await self.types(text)
        await self._pilot.press("enter")

    def _text(self) -> str:
        return "\n".join(strip.text for strip in self._app.screen._compositor.render_strips())

    async def _until(self, predicate: Callable[[], bool]) -> None:
        deadline = monotonic() + PATIENCE_S
        while not predicate():
            if monotonic() > deadline:
                sys.exit("waited in vain for the interface")
            await self._pilot.pause(0.05)


Script = Callable[[Person], Awaitable[None]]
"""What somebody does at the window."""


async def draw(model: str | None, home: Path, script: Script) -> None:
    flags: dict[str, object] = {"paths.data_dir": home / "data", "paths.cache_dir": home / "cache"}
    os.environ["KVCHAT_HOME"] = str(home)  # settings are changed, too
    settings = read_settings(flags)
    engine = EngineSwap()
    with opened(settings, engine) as kvchat:
        chat = kvchat.load(None, model)
        engine.start()
        host = InterfaceHost(settings, kvchat, chat, engine)
        app = KvchatApp(chat, kvchat.engine, host, None, log_path=home / "log")
        async with app.run_test(size=SIZE) as pilot:
            person = Person(app, pilot)
            await person.waits_for_the_model()
            await script(person)


async def play(person: Person) -> None:
    """The script of the pictures."""
    for message in TALK:
        await person.says(message)
    await person.commands("/title Notes on caching")
    await person.looks("chat")
    await person.commands("/drop 3")
    await person.looks("drop")
    await person.presses("escape")
    await person.commands("/fork shorter answers")
    await person.says("What is eviction?")
    await person.looks("fork")
    await play_variants(person)
    await play_settings(person)
    await person.resizes(*SMALL)
    await person.presses("f3")
    await person.looks("small")
    await person.presses("f3", "f6", "up", "up", "enter")
    await person.looks("small-actions")
    await person.presses("escape", "f7")
    await person.waits_for("Blocks of")
    await person.looks("small-blocks")


async def play_variants(person: Person) -> None:
    """Other ways for the conversation."""
    await person.presses("f7")
    await person.waits_for("Blocks of")
    await person.presses("down", "down")
    await person.looks("blocks")
    await person.presses("escape", "f6", "enter")
    await person.looks("actions")
    await person.presses("escape")
    await person.says("Explain caching in your own words.")
    await person.compares()
    await person.looks("compare")
    await person.presses("escape")
    await person.commands("/tokens")
    await person.presses("right", "right", "right", "down")
    await person.looks("tokens")
    await person.presses("escape")


async def play_settings(person: Person) -> None:
    """What goes with a message, what is found, what can be set."""
    await person.commands("/new")
    await person.says("Where do blocks go when the memory is full?")
    await person.presses("ctrl+f", *"tier")
    await person.looks("find")
    await person.presses("escape")
    await person.types("What does this say? @CONTRIBUTING.m")
    await person.presses("tab")
    await person.waits_for("tokens, read")
    await person.looks("attach")
    await person.presses("ctrl+u", "backspace")
    await person.commands("/model")
    await person.looks("models")
    await person.presses("escape")
    await person.commands("/theme ansi-dark")
    await person.looks("ansi")
    await person.commands("/theme kvchat")


async def play_all(person: Person, directory: Path) -> None:
    """Walk through all screens."""

    async def look(name: str, *keys: str) -> None:
        await person.presses(*keys)
        await person.looks_everywhere(directory, name)

    await person.resizes(*SIZES[0])
    await look("welcome")
    for message in TALK[:4]:
        await person.says(message)
    await person.commands("/title Notes on caching")
    await person.commands("/fork shorter answers")
    await person.says("Show me a list, a quote and some code.")
    await look("chat")
    await look("sessions", "f2", "down")
    await look("prompt", "escape", "slash")
    await look("message", "backspace", "f6", "up")
    await look("actions", "escape", "f6", "up", "enter")
    await look("help", "escape", "escape", "f1")
    await look("palette", "escape", "ctrl+p")
    await look("inspector", "escape", "f7", "down")
    await look("history", "escape", "ctrl+r")
    await person.presses("escape")
    for command in ("tokens", "model", "set", "undo", "delete", "gauge"):
        await person.commands(f"/{command}")
        await person.waits_for("esc ")
        await look(command)
        await person.presses("escape")
    await person.commands("/retry 3")
    await person.waits_for("enter takes it")
    await look("compare")
    await person.presses("escape")
    await person.commands("Tell me a long story about a fjord.")
    await look("answering")


def _said(turns: TurnRunner) -> Sequence[Turn]:
    return turns.conversation.turns if turns.conversation else ()


def _tidy(svg: str) -> str:
    """Return the picture with the reader's fonts: nothing is fetched when it is shown."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", FONTS)
    # Runs of spaces are part of the picture.
    return svg.replace("<svg ", '<svg xml:space="preserve" ', 1)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] != ["--all"]:
        run(play, arguments)
        return
    directory = Path(arguments[1])
    directory.mkdir(parents=True, exist_ok=True)
    run(partial(play_all, directory=directory), arguments[2:])
    os.environ["NO_COLOR"] = "1"
    run(partial(play_all, directory=directory), arguments[2:])


def run(script: Script, models: Sequence[str]) -> None:
    with TemporaryDirectory(prefix="kvchat-pictures-") as home:
        asyncio.run(draw(models[0] if models else None, Path(home), script))


if __name__ == "__main__":
    main()
