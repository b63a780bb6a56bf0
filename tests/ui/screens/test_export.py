"""`/export`: the conversation on screen goes into a file, and no file is replaced unasked."""

from pathlib import Path

import pytest

from kvchat.ui.controllers.clipboard import screen_text
from kvchat.ui.screens.confirm import ConfirmScreen
from tests.ui.harness import window

pytestmark = pytest.mark.tui


async def test_the_branch_on_screen_is_written_and_a_file_replaced_only_after_asking(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/export notes.txt")
        await shown.until_shown("notes.txt does not say what to write")
        await shown.say("/export notes.md")
        await shown.until_shown("wrote notes.md")
        assert shown.files.written == {"notes.md": ("s1", "main")}
        await shown.say("/fork by boat")
        await shown.until_shown("›  by boat")
        for answer, branch in (("escape", "main"), ("enter", "main"), ("y", "by boat")):
            await shown.say("/export notes.md")
            await shown.until_on_top(ConfirmScreen)
            assert "notes.md exists already" in shown.text
            await shown.pilot.press(answer)
            await shown.until_back()
            await shown.until(lambda branch=branch: shown.files.written["notes.md"] == ("s1", branch))


async def test_what_the_screen_shows_is_written_as_a_picture_or_as_text_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with window(tmp_path) as shown:
        await shown.say_and_wait("漢字 <b>")
        await shown.say("/screen notes.md")
        await shown.until_told("notes.md does not say what to write: end it in .svg or .txt")
        await shown.say("/screen")
        await shown.until_told("wrote")
        (picture,) = tmp_path.glob("kvchat-screen-*.svg")
        assert picture.read_text().startswith("<svg")
        file = tmp_path / "screen.txt"
        await shown.say("/screen screen.txt")
        await shown.until(file.exists)
        assert [oct(one.stat().st_mode & 0o777) for one in (picture, file)] == ["0o600"] * 2
        written = file.read_text().splitlines()
        assert "/screen" not in file.read_text()
        lines = [line for line in written if "漢字 <b>" in line]
        assert lines
        # The panel beside the conversation moves on.
        assert {line.rpartition("│")[0] for line in lines} <= {
            line.rpartition("│")[0] for line in shown.text.splitlines()
        }
        await shown.say("/screen screen.txt")
        await shown.until_on_top(ConfirmScreen)
        assert "screen.txt exists already" in shown.text
        await shown.pilot.press("escape")
        await shown.until_back()


async def test_a_screen_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.until_at_rest()
        (tmp_path / "file").touch()
        await shown.say(f"/screen {tmp_path}/file/x.svg")
        await shown.until_told("cannot write")


async def test_a_key_writes_what_the_window_shows_with_the_dialog_that_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with window(tmp_path) as shown:
        await shown.pilot.press("f1")
        await shown.until(lambda: "send" in shown.text and shown.app.screen is not shown.screen)
        await shown.pilot.press("ctrl+s")
        await shown.until_told("wrote ")
        (picture,) = tmp_path.glob("kvchat-screen-*.svg")
        assert "find an earlier message" in screen_text(picture.read_text())
