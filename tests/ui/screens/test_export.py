"""`/export`: the conversation on screen goes into a file, and no file is replaced unasked."""

from pathlib import Path

import pytest

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
