"""The status line, read as text."""

from dataclasses import replace

import pytest

from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.snapshot import Tier, TierUsage
from kvchat.errors import ModelNotFound
from kvchat.text.figures import gauge
from kvchat.ui.key_names import Hint
from kvchat.ui.widgets.status_bar import StatusFigures, status_text
from tests.ui.scripted_engine import HeldTokens, scripted_snapshot

pytestmark = pytest.mark.pure

EMPTY = scripted_snapshot([])
BUSY = StatusFigures(
    status=EngineStatus(phase=EnginePhase.READY),
    snapshot=scripted_snapshot([HeldTokens(owner="s", num_tokens=3100)], reused=970, computed=30),
    context_tokens=3100,
    tokens_per_s=41.3,
)
STOP = (Hint("stop", "escape"),)


def test_it_shows_context_reuse_room_and_speed_and_the_hint_at_the_right_edge() -> None:
    figures = "ctx 3.1k/8.2k ▕███     ▏ · reuse 97 % · room for 5.1k tokens · 41 tok/s"
    assert status_text(BUSY, 100, STOP) == f"{figures:<92}esc stop"


def test_kv_that_is_not_exact_or_not_saved_is_told() -> None:
    told = [
        status_text(replace(BUSY, snapshot=replace(EMPTY, **what)), 200)
        for what in (
            {"cache_format": "fp8", "is_exact": False},
            {"problem": "There is no room left for the cache in /c: free some."},
            {"problem": "/c cannot be written: choose another cache directory"},
        )
    ]
    assert " · KV in fp8, approximate · " in told[0]
    assert told[1].startswith("! KV not saved: free disk space · ctx 3.1k")
    assert told[2].startswith("! KV not saved · /notices says why · ctx 3.1k")


def test_where_there_is_room_it_counts_the_blocks_of_each_tier() -> None:
    assert BUSY.snapshot is not None
    tiers = {Tier.DEVICE: (3 << 20, 1234), Tier.HOST: (0, 0), Tier.DISK: (None, 6)}
    usage = tuple(
        TierUsage(tier=tier, used_bytes=0, cached_bytes=0, total_bytes=total, num_blocks=num)
        for tier, (total, num) in tiers.items()
    )
    figures = replace(BUSY, snapshot=replace(BUSY.snapshot, tiers=usage))
    counted = " · reuse 97 % · device 1.2k disk 6 blocks · room for 5.1k tokens · 41 tok/s"
    assert counted in status_text(figures, 120, STOP)
    for width in range(20, 120):
        line = status_text(figures, width, STOP)
        assert "blocks" not in line or (counted in line and line.endswith("   esc stop"))


@pytest.mark.parametrize("width", [20, 30, 36, 40, 60, 80])
def test_figures_that_do_not_fit_are_left_out_whole_and_the_hint_stays(width: int) -> None:
    line = status_text(BUSY, width, STOP)
    assert len(line) == width
    assert line.startswith("ctx 3.1k/8.2k" if width >= 30 else " ")
    assert line.endswith("   esc stop")


def test_keys_come_before_figures_and_behind_what_the_engine_says() -> None:
    keys = [Hint("sessions", "f2"), Hint("cache", "f3"), Hint("help", "f1")]
    assert status_text(BUSY, 36, keys) == "    f2 sessions · f3 cache · f1 help"
    assert status_text(BUSY, 50, keys) == "ctx 3.1k/8.2k     f2 sessions · f3 cache · f1 help"
    told = replace(BUSY, snapshot=replace(EMPTY, problem="There is no room left for the cache in /c."))
    assert status_text(told, 50, keys) == "! KV not saved · /notices sa…   f3 cache · f1 help"


def test_it_shows_the_loading_phase_before_there_are_figures() -> None:
    loading = EngineStatus(phase=EnginePhase.LOADING, detail="reading weights")
    figures = replace(BUSY, status=loading, snapshot=None, num_queued=2)
    assert status_text(figures, 80).startswith("◌ reading weights · 2 queued")


def test_it_shows_the_first_line_of_a_failure() -> None:
    error = ModelNotFound("no model at ./m\ntry kvchat -m starter")
    failed = replace(BUSY, status=EngineStatus(phase=EnginePhase.FAILED, error=error), snapshot=None)
    assert status_text(failed, 80).startswith("✗ no model at ./m ")


def test_what_was_never_measured_is_unknown_and_not_zero() -> None:
    figures = replace(BUSY, snapshot=EMPTY, context_tokens=0, tokens_per_s=None)
    assert "reuse – ·" in status_text(figures, 90)
    assert "– tok/s" in status_text(figures, 90)


def test_the_gauge_grows_in_eighths_and_stays_in_its_frame() -> None:
    assert gauge(0, 100, 4) == "▕    ▏"
    assert gauge(1, 32, 4) == "▕▏   ▏"
    assert gauge(50, 100, 4) == "▕██  ▏"
    assert gauge(200, 100, 4) == "▕████▏"
