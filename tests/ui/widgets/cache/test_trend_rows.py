"""The panel's lines that have a past, read as text."""

import re
from dataclasses import replace

import pytest

from kvchat.engine.api.snapshot import Tier, TierUsage
from kvchat.ui.state.cache_history import Recent
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live, Look, PanelOptions, panel_rows
from kvchat.ui.widgets.cache.panel_sections import sparkline
from kvchat.ui.widgets.cache.row_view import row_text
from tests.ui.scripted_engine import FULL, SLIDING, HeldTokens, scripted_snapshot

pytestmark = pytest.mark.pure

NAMES = BranchNames(of_branches={}, of_sessions={"s1": "Trip to Oslo"})
HOST = TierUsage(tier=Tier.HOST, used_bytes=0, cached_bytes=1 << 20, total_bytes=8 << 20, num_blocks=4)
SNAPSHOT = scripted_snapshot(
    [HeldTokens(owner="s1", num_tokens=1260)], kept_tokens=300, disk_bytes=3 << 20, reused=1100, computed=160
)
SNAPSHOT = replace(SNAPSHOT, tiers=(SNAPSHOT.tiers[0], HOST, SNAPSHOT.tiers[1]))
RECENT = Recent(
    rates=(1.0, 20.0, 40.0, 38.0),
    reuses=(0.0, 0.5, 0.97),
    tier_bytes={Tier.DEVICE: (0, 4 << 20, 6 << 20), Tier.HOST: (1 << 20, 1 << 20)},
    moving={Tier.HOST: "▼", Tier.DISK: "⇅"},
)


def lines(live: Live, width: int = 40, frozen_at: str = "") -> list[str]:
    options = PanelOptions(width=width, max_rows=99, names=NAMES, live=live, frozen_at=frozen_at)
    return [row_text(row).rstrip() for row in panel_rows(SNAPSHOT, options)]


def test_the_panel_shows_what_moves_and_what_was() -> None:
    shown = lines(Live(recent=RECENT, context_len=1260))
    assert shown[:3] == [
        "device ▓░·················· 6.6 / 96 MiB",
        "host ▼ ░░··················  1.0 / 8 MiB",
        "disk ⇅ no limit                  3.0 MiB",
    ]
    assert shown[shown.index("branches on the device") :] == [
        "branches on the device",
        "  Trip to Oslo                ▓  4.7 MiB",
        "",
        "reused (total)       1.1k of 1.3k · 87 %",
        "tok/s                        ▁▅██     38",
        "reuse                         ▁▅█   97 %",
        "device                        ▁▆█ ≤ 6.0M",
        "",
        "room for                6.9k more tokens",
        "              before the context is full",
    ]


def test_a_frozen_panel_says_so_first_and_draws_nothing_of_a_past_that_was_not() -> None:
    shown = lines(Live(), frozen_at="12:00:01")
    assert shown[0] == "frozen since 12:00:01"
    assert not any(line.startswith(("tok/s", "reuse ")) for line in shown)


@pytest.mark.parametrize("width", [31, 36, 40, 58, 120])
def test_no_line_is_wider_than_the_panel_and_words_and_figures_stay_apart(width: int) -> None:
    shown = lines(Live(recent=RECENT, context_len=10), width, "12:00:01")
    assert max(map(len, shown)) <= width
    assert any(re.fullmatch(r"reused .* 1\.1k of 1\.3k · 87 %", line) for line in shown)


def test_a_move_and_what_differs_have_looks_of_their_own() -> None:
    options = PanelOptions(width=40, max_rows=99, names=NAMES, live=Live(recent=RECENT))
    runs = [run for row in panel_rows(SNAPSHOT, options) for run in row]
    assert [text.strip() for text, look in runs if look is Look.MOVED] == ["▼", "⇅"]
    assert {text.strip() for text, look in runs if look is Look.DIFFERENT} == {"window 256"}


def test_where_rows_are_scarce_all_alike_layers_share_one_wherever_they_are() -> None:
    deep = scripted_snapshot([HeldTokens(owner="s1", num_tokens=900)], layers=((SLIDING,) * 5 + (FULL,)) * 8)
    options = PanelOptions(width=40, max_rows=20, names=NAMES, live=Live(recent=RECENT))
    shown = [row_text(row) for row in panel_rows(deep, options)]
    assert [line.split("▓")[0].strip() for line in shown if line.startswith("L")] == [
        "L00… ×40 w256",
        "L05… ×8",
    ]
    assert len(shown) <= 20
    held = sum(layer.used_bytes for layer in deep.layers if layer.window is None)
    assert f"{held / 2**20:.1f} MiB" in next(line for line in shown if line.startswith("L05"))


def test_a_sparkline_has_eight_heights_and_shows_the_last_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7, 8], 9) == "▁▂▃▄▅▆▇██"
    assert sparkline([8, 1, 8], 2) == "▂█"
    assert sparkline([0.5], 4, top=1.0) == "   ▅"
    assert sparkline([], 3) == "   "
    assert sparkline([0.0, 0.0], 2) == "▁▁"
