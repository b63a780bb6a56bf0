"""A session is loaded as soon as it is selected, and no longer once the selection has moved on."""

from pathlib import Path

import pytest

from kvchat.chat.service import EditCost
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import Tier
from kvchat.session.tree import SessionId
from kvchat.ui.controllers.turn_runner import QueuedTurn, TurnKind
from kvchat.ui.screens.confirm import ConfirmScreen
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import talk, talk_window, window
from tests.ui.scripted import ScriptedChat, ScriptedConversation
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


@pytest.mark.parametrize("phase", [EnginePhase.READY, EnginePhase.LOADING])
async def test_a_conversation_that_comes_on_screen_says_from_which_tier_once_the_engine_can_tell(
    tmp_path: Path, phase: EnginePhase
) -> None:
    engine = OnDisk(phase=phase)
    async with window(tmp_path, engine=engine, prepare=talk) as shown:
        await shown.say("/switch Oslo")
        await shown.until(lambda: len(shown.questions) == 2)
        engine.phase = EnginePhase.READY
        await shown.until_told("KV ready: 36/36 tokens (384 KiB), 36 on disk")
        assert shown.chat.sent == []


async def test_nothing_is_told_of_a_conversation_that_goes_on_at_once(tmp_path: Path) -> None:
    async with window(tmp_path, engine=OnDisk(), prepare=talk) as shown:
        asked: list[int] = []
        reach = shown.chat.variants.reach

        def noted(conversation: ScriptedConversation) -> EditCost:
            asked.append(1)
            return reach(conversation)

        shown.chat.variants.reach = noted
        shown.screen.commands.run("/switch Oslo")
        await shown.until(lambda: len(shown.questions) == 2)
        shown.screen.queue(QueuedTurn(kind=TurnKind.SEND, text="And back?"))
        await shown.until_sent("And back?")
        await shown.until_at_rest()
        assert asked == []
        assert not any("KV ready" in message for message in shown.told)


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
