"""The inspector's lines, read as text."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import OwnerUsage, Tier
from kvchat.ui.state.cached_prefix import on_screen
from kvchat.ui.widgets.cache.inspector_rows import (
    block_heading,
    block_row,
    detail_lines,
    place_text,
    since_text,
    source_heading,
    source_row,
    sources,
)
from kvchat.ui.widgets.cache.panel_rows import BranchNames
from kvchat.ui.widgets.cache.row_view import Look, row_text
from tests.ui.scripted_engine import HeldTokens, scripted_snapshot

pytestmark = pytest.mark.pure

NAMES = BranchNames(
    of_branches={}, of_sessions={"s1": "Trip to Oslo", "s2": "漢字の旅"}, active=SequenceId(0)
)
SNAPSHOT = scripted_snapshot(
    [
        HeldTokens(owner="s1", num_tokens=1260, num_shared=1100),
        HeldTokens(owner="s2", num_tokens=1400, num_shared=1100, running=True),
    ],
    kept_tokens=300,
)


def place(tier: Tier | None, group: int = 0, *, holders: int = 0, stored: bool = False) -> BlockPlace:
    return BlockPlace(group=GroupId(group), tier=tier, num_holders=holders, is_stored=stored)


def block(number: int, *places: BlockPlace, key: str = "", unused_s: float | None = 12.0) -> InspectedBlock:
    return InspectedBlock(
        key=key or f"{number:02x}" * 32,
        parent="ab" * 32,
        start=number * 64,
        token_ids=tuple(range(64)),
        places=places or (place(Tier.DEVICE, holders=1),),
        unused_s=unused_s,
    )


def row(one: InspectedBlock, text: str = "", width: int = 80, *, is_chosen: bool = False) -> str:
    return row_text(block_row(one, text, width, is_chosen=is_chosen, is_moved=False)).rstrip()


def test_a_block_is_one_line_with_key_holders_tier_and_last_use_and_where_it_is_wide_with_its_parent() -> (
    None
):
    shared = block(1, place(Tier.DEVICE, holders=2, stored=True))
    assert [
        row_text(block_heading(80)).rstrip(),
        row(shared, "What is a\nKV cache?", is_chosen=True),
        row(block(200), "words"),
        row(block(3, place(None))),
        row(replace(block(2), key="", token_ids=(1, 2, 3))),
    ] == [
        "  tokens           key       held   where            used  text",
        "› 64–127           01010101  ▒ ×2   device+disk       12s  What is a KV cache?",
        "  12,800–12,863    c8c8c8c8  ▓ ×1   device            12s  words",
        "  192–255          03030303  ░ –    not stored        12s",
        "  128–130          filling   ▓ ×1   device            12s",
    ]
    assert " ".join(row_text(block_heading(100)).split()) == "tokens key parent held where used text"
    assert row(block(1), width=100).split()[1:3] == ["01010101", "abababab"]


@pytest.mark.parametrize("width", [38, 58, 78, 99, 100, 160])
def test_a_heading_stands_above_its_column_at_every_width_whatever_the_rows_say(width: int) -> None:
    """What is right-aligned ends where its heading ends, what is left-aligned begins where that begins."""
    heading = row_text(block_heading(width))
    far = replace(block(15_624, place(Tier.DEVICE, holders=12, stored=True), place(None, 1)), unused_s=12.0)
    for one in (block(0), far):
        line = row(one, "words", width)
        at = {name: heading.index(name) for name in heading.split()}
        assert line[at["tokens"] - 1] == " " != line[at["tokens"]]
        assert line[at["where"] :].startswith("device")
        assert line[at["held"]] in "▓▒"
        assert "used" not in at or line[: at["used"] + 4].endswith(" 12s")
        assert "text" not in at or line[at["text"] :] == "words"[: width - at["text"]]
    figures = row_text(source_heading(width))
    shown = row_text(source_row(sources(SNAPSHOT, NAMES, None)[0], width, is_chosen=False))
    assert shown.index("Trip") == figures.index("sessions")
    assert shown[: figures.index("tokens") + 6].endswith(" 1,260")


@pytest.mark.parametrize("width", [38, 60, 80, 99, 100, 160])
def test_a_line_is_as_wide_as_its_place_whatever_it_says(width: int) -> None:
    rows = [block_row(block(1), "漢字" * 60, width, is_chosen=False, is_moved=True), block_heading(width)]
    rows += [source_row(source, width, is_chosen=False) for source in sources(SNAPSHOT, NAMES, None)]
    assert {cell_len(row_text(row)) for row in rows} == {width}


def test_a_block_that_has_moved_looks_so() -> None:
    moved = block_row(block(1), "", 80, is_chosen=False, is_moved=True)
    assert [text.strip() for text, look in moved if look is Look.MOVED] == ["device"]


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((place(Tier.DEVICE), place(Tier.DEVICE, 1)), "device"),
        ((place(Tier.DEVICE), place(None, 1)), "device 1/2"),
        ((place(Tier.HOST, stored=True), place(Tier.HOST, 1, stored=True)), "host+disk"),
        ((place(Tier.DISK, stored=True),), "disk"),
        ((place(None), place(None, 1)), "not stored"),
    ],
)
def test_a_place_says_where_and_for_how_many_groups(places: tuple[BlockPlace, ...], words: str) -> None:
    assert place_text(block(0, *places)) == words


def test_last_use_is_told_in_seconds_first_and_not_known_is_not_now() -> None:
    times = (0.0, 12.4, 75.0, 7300.0, None)
    assert [since_text(seconds) for seconds in times] == ["now", "12s", "1m", "2h", "–"]


def test_all_that_is_known_of_a_block_is_told_in_full() -> None:
    one = block(0, place(Tier.DEVICE, holders=2, stored=True), place(None, 1), unused_s=0.0)
    one = replace(one, places=(replace(one.places[0], is_pinned=True), one.places[1]))
    lines = [line.rstrip() for line in detail_lines(one, SNAPSHOT.groups, "What is it?", 140)]
    assert lines == [
        f"key     {'00' * 32}",
        f"root    {'ab' * 32}",
        "block of 64 tokens · held by 2 · in use now · pinned · L0… ×3: device, also on disk · "
        "L1… ×3: not stored (outside the window, or evicted)",
        "“What is it?”",
    ]
    assert detail_lines(None, SNAPSHOT.groups, "", 80) == ("",) * 4
    tail = replace(block(2), key="", token_ids=(1, 2, 3))
    key, _, facts, _ = detail_lines(tail, SNAPSHOT.groups, "", 120)
    assert "filling: no key yet" in key
    assert facts.startswith("tail of 3 tokens")


def test_a_state_is_told_by_its_position_and_by_the_groups_that_keep_it() -> None:
    elsewhere = replace(place(None, 1), is_kept=False)
    state = replace(block(1, place(Tier.DEVICE, stored=True), elsewhere), is_state=True, token_ids=(1, 2, 3))
    assert place_text(state) == "device+disk"
    shown = row_text(block_row(state, "Who are you?\n", 100, is_chosen=False, is_moved=False))
    assert "state at 67" in shown
    assert "…Who are you?" in shown
    facts = detail_lines(state, SNAPSHOT.groups, "", 120)[2].rstrip()
    assert facts.startswith("state behind 67 tokens")
    assert facts.endswith("L0… ×3: device, also on disk")


def test_sources_are_branches_by_session_with_what_closing_frees_and_what_is_kept() -> None:
    owners = (
        OwnerUsage(owner="s1", num_sequences=1, freed_bytes=384 << 10),
        OwnerUsage(owner="s2", num_sequences=1, freed_bytes=768 << 10),
    )
    found = sources(replace(SNAPSHOT, owners=owners), NAMES, None)
    shown = [row_text(source_heading(80)).rstrip()]
    shown += [
        row_text(source_row(one, 80, is_chosen=number == 0)).rstrip() for number, one in enumerate(found)
    ]
    assert shown == [
        "   sessions on the device              tokens  shared ▒     own ▓     if deleted",
        "›● Trip to Oslo                         1,260   4.3 MiB   384 KiB        384 KiB",
        " ▸ 漢字の旅                             1,400   4.3 MiB   768 KiB        768 KiB",
        "   cached, unreferenced                                   1.9 MiB",
    ]
    assert found[-1].request == InspectionRequest()


def test_a_session_with_two_branches_says_once_what_closing_it_frees() -> None:
    branches = [HeldTokens(owner="s1", num_tokens=640, num_shared=320) for _ in range(2)]
    owners = (OwnerUsage(owner="s1", num_sequences=2, freed_bytes=7 << 20),)
    found = sources(replace(scripted_snapshot(branches), owners=owners), NAMES, None)
    assert [one.freed_bytes for one in found] == [7 << 20, None, None]


def test_a_conversation_on_screen_that_is_not_live_is_shown_by_its_path() -> None:
    request = InspectionRequest(token_ids=(1, 2, 3))
    blocks = [block(number, place(Tier.DEVICE), place(Tier.DEVICE, 1)) for number in range(2)]
    cached = on_screen(request, "s3", blocks, SNAPSHOT)
    names = replace(NAMES, active=None, of_sessions={"s3": "Rome"})
    shown = sources(SNAPSHOT, names, cached)[2:]
    assert [one.name for one in shown] == ["Rome (on screen)", "cached, unreferenced"]
    assert [one.title("blocks") for one in shown] == ["Blocks of “Rome” (on screen)", "Unreferenced blocks"]
    assert [one.usage.own_bytes for one in shown] == [768 << 10, (1920 - 768) << 10]
    assert shown[0].request == request
    not_there = on_screen(request, "s3", [block(0, place(Tier.DISK), place(None, 1))], SNAPSHOT)
    assert [one.name for one in sources(SNAPSHOT, names, not_there)][2] == "Rome (not loaded yet)"
