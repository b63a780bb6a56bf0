"""Notices: every one can be read again, and those that matter stay until they are dismissed."""

from pathlib import Path

import pytest

from kvchat.ui.screens.notices import NoticesScreen
from tests.ui.harness import WIDE, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


@pytest.mark.parametrize("size", [WIDE, (40, 12)])
async def test_every_notice_can_be_read_again_newest_last(tmp_path: Path, size: tuple[int, int]) -> None:
    async with window(tmp_path, Answer(fail=RuntimeError("it broke")), size=size) as shown:
        await shown.say("/stop")
        await shown.until_told("no answer is being written")
        for _ in range(30):
            shown.screen.tell("again and again")
        await shown.say("Oslo?")
        await shown.until_told("it broke")
        shown.app.clear_notifications()
        await shown.pilot.press("f10")
        await shown.until_on_top(NoticesScreen)
        await shown.until_shown("error   it broke")
        assert "no answer is being written" not in shown.text
        await shown.pilot.press("home")
        await shown.until_shown("warning no answer")
        await shown.pilot.press("c")
        await shown.until_told("Copied")
        await shown.pilot.press("ctrl+u")
        await shown.say("/notices")
        await shown.until_shown("Copied")


async def test_why_kv_is_not_saved_is_told_in_full_once_and_that_it_is_again(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    async with window(tmp_path, engine=engine, size=(120, 30)) as shown:
        engine.problem = "There is no room left for the cache in /c: free some space"
        await shown.until_told(f"KV is not saved: {engine.problem}")
        await shown.until_shown("! KV not saved: free disk space · ctx ")
        engine.problem = None
        await shown.until_told("KV is saved again")
        await shown.until_gone("! KV")
        assert shown.screen.notices.text().count("KV is not saved") == 1
