"""The session list, read as text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from rich.cells import cell_len

from kvchat.app.interface_types import KvOnDisk
from kvchat.session.session_queries import SearchHit
from kvchat.session.tree import MAIN, Branch, BranchName, Role, SessionId, TurnId
from kvchat.text.figures import short_bytes_text
from kvchat.ui.widgets.session_rows import (
    BranchPlace,
    Held,
    SearchFinding,
    SessionLine,
    SessionListOptions,
    SessionWithBranches,
    line_text,
    session_lines,
)
from tests.ui.records import SESSION

pytestmark = pytest.mark.pure

NOW = 1_000_000.0


def stored(number: int, title: str, age_s: float, *branches: str) -> SessionWithBranches:
    session_id = SessionId(f"s{number}")
    session = replace(SESSION, id=session_id, title=title, updated_at=NOW - age_s)
    found = [
        Branch(session_id=session.id, name=BranchName(name), leaf_id=None, updated_at=NOW - age_s)
        for name in branches
    ]
    return session, found


def lines(
    sessions: Sequence[SessionWithBranches], held: Mapping[str, Held] = MappingProxyType({}), **settings: Any
) -> Sequence[SessionLine]:
    options = SessionListOptions(active_session=None, active_branch=None, held=held, now=NOW)
    return session_lines(sessions, replace(options, **settings))


HERE = {"active_session": SessionId("s1"), "active_branch": MAIN}


def names(sessions: Sequence[SessionWithBranches], **settings: Any) -> list[str]:
    return [line.name for line in lines(sessions, **settings)]


def drawn(sessions: Sequence[SessionWithBranches], width: int = 26) -> list[str]:
    held = {"s1": Held(own_bytes=4 << 20), "s2": Held()}
    return ["".join(line_text(line, width)) for line in lines(sessions, held, **HERE)]


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
    sessions = [stored(1, "exact", 5, "main"), stored(2, "about", 500, "main")]
    assert names(sessions, approximate=frozenset({"s2"}), **HERE) == ["● exact", "· ≈ about"]


def test_what_is_on_disk_is_marked_and_counted_where_nothing_is_on_the_device() -> None:
    held = {"s1": Held(own_bytes=1 << 20), "s2": Held(is_on_device=False)}
    on_disk = KvOnDisk(own_bytes=2 << 20, shared_bytes=3 << 20)
    sessions = [stored(number, name, number, "main") for number, name in enumerate("abcd", 1)]
    found = lines(sessions, held, on_disk={SessionId(f"s{number}"): on_disk for number in (1, 2, 3)})
    assert [line.name for line in found] == ["○ a", "◐ b", "◌ c", "· d"]
    assert [(line.own_bytes >> 20, line.shared_bytes >> 20) for line in found] == [
        (1, 0),
        (2, 3),
        (2, 3),
        (0, 0),
    ]


@pytest.mark.parametrize("width", [8, 12, 26, 60])
def test_every_line_is_as_wide_as_the_list_in_cells(width: int) -> None:
    sessions = [stored(1, "Trip to Oslo", 125, "main", "b"), stored(2, "漢字のとても長い題名です", 5)]
    assert {cell_len(line) for line in drawn(sessions, width)} == {width}


def test_a_title_is_drawn_without_its_control_characters_and_none_has_a_name() -> None:
    assert "\x1b" not in drawn([stored(1, "a\x1b[31mb", 5, "main")])[0]
    assert drawn([stored(1, "", 5)])[0].startswith("● untitled")


def found(words: str, hits: tuple[SearchHit, ...] = ()) -> list[str]:
    sessions = [stored(1, "Trip to Oslo", 5, "main", "by boat"), stored(2, "kv notes", 500, "main")]
    return names(sessions, finding=SearchFinding(words=words, hits=hits))


def test_words_are_looked_for_in_titles_and_names_of_branches() -> None:
    assert found("oslo TRIP") == ["· Trip to Oslo", "  ├ main", "  └ by boat"]
    assert found("boat") == found("oslo")
    assert found("kv") == ["· kv notes"]
    assert found("boat kv") == []


def hit(excerpt: str) -> SearchHit:
    return SearchHit(
        session_id=SessionId("s2"),
        title="kv notes",
        turn_id=TurnId("t1"),
        role=Role.USER,
        created_at=NOW,
        excerpt=excerpt,
    )


def test_found_messages_stand_under_their_session_and_begin_near_the_words_that_were_found() -> None:
    one = hit("a line\nand another")
    assert found("line", (one,)) == ["· kv notes", "  “a line and another”"]
    assert len(found("line", (one,) * 9)) == 4
    long = hit("…are not in use they go to a slower tier and come back")
    assert found("TIER", (long,)) == ["· kv notes", "  “…slower tier and come back”"]
    assert found("are not", (long,)) == ["· kv notes", f"  “{long.excerpt}”"]


def test_a_title_leaves_room_for_its_own_bytes_and_for_shared_ones_where_there_is_more() -> None:
    [own] = lines([stored(1, LONG, 125, "main")], {"s1": Held(own_bytes=4 << 20)})
    assert "".join(line_text(own, 26)) == "○ Proof reading…  4.0M  2m"
    [both] = lines([stored(1, "Oslo", 125, "main")], {"s1": Held(own_bytes=4 << 20, shared_bytes=2 << 20)})
    assert line_text(both, 30)[1].split() == ["▒2.0M", "4.0M", "2m"]
    assert line_text(both, 20)[1].split() == ["4.0M", "2m"]


LONG = "Proof reading a long text"
# What a line of the list has beside a scroll bar: the pane is 30 columns wide at 80 and 120, 35 at 160.
NARROWEST, AT_160 = 24, 29


@pytest.mark.parametrize("width", [NARROWEST, AT_160, 36])
@pytest.mark.parametrize(("own", "shared"), [(4 << 20, 2 << 20), (999 << 20, 99 << 10), (700, 1023 << 30)])
def test_a_title_gives_way_to_own_and_shared_bytes_in_the_narrowest_list(
    width: int, own: int, shared: int
) -> None:
    held = {"s1": Held(own_bytes=own, shared_bytes=shared)}
    [line] = lines([stored(1, LONG, 125, "main")], held)
    name, figures = line_text(line, width)
    assert len(name + figures) == width
    assert name.startswith("○ Proof")
    of_shared, of_own, age = figures.split()
    assert of_shared.startswith("▒")
    assert of_own[-1] == short_bytes_text(own)[-1]
    assert age == "2m"


@pytest.mark.parametrize("width", [NARROWEST, AT_160])
def test_own_bytes_and_ages_stand_in_columns_whatever_is_shared(width: int) -> None:
    held = {
        "s1": Held(own_bytes=4 << 20, shared_bytes=2 << 20),
        "s2": Held(own_bytes=412 << 10),
        "s3": Held(shared_bytes=2 << 20),
    }
    found = lines([stored(number, LONG, 125 * number, "main") for number in (1, 2, 3)], held)
    figures = ["".join(line_text(line, width)) for line in found]
    assert [text[-4:] for text in figures] == ["  2m", "  4m", "  6m"]
    assert [text[-9:-4].strip() for text in figures] == ["4.0M", "412K", ""]
    assert [text.index("▒") for text in (figures[0], figures[2])] == [figures[0].index("▒")] * 2


def test_a_live_branch_says_where_it_is_and_what_is_its_own() -> None:
    branches = {
        ("s1", "main"): Held(own_bytes=1 << 20, shared_bytes=4 << 20),
        ("s1", "by boat"): Held(own_bytes=300 << 10),
        ("s1", "by car"): Held(is_on_device=False),
        ("s1", "on foot"): Held(own_bytes=64 << 10, is_running=True),
        ("s2", "by rail"): Held(own_bytes=9 << 20),
    }
    session = stored(1, "Trip to Oslo", 125, "main", "by boat", "by car", "on foot", "by rail")
    found = lines([session], held_branches=branches, **HERE)
    assert ["".join(line_text(line, NARROWEST)) for line in found[1:]] == [
        "  ├ ● main      1.0M  2m",
        "  ├ ○ by boat   300K  2m",
        "  ├ ◐ by car          2m",
        "  ├ ▸ on foot  64.0K  2m",
        "  └ by rail           2m",
    ]


def test_a_branch_stands_below_the_one_that_it_leaves_with_tokens_where_it_has_no_bytes() -> None:
    places = {
        ("s1", name): BranchPlace(depth=depth, num_tokens=1_200)
        for name, depth in (("boat", 0), ("night", 1), ("day", 1), ("main", 0))
    }
    held = {("s1", "night"): Held(own_bytes=4 << 20)}
    session = stored(1, "Oslo", 0, "boat", "night", "day", "main")
    found = lines([session], places=places, held_branches=held)
    assert ["".join(line_text(line, 26)) for line in found[1:]] == [
        "  ├ boat      1.2k tok now",
        "  │ ├ ○ night     4.0M now",
        "  │ └ day     1.2k tok now",
        "  └ main      1.2k tok now",
    ]
