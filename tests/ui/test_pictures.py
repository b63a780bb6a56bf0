"""What widgets look like: their letters, places and colours, compared with pictures that were looked at."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import ComposeResult
from textual.widget import Widget

import kvchat.ui
from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.snapshot import Tier
from kvchat.session.tree import MAIN, Branch, BranchName, Session, SessionId
from kvchat.ui.key_names import Hint
from kvchat.ui.state.cache_history import Recent
from kvchat.ui.theme import KVCHAT_THEME, ThemedApp
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.session_rows import Held, SessionListOptions
from kvchat.ui.widgets.status_bar import StatusBar, StatusFigures
from tests.ui.picture import check_picture, drawn
from tests.ui.records import SESSION
from tests.ui.scripted_engine import FULL, SLIDING, HeldTokens, scripted_snapshot

pytestmark = pytest.mark.tui

NOW = 1_000_000.0
SNAPSHOT = scripted_snapshot(
    [
        HeldTokens(owner="s1", num_tokens=1260, num_shared=1100, running=True),
        HeldTokens(owner="s2", num_tokens=1400, num_shared=1100),
    ],
    layers=(SLIDING, SLIDING, FULL),
    kept_tokens=300,
    disk_bytes=3 << 20,
    reused=1100,
    computed=160,
)


class Frame(ThemedApp):
    """Shows one widget in the interface's colours."""

    CSS_PATH = Path(*kvchat.ui.__path__) / ThemedApp.CSS_PATH

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        self.widget = widget
        self.theme = KVCHAT_THEME.name

    def compose(self) -> ComposeResult:
        yield self.widget


async def test_the_cache_panel_tells_tiers_layers_and_branches_apart_by_marks_and_colours() -> None:
    panel = CachePanel()
    recent = Recent(rates=(1.0, 20.0, 40.0), reuses=(0.5, 0.97), moving={Tier.DISK: "▼"})
    names = BranchNames(
        of_branches={SequenceId(1): "by boat"}, of_sessions={"s1": "Trip to Oslo"}, active=SequenceId(1)
    )
    async with Frame(panel).run_test(size=(40, 20)) as pilot:
        panel.show_snapshot(SNAPSHOT, names, Live(recent=recent, context_len=1400))
        await pilot.pause()
        check_picture(pilot.app, "cache_panel")


async def test_the_session_list_has_marks_bytes_and_ages_in_the_narrowest_pane() -> None:
    listed = SessionList()
    sessions = [session(1, "What would you see in Oslo?", 125), session(2, "kv notes", 7300)]
    branches = [
        Branch(session_id=SessionId("s1"), name=BranchName(name), leaf_id=None, updated_at=NOW - 60)
        for name in ("main", "by boat", "by car")
    ]
    options = SessionListOptions(
        active_session=SessionId("s1"),
        active_branch=MAIN,
        held={"s1": Held(own_bytes=4 << 20, shared_bytes=2 << 20)},
        held_branches={
            ("s1", "main"): Held(own_bytes=3 << 20),
            ("s1", "by boat"): Held(own_bytes=1 << 20, is_running=True),
        },
        now=NOW,
    )
    async with Frame(listed).run_test(size=(27, 6)) as pilot:
        listed.show_sessions([(sessions[0], branches), (sessions[1], ())], options)
        await pilot.pause()
        check_picture(pilot.app, "session_list")


async def test_the_last_line_says_in_the_colour_of_errors_what_failed_and_the_way_out() -> None:
    bar = StatusBar(id="status")
    failed = EngineStatus(phase=EnginePhase.FAILED, detail="the graphics memory is full")
    figures = StatusFigures(status=failed, snapshot=None, context_tokens=0, tokens_per_s=None)
    async with Frame(bar).run_test(size=(60, 1)) as pilot:
        bar.show_figures(figures)
        bar.show_hints([Hint("/reload loads it again")])
        await pilot.pause()
        check_picture(pilot.app, "status_failed")


def test_a_picture_tells_other_letters_places_and_colours_apart() -> None:
    line = '<text class="t-r1" x="{}" y="1" textLength="1" clip-path="url(#t-line-0)">{}</text>'
    style = ".t-r1 {{ fill: {} }}"
    pictures = [
        drawn(style.format(colour) + line.format(x, text))
        for colour, x, text in (
            ("#aaaaaa", "0", "a"),
            ("#aaaaaa", "12.2", "a"),
            ("#aaaaaa", "0", "b"),
            ("#bbbbbb", "0", "a"),
        )
    ]
    assert pictures[0] == "a\n\n0: 0 #aaaaaa\n"
    assert len(set(pictures)) == 4


def session(number: int, title: str, age_s: float) -> Session:
    return replace(SESSION, id=SessionId(f"s{number}"), title=title, updated_at=NOW - age_s)
