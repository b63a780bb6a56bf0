"""The cache panel on the screen."""

from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.server_cache import ServerCache
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.cache.row_view import row_text
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import FULL, SLIDING, HeldTokens, ScriptedEngine

pytestmark = pytest.mark.tui


class ServedElsewhere(ScriptedEngine):
    """A server answers in the engine's place."""

    served = ServerCache(usage=0.42, hit_rate=0.354, hit_tokens=1204, asked_tokens=3400)

    def status(self) -> EngineStatus:
        return EngineStatus(phase=EnginePhase.READY, detail="qwen at gpu-box", served=self.served)

    def snapshot(self) -> None:
        return None


def layer_lines(shown: Window) -> list[str]:
    rows = [row_text(row) for row in shown.screen.query_one(CachePanel).rows]
    return [row for row in rows if row.startswith("L")]


async def test_f4_gives_alike_layers_their_rows_and_takes_them_back(tmp_path: Path) -> None:
    engine = ScriptedEngine(layers=(SLIDING,) * 5 + (FULL,))
    async with window(tmp_path, engine=engine) as shown:
        await shown.until_shown("L0-L4 ×5")
        await shown.pilot.press("f4")
        await shown.until(lambda: len(layer_lines(shown)) == 6)
        await shown.until_gone("L0-L4 ×5")
        assert [f"L{number} " in shown.text for number in range(6)] == [True] * 6
        await shown.say("/cache layers")
        await shown.until(lambda: len(layer_lines(shown)) == 2)
        await shown.until_shown("L0-L4 ×5")
        assert "L1 " not in shown.text


async def test_it_grows_while_an_answer_is_written(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="word " * 200, hold=hold, piece_len=500)) as shown:
        await shown.until(lambda: bool(layer_lines(shown)))
        assert layer_lines(shown)[1].count("▓") == 0
        await shown.say("go")
        await shown.until(lambda: layer_lines(shown)[1].count("▓") == 2)
        hold.set()
        await shown.until(lambda: layer_lines(shown)[1].count("▓") == 4)


async def test_only_rows_that_changed_are_drawn_again(tmp_path: Path) -> None:
    engine = ScriptedEngine(held={"a": HeldTokens(owner="s", num_tokens=1000)})
    async with window(tmp_path, engine=engine) as shown:
        await shown.until(lambda: len(layer_lines(shown)) == 6)
        panel = shown.screen.query_one(CachePanel)
        drawn: list[int] = []
        render_line = panel.render_line

        def counting(y: int):  # type: ignore[no-untyped-def]
            drawn.append(y)
            return render_line(y)

        panel.render_line = counting  # type: ignore[method-assign]
        await shown.pilot.pause(0.6)
        while drawn:  # what the start has left to draw
            drawn.clear()
            await shown.pilot.pause(0.6)
        snapshot = engine.snapshot()
        assert snapshot is not None
        panel.show_snapshot(replace(snapshot, reused_tokens=7), panel._names, panel._live)
        await shown.pilot.pause()
        changed = [y for y, row in enumerate(panel.rows) if "reused" in row_text(row)]
        assert {*drawn} == {*changed}  # twice, where the engine was asked meanwhile


async def test_f3_hides_and_shows_it_and_the_line_about_it(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.until_shown("one cell =")
        await shown.until_shown("the cache by tier and layer (f3)")
        beside = shown.transcript.region.width
        await shown.pilot.press("f3")
        await shown.until_gone("one cell =")
        await shown.until_gone("the cache by tier and layer")
        await shown.until_shown("Ask anything")
        await shown.until(lambda: shown.transcript.region.width > beside)
        assert "room for" not in "\n".join(shown.text.splitlines()[:-2])
        await shown.pilot.press("f3")
        await shown.until_shown("one cell =")
        await shown.until(lambda: shown.transcript.region.width == beside)


async def test_a_tiny_terminal_keeps_the_prompt_a_small_one_has_it_on_asking(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.pilot.resize_terminal(40, 12)
        await shown.until_gone("one cell =")
        await shown.type("still typing")
        await shown.until_shown("still typing")
        await shown.until_shown("Very well.")
        await shown.pilot.resize_terminal(80, 24)
        await shown.until_shown("reused 0 of 13")
        assert "one cell =" not in shown.text
        await shown.pilot.press("f3")
        await shown.until_shown("one cell =")
        await shown.until_shown("Very well.")
        assert all(len(line) <= 80 for line in shown.text.splitlines())
        assert shown.screen.prompt.text == "still typing"


async def test_it_shows_what_a_server_reports_of_its_cache_and_stands_still_when_told(tmp_path: Path) -> None:
    engine = ServedElsewhere()
    async with window(tmp_path, engine=engine) as shown:
        await shown.until_shown("1.2k of 3.4k · 35 %")
        assert "qwen at gpu-box · its cache 42 % · reuse 35 %" in shown.text
        panel = shown.screen.query_one(CachePanel)
        assert [row_text(row).split()[-1] for row in panel.rows if row][2:4] == ["unknown", "%"]
        await shown.pilot.press("f8")
        engine.served = replace(engine.served, usage=0.43)
        await shown.until_shown("its cache 43 %")
        assert not any("43 %" in row_text(row) for row in panel.rows)
        await shown.pilot.press("f8")
        await shown.until(lambda: any("43 %" in row_text(row) for row in panel.rows))
