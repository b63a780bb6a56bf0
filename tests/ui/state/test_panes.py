"""Which columns appear at which width."""

import pytest

from kvchat.ui.state.panes import PaneRequest, PaneWidths, pane_widths

pytestmark = pytest.mark.pure


def test_a_wide_terminal_shows_everything() -> None:
    assert pane_widths(150, PaneRequest()) == PaneWidths(sessions=30, cache=42)


def test_a_wider_terminal_gives_titles_and_bytes_more_room() -> None:
    assert pane_widths(160, PaneRequest()) == PaneWidths(sessions=35, cache=42)
    assert pane_widths(240, PaneRequest()) == PaneWidths(sessions=42, cache=42)


def test_a_terminal_of_80_columns_leaves_them_to_the_conversation() -> None:
    assert pane_widths(80, PaneRequest()) == PaneWidths(sessions=0, cache=0)


def test_at_80_columns_a_pane_that_is_asked_for_stands_beside_the_conversation() -> None:
    assert pane_widths(80, PaneRequest(cache=True, last="cache")) == PaneWidths(sessions=0, cache=36)
    assert pane_widths(80, PaneRequest(sessions=True, last="sessions")) == PaneWidths(sessions=30, cache=0)


def test_the_pane_asked_for_last_wins_where_only_one_fits() -> None:
    request = PaneRequest(sessions=True, cache=True, last="sessions")
    assert pane_widths(80, request) == PaneWidths(sessions=30, cache=0)


def test_a_tiny_terminal_shows_one_pane_at_a_time() -> None:
    assert pane_widths(40, PaneRequest()) == PaneWidths(sessions=0, cache=0)
    asked = pane_widths(40, PaneRequest(cache=True, last="cache"))
    assert asked == PaneWidths(sessions=0, cache=40, has_conversation=False)


@pytest.mark.parametrize("width", range(20, 200, 7))
@pytest.mark.parametrize("sessions", [None, True, False])
@pytest.mark.parametrize("cache", [None, True, False])
def test_the_conversation_keeps_a_usable_width_beside_panes(
    width: int, sessions: bool | None, cache: bool | None
) -> None:
    for last in ("sessions", "cache"):
        shown = pane_widths(width, PaneRequest(sessions=sessions, cache=cache, last=last))
        rest = width - shown.sessions - shown.cache
        assert rest >= 40 or not (shown.sessions or shown.cache) or (rest == 0 and not shown.has_conversation)


def test_a_pane_that_was_closed_stays_closed_at_any_width() -> None:
    assert pane_widths(250, PaneRequest(sessions=False, cache=False)) == PaneWidths(sessions=0, cache=0)
