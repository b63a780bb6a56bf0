"""A session is loaded as soon as it is selected, and no longer once the selection has moved on."""

from pathlib import Path

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import EditCost
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import CacheSnapshot, Tier
from kvchat.session.tree import SessionId
from kvchat.ui.screens.choices import ConfirmScreen
from kvchat.ui.state.conversation_tab import message_turn
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import talk, talk_window, window
from tests.ui.scripted import ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


class OnDisk(ScriptedEngine):
    """Knows that every path it is asked for lies on disk."""

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        place = BlockPlace(group=GroupId(0), tier=Tier.DISK, is_stored=True)
        return (
            InspectedBlock(
                key="", parent="", start=0, token_ids=request.token_ids, places=(place,), unused_s=None
            ),
        )


class OnDevice(ScriptedEngine):
    """Has every path on the device, cached for nobody, until it is evicted."""

    is_evicted = False
    num_asked = num_looked = 0

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        self.num_asked += 1
        tier = None if self.is_evicted else Tier.DEVICE
        places = tuple(BlockPlace(group=GroupId(group), tier=tier) for group in (0, 1))
        return (
            InspectedBlock(
                key="", parent="", start=0, token_ids=request.token_ids, places=places, unused_s=1.0
            ),
        )

    def snapshot(self) -> CacheSnapshot | None:
        self.num_looked += 1
        return super().snapshot()


@pytest.mark.parametrize("phase", [EnginePhase.READY, EnginePhase.LOADING])
async def test_a_conversation_that_comes_on_screen_says_from_which_tier_once_the_engine_can_tell(
    tmp_path: Path, phase: EnginePhase
) -> None:
    engine = OnDisk(phase=phase)
    async with window(tmp_path, engine=engine, prepare=talk) as shown:
        await shown.say("/switch Oslo")
        await shown.until(lambda: len(shown.questions) == 2)
        engine.phase = EnginePhase.READY
        await shown.until_told("36 of 36 tokens cached (384 KiB), 35 on disk")
        assert shown.chat.sent == []


async def test_a_stored_conversation_on_screen_is_named_in_the_panel_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    """Its blocks were loaded ahead, and no branch of the engine holds them yet."""
    engine = OnDevice(kept_tokens=128)
    async with window(tmp_path, engine=engine, prepare=talk, initial="Oslo") as shown:
        await shown.until_shown("on screen, cached: 35 tokens")
        panel = shown.text[shown.text.index("branches on the device") :]
        assert "● Oslo" in panel.splitlines()[1]
        await shown.pilot.press("f7")
        await shown.until_shown("Blocks of “Oslo” (on screen): 1")
        await shown.pilot.press("escape")
        engine.is_evicted, engine.kept_tokens = True, 0
        await shown.until_gone("on screen, cached")
        assert shown.chat.sent == []


async def test_the_engine_is_not_asked_again_for_a_conversation_and_a_cache_that_stay_as_they_are(
    tmp_path: Path,
) -> None:
    engine = OnDevice(kept_tokens=128)
    async with window(tmp_path, engine=engine, prepare=talk, initial="Oslo") as shown:
        await shown.until_shown("on screen, cached: 35 tokens")
        await shown.until_at_rest()
        asked, looked = engine.num_asked, engine.num_looked
        await shown.until(lambda: engine.num_looked > looked + 3)
        assert engine.num_asked == asked


async def test_nothing_is_told_of_a_conversation_that_goes_on_at_once(tmp_path: Path) -> None:
    async with window(tmp_path, engine=OnDisk(), prepare=talk) as shown:
        asked: list[int] = []
        reach = shown.chat.variants.reach

        def noted(conversation: Conversation) -> EditCost:
            asked.append(1)
            return reach(conversation)

        shown.chat.variants.reach = noted
        shown.screen.commands.run("/switch Oslo")
        await shown.until(lambda: len(shown.questions) == 2)
        shown.screen.queue(message_turn("And back?"))
        await shown.until_sent("And back?")
        await shown.until_at_rest()
        assert asked == []
        assert not any("tokens cached" in message for message in shown.told)


async def test_a_session_that_is_selected_in_the_list_is_loaded_before_it_is_opened(tmp_path: Path) -> None:
    def two_sessions(chat: ScriptedChat) -> None:
        chat.add_session("first", [("one", "two")])
        chat.add_session("second", [("three", "four")])

    async with window(tmp_path, prepare=two_sessions) as shown:
        await shown.until_shown("second")
        await shown.pilot.press("f2", "down")
        await shown.until(lambda: len(shown.chat.prefetched) > 0 and shown.chat.prefetched[-1] is not None)
        selected = shown.chat.prefetched[-1]
        await shown.pilot.press("down")
        await shown.until(lambda: shown.chat.prefetched[-1] not in (None, selected))
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.chat.prefetched[-1] is None)
        assert shown.questions == []


async def test_a_session_is_not_loaded_under_a_dialog(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.say("/delete")
        await shown.until_on_top(ConfirmScreen)
        before = list(shown.chat.prefetched)
        await shown.screen.on_session_list_selected(SessionList.Selected(SessionId("s1"), None)).wait()
        assert shown.chat.prefetched == before
