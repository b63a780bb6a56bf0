"""What stands above a conversation: its title and branch, and the model where there is room."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.ui.widgets.heading import editing_text, heading_text, model_parts
from tests.ui.harness import window
from tests.ui.records import SESSION
from tests.ui.scripted import MAIN, NOW, Branch
from tests.ui.scripted_engine import ScriptedEngine, scripted_snapshot

OSLO = Conversation(SESSION, Branch(session_id=SESSION.id, name=MAIN, leaf_id=None, updated_at=NOW), ())
MODEL = model_parts(replace(scripted_snapshot([]), model="org/Small-1B", weights="int8"))


def headed(title: str, width: int, note: str = "") -> str:
    return heading_text(OSLO, title, width, note, MODEL)  # type: ignore[arg-type]


@pytest.mark.pure
def test_the_model_its_kv_and_its_weights_stand_at_the_right_where_there_is_room() -> None:
    assert headed("Oslo", 60) == "Oslo  ›  main             Small-1B · exact KV · int8 weights"
    assert headed("Oslo", 40) == "Oslo  ›  main        Small-1B · exact KV"
    assert headed("Oslo", 24) == "Oslo  ›  main   Small-1B"
    assert headed("Oslo", 20) == "Oslo  ›  main"


@pytest.mark.pure
def test_a_long_title_gives_way_to_the_model_down_to_a_readable_width_and_the_branch_never_does() -> None:
    title = "A journey to Oslo by train, by boat and on foot"
    line = headed(title, 60)
    assert line.startswith("A journey to Oslo by train,…  ›  main")
    assert line.endswith("   Small-1B · exact KV")
    for width in range(24, 120):
        line = headed(title, width, "  ·  own system prompt")
        assert "  ›  main  ·  own system prompt" in line
        if "Small" in line:
            assert len(line) == width
            assert title[:23] in line


@pytest.mark.pure
def test_the_cost_of_an_edit_gives_way_before_the_way_out() -> None:
    costs = ("computes 9 tokens (9 KiB), 10 reused (10 KiB)", "computes 9 tokens, 10 reused")
    assert editing_text(2, costs, 62).endswith("2 · computes 9 tokens, 10 reused · esc cancels")
    assert editing_text(2, costs, 56) == "editing message 2 · esc cancels"


@pytest.mark.tui
async def test_the_heading_is_drawn_again_where_a_pane_beside_it_comes_or_goes(tmp_path: Path) -> None:
    async with window(tmp_path, size=(100, 24)) as shown:
        await shown.until_shown("scripted · exact KV")
        heading = shown.screen.query_one("#heading")
        for _ in range(2):
            await shown.pilot.press("f3")
            await shown.pilot.pause()
            await shown.until(lambda: len(str(heading.render()).rstrip()) == heading.content_size.width)


@pytest.mark.pure
def test_no_model_is_named_before_there_is_one() -> None:
    assert model_parts(None) == ()


@pytest.mark.tui
async def test_the_model_is_named_once_it_is_loaded_and_what_prompt_is_in_force_where_it_is_unusual(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(tmp_path, engine=engine, size=(80, 24)) as shown:
        await shown.until_shown("new conversation")
        assert "scripted" not in shown.text.splitlines()[0]
        engine.phase = EnginePhase.READY
        await shown.until(lambda: shown.text.splitlines()[0].endswith("scripted · exact KV"))
        assert "system prompt" not in shown.text
        await shown.say("/system Be brief.")
        await shown.until(lambda: "own system prompt" in shown.text.splitlines()[0])
        await shown.say_and_wait("Hello?")
        await shown.until_shown("Hello?  ›  main  ·  own system prompt")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: "own system prompt" not in shown.text.splitlines()[0])
