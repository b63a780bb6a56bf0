"""A session is loaded as soon as it is selected, and no longer once the selection has moved on."""

from pathlib import Path

import pytest

from tests.ui.harness import window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui


async def test_a_session_that_is_selected_in_the_list_is_loaded_before_it_is_opened(tmp_path: Path) -> None:
    def two_sessions(chat: ScriptedChat) -> None:
        chat.add_session("first", [("one", "two")])
        chat.add_session("second", [("three", "four")])

    async with window(tmp_path, prepare=two_sessions) as shown:
        await shown.until_shown("second")
        await shown.pilot.press("f2")
        await shown.pilot.press("down")
        await shown.until(lambda: len(shown.chat.prefetched) > 0 and shown.chat.prefetched[-1] is not None)
        selected = shown.chat.prefetched[-1]
        await shown.pilot.press("down")
        await shown.until(lambda: shown.chat.prefetched[-1] not in (None, selected))
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.chat.prefetched[-1] is None)
