"""Which columns appear at which width."""

from itertools import product

import pytest

from kvchat.ui.widgets.panes import PaneRequest, PaneWidths, pane_widths

pytestmark = pytest.mark.pure


def test_a_wider_terminal_shows_more_panes_and_gives_titles_and_bytes_more_room() -> None:
    shown = {width: pane_widths(width, PaneRequest()) for width in (40, 80, 150, 160, 240)}
    assert shown == {
        40: PaneWidths(sessions=0, cache=0),
        80: PaneWidths(sessions=0, cache=0),
        150: PaneWidths(sessions=30, cache=42),
        160: PaneWidths(sessions=35, cache=42),
        240: PaneWidths(sessions=42, cache=42),
    }


@pytest.mark.parametrize(
    ("width", "request_", "shown"),
    [
        (80, PaneRequest(cache=True, last="cache"), PaneWidths(sessions=0, cache=36)),
        (80, PaneRequest(sessions=True, last="sessions"), PaneWidths(sessions=30, cache=0)),
        (80, PaneRequest(sessions=True, cache=True, last="sessions"), PaneWidths(sessions=30, cache=0)),
        (40, PaneRequest(cache=True, last="cache"), PaneWidths(sessions=0, cache=40, has_conversation=False)),
        (250, PaneRequest(sessions=False, cache=False), PaneWidths(sessions=0, cache=0)),
    ],
)
def test_a_pane_that_is_asked_for_last_has_its_place_and_one_that_was_closed_has_none(
    width: int, request_: PaneRequest, shown: PaneWidths
) -> None:
    assert pane_widths(width, request_) == shown


def test_the_conversation_keeps_a_usable_width_beside_panes() -> None:
    wishes, last = (None, True, False), ("sessions", "cache")
    for width, sessions, cache, asked in product(range(20, 200), wishes, wishes, last):
        shown = pane_widths(width, PaneRequest(sessions=sessions, cache=cache, last=asked))
        rest = width - shown.sessions - shown.cache
        assert rest >= 40 or not (shown.sessions or shown.cache) or (rest == 0 and not shown.has_conversation)


def test_a_wish_that_is_withdrawn_leaves_the_pane_to_the_width_and_what_was_closed_closed() -> None:
    assert PaneRequest(sessions=True, cache=False, last="sessions").withdrawn == PaneRequest(cache=False)
