"""The inspector on the screen: whose blocks, which block, standing still, in small terminals too."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvchat.engine.api.cache_events import CacheEvent, CacheEventKind
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import MovedBytes, Tier
from kvchat.ui.widgets.cache.block_table import BlockTable
from tests.ui.harness import talk, window
from tests.ui.scripted_engine import HeldTokens, ScriptedEngine
from tests.ui.widgets.cache.test_inspector_rows import block, place

pytestmark = pytest.mark.tui

FIRST, SECOND = InspectionRequest(sequence=SequenceId(0)), InspectionRequest(sequence=SequenceId(1))


def engine_with_blocks() -> ScriptedEngine:
    engine = ScriptedEngine(
        held={
            "a": HeldTokens(owner="Trip to Oslo", num_tokens=640),
            "b": HeldTokens(owner="Proof reading", num_tokens=64),
        }
    )
    engine.blocks = {
        FIRST: tuple(block(number, place(Tier.DEVICE, holders=1)) for number in range(2000)),
        SECOND: (block(7, place(Tier.HOST, stored=True)),),
    }
    return engine


async def test_80_by_24_shows_sessions_blocks_and_in_full_the_one_that_keys_lead_to(tmp_path: Path) -> None:
    engine = engine_with_blocks()
    engine.phase = EnginePhase.LOADING
    async with window(tmp_path, engine=engine, size=(80, 24)) as shown:
        await shown.say("/cache blocks")
        await shown.until_shown("the model is not loaded yet")
        engine.phase = EnginePhase.READY
        await shown.until_shown("Blocks of “Proof reading”: 1")
        assert "host+disk" in shown.text
        assert "07" * 32 in shown.text
        await shown.pilot.press("right")
        await shown.until_shown("Blocks of “Trip to Oslo”: 2,000")
        await shown.until_shown("64–127")
        lines = shown.text.splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert sum("device" in line and "×1" in line for line in lines) >= 8
        assert "if deleted" in shown.text
        assert "00" * 32 in shown.text
        assert "esc closes" in lines[-1]
        await shown.pilot.press("down", "down", "up")
        await shown.until_shown("01" * 32)
        await shown.pilot.press("end")
        await shown.until_shown("127,936–127,999")
        table = shown.app.screen.query_one(BlockTable)
        assert table.chosen == 1999
        await shown.pilot.press("pageup")
        await shown.until(lambda: table.chosen < 1999)
        await shown.pilot.press("home")
        await shown.until_shown("00" * 32)
        await shown.pilot.press("tab")
        await shown.until_shown("Unreferenced blocks: 0")
        await shown.pilot.press("left", "left", "escape")
        await shown.until_gone("if deleted")
        assert shown.screen.prompt.has_focus


async def test_a_block_that_moves_is_seen_and_nothing_changes_while_it_stands_still(tmp_path: Path) -> None:
    engine = engine_with_blocks()
    async with window(tmp_path, engine=engine) as shown:
        await shown.until_shown("one cell =")
        await shown.pilot.press("f7")
        await shown.until_shown("host+disk")
        table = shown.app.screen.query_one(BlockTable)
        marks, show = [table._moved], table.show_blocks

        def noting(blocks: Sequence[tuple[InspectedBlock, str]], moved: frozenset[int]) -> None:
            marks.append(moved)
            show(blocks, moved)

        table.show_blocks = noting  # type: ignore[method-assign]
        engine.blocks[SECOND] = (block(7, place(Tier.DEVICE, holders=1)),)
        await shown.until_gone("host+disk")
        await shown.until(lambda: not table._moved)
        assert {*marks} == {frozenset(), frozenset({7 * 64})}
        await shown.pilot.press("f")
        await shown.until_shown("frozen since")
        engine.blocks[SECOND] = (block(9, place(Tier.DISK)),)
        await shown.pilot.pause(0.7)
        assert "09" * 32 not in shown.text
        await shown.pilot.press("f")
        await shown.until_shown("09" * 32)


async def test_the_panel_shows_moves_for_a_moment_and_stands_still_at_f8(tmp_path: Path) -> None:
    engine = ScriptedEngine(disk_bytes=1 << 20)
    async with window(tmp_path, engine=engine) as shown:
        await shown.until_shown("disk ")
        assert "disk ▼" not in shown.text

        def moves_are_shown() -> bool:
            engine.moved = MovedBytes(to_disk=engine.moved.to_disk + 1)
            return "disk ▼" in shown.text

        await shown.until(moves_are_shown)
        await shown.until_gone("disk ▼")
        await shown.pilot.press("f8")
        await shown.until_shown("frozen since")
        engine.reused, engine.computed = 70, 30
        await shown.pilot.pause(0.7)
        assert "70 of 100" not in shown.text
        await shown.say("/cache freeze")
        await shown.until_shown("70 of 100")
        assert "frozen since" not in shown.text


async def test_l_shows_the_layers_of_one_session_then_of_all_and_the_title_says_whose(tmp_path: Path) -> None:
    engine = engine_with_blocks()
    async with window(tmp_path, engine=engine, size=(80, 24)) as shown:
        await shown.pilot.press("f7")
        await shown.until_shown("Blocks of “Proof reading”")
        await shown.pilot.press("l")
        await shown.until_shown("Layers of “Proof reading”: 384 KiB")
        bars = [line for line in shown.text.splitlines() if line.startswith(" L") and "KiB" in line][-6:]
        assert [line.split()[0] for line in bars] == ["L0", "L1", "L2", "L3", "L4", "L5"]
        assert all("▓" in line and line.endswith(" 64.0 KiB") for line in bars)
        await shown.pilot.press("right")
        await shown.until_shown("Layers of “Trip to Oslo”: 2.8 MiB")
        await shown.pilot.press("right")
        await shown.until_shown("Unreferenced layers: 0 B")
        await shown.pilot.press("l")
        await shown.until_shown("Layers of all sessions: 3.2 MiB")
        await shown.pilot.press("l")
        await shown.until_shown("Unreferenced blocks")


async def test_e_shows_what_moved_and_why_by_kind_and_w_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = engine_with_blocks()

    def event(number: int, kind: CacheEventKind, reason: str) -> CacheEvent:
        return CacheEvent(
            number=number, time_s=1.0, kind=kind, reason=reason, owner="s1", num_blocks=number, tier=Tier.HOST
        )

    engine.events = [event(1, CacheEventKind.SEAL, "it is full"), event(2, CacheEventKind.EVICT, "no room")]
    async with window(tmp_path, engine=engine, prepare=talk) as shown:
        await shown.until_shown("one cell =")
        await shown.pilot.press("f7", "e")
        await shown.until_shown("Events: 2")
        rows = [line.split() for line in shown.text.splitlines() if "Oslo" in line and "·" in line]
        assert [row[1:] for row in rows] == [
            ["evict", "2", "host", "no", "room", "·", "Oslo"],
            ["seal", "1", "host", "it", "is", "full", "·", "Oslo"],
        ]
        engine.events[-1] = event(2, CacheEventKind.EVICT, "it has grown")
        engine.events.append(event(3, CacheEventKind.EVICT, "again"))
        await shown.until_shown("Events: 3")
        assert "it has grown" in shown.text
        await shown.pilot.press("left", "left", "left")
        await shown.until_shown("Events “seal”: 1")
        await shown.pilot.press("left", "left", "left")
        await shown.until_shown("Events “evict”: 2")
        await shown.pilot.press("w")
        await shown.until_told("kvchat-events")
        (file,) = tmp_path.glob("kvchat-events-*.jsonl")
        values = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(one["kind"], one["reason"]) for one in values] == [
            ("evict", "it has grown"),
            ("evict", "again"),
        ]
        assert file.stat().st_mode & 0o777 == 0o600
        await shown.pilot.press("right", "w")
        await shown.until_told("there are no events to write")
        await shown.pilot.press("e", "w")
        await shown.until_told("kvchat-blocks")
        (file,) = tmp_path.glob("kvchat-blocks-*.jsonl")
        assert json.loads(file.read_text())["key"] == "07" * 32
