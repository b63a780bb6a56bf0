"""Texts that leave the window: by the clipboard, whose route is told, and to the editor."""

from pathlib import Path

import pytest

from tests.ui.controllers.test_clipboard import tool
from tests.ui.harness import Window, window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui

CODE = "Do this:\n\n```python\nx = 1\n```\n\nand this:\n\n```\ny = 2\n```\n"


def talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [("By boat?", CODE), ("And back?", "By **train**.")])


async def copied(shown: Window, line: str) -> str:
    """Copy by a command and return what is told of it."""
    shown.app.clear_notifications()
    await shown.say(line)
    await shown.until(lambda: any(one.message.startswith("Copied") for one in shown.app._notifications))
    return next(one.message for one in shown.app._notifications if one.message.startswith("Copied"))


@pytest.fixture
def over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave only the terminal itself."""
    monkeypatch.setenv("SSH_CONNECTION", "there")


@pytest.mark.usefixtures("over_ssh")
async def test_answers_and_their_code_are_copied_and_the_route_is_told(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.answers) == 2)
        route = "(OSC 52)"
        assert await copied(shown, "/copy") == f"Copied 13 characters {route}"
        assert shown.app.clipboard == "By **train**."
        assert await copied(shown, "/copy 2") == f"Copied {len(CODE)} characters {route}"
        assert shown.app.clipboard == CODE
        await shown.say("/copy code")
        await shown.until_shown("there is no code in this answer")
        await shown.pilot.press("f6", "up", "up", "enter")
        await shown.until_shown("copy its code")
        await shown.pilot.press("k")
        await shown.until(lambda: shown.app.clipboard == "x = 1\n\ny = 2\n")


async def test_a_tool_of_this_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xclip = tool(tmp_path, "xclip")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SSH_CONNECTION", "SSH_TTY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.answers) == 2)
        assert await copied(shown, "/copy") == "Copied 13 characters (xclip)"
    assert Path(f"{xclip}.took").read_text() == "By **train**."


async def test_a_terminal_that_cannot_be_handed_to_an_editor_is_told(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.answers) == 2)
        await shown.say("/open")
        await shown.until_shown("this terminal cannot be handed to an editor")
        assert len(shown.answers) == 2
