"""The session list, read as text."""

import pytest

from kvchat.session.tree import MAIN, Branch, BranchName, Session, SessionId
from kvchat.ui.widgets.session_rows import ListOptions, SessionWithBranches, line_text, session_lines

pytestmark = pytest.mark.pure

NOW = 1_000_000.0


def stored(
    number: int, title: str, age_s: float, *branches: str, pinned: bool = False
) -> SessionWithBranches:
    session = Session(
        id=SessionId(f"s{number}"),
        title=title,
        system="",
        model="m",
        created_at=0.0,
        updated_at=NOW - age_s,
        pinned=pinned,
    )
    found = [
        Branch(session_id=session.id, name=BranchName(name), leaf_id=None, updated_at=NOW - age_s)
        for name in branches
    ]
    return session, found


def drawn(sessions: list[SessionWithBranches], width: int = 26) -> list[str]:
    options = ListOptions(
        active_session=SessionId("s1"), active_branch=MAIN, own_bytes={"s1": 4 << 20, "s2": 0}, now=NOW
    )
    return ["".join(line_text(line, width)) for line in session_lines(sessions, options)]


def test_sessions_and_branches_stand_in_columns_newest_first() -> None:
    sessions = [
        stored(3, "kv notes", 90_000 * 12, "main"),
        stored(2, "Proof reading a long text", 7300, "main"),
        stored(1, "Trip to Oslo", 125, "main", "by boat"),
    ]
    assert drawn(sessions) == [
        "● Trip to Oslo    4.0M  2m",
        "  ├ ● main              2m",
        "  └ by boat             2m",
        "○ Proof reading a lon…  2h",
        "· kv notes             12d",
    ]


def test_sessions_with_approximate_answers_are_marked() -> None:
    options = ListOptions(
        active_session=SessionId("s1"),
        active_branch=MAIN,
        own_bytes={},
        now=NOW,
        approximate=frozenset({"s2"}),
    )
    sessions = [stored(1, "exact", 5, "main"), stored(2, "about", 500, "main")]
    names = [line.name for line in session_lines(sessions, options)]
    assert names == ["● exact", "· ≈ about"]


def test_pinned_sessions_stand_first() -> None:
    sessions = [stored(2, "new", 5, "main"), stored(3, "kept", 500, "main", pinned=True)]
    assert [line[2:6] for line in drawn(sessions)] == ["kept", "new "]


@pytest.mark.parametrize("width", [8, 12, 26, 60])
def test_every_line_is_as_wide_as_the_list(width: int) -> None:
    assert {len(line) for line in drawn([stored(1, "Trip to Oslo", 125, "main", "b")], width)} == {width}


def test_a_title_is_drawn_without_its_control_characters() -> None:
    assert "\x1b" not in drawn([stored(1, "a\x1b[31mb", 5, "main")])[0]


def test_a_session_without_a_title_has_a_name() -> None:
    assert drawn([stored(1, "", 5)])[0].startswith("● untitled")
