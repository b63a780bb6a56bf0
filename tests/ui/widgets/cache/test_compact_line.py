"""The cache in one line, where its panel has no room."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.ui.widgets.cache.compact_line import CacheLine, compact_row
from kvchat.ui.widgets.cache.row_view import Look, row_text
from tests.ui.harness import window
from tests.ui.scripted_engine import FULL, HeldTokens, scripted_snapshot


@pytest.mark.pure
def test_it_shows_what_is_shared_own_cached_and_free_and_how_full_each_layer_is() -> None:
    branches = [HeldTokens(owner="a", num_tokens=2048, num_shared=1024), HeldTokens(owner="b", num_tokens=64)]
    snapshot = scripted_snapshot(branches, kept_tokens=2048, disk_bytes=6 << 20)
    row = compact_row(snapshot, 76)
    line = row_text(row)
    assert line.startswith("device ▒▓░")
    assert " MiB   disk 6.0 MiB " in line
    assert line.endswith("layers ▁█▁█▁█")
    assert row[-1] == ("█", Look.KEPT)
    assert len(line) == 76


@pytest.mark.pure
def test_an_empty_cache_has_empty_layers() -> None:
    line = row_text(compact_row(scripted_snapshot([]), 60))
    assert line.startswith("device ······")
    assert line.endswith("layers ······")


@pytest.mark.pure
@pytest.mark.parametrize("width", [36, 56, 76, 130])
@pytest.mark.parametrize("num_layers", [1, 28, 80])
def test_it_fits_its_width_however_many_layers_there_are(width: int, num_layers: int) -> None:
    held = [HeldTokens(owner="a", num_tokens=9000)]
    for layers in ([FULL] * num_layers, [replace(FULL, block_bytes=1 << 24)] * num_layers):
        line = row_text(compact_row(scripted_snapshot(held, layers=layers, kept_tokens=640), width))
        assert len(line) <= width
        assert line.split("layers ")[1] == "█" * min(num_layers, width // 3)


@pytest.mark.tui
async def test_it_stands_where_the_panel_does_not_and_a_click_opens_that(tmp_path: Path) -> None:
    async with window(tmp_path, size=(80, 24)) as shown:
        await shown.until_shown("device ·")
        await shown.say_and_wait("hello")
        await shown.until_shown("device ▓·")
        await shown.pilot.resize_terminal(60, 18)
        await shown.until(lambda: shown.screen.query_one(CacheLine).region.bottom <= 18)
        await shown.pilot.click(CacheLine)
        await shown.until_shown("one cell =")
        assert not shown.screen.query_one(CacheLine).display
        await shown.pilot.press("f3")
        await shown.until_shown("layers █")
        await shown.pilot.resize_terminal(40, 12)
        await shown.until_gone("layers █")
