"""The cache panel's lines, read as text."""

import re
from dataclasses import replace

import pytest

from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import STATE_KIND, CacheSnapshot, Tier
from kvchat.ui.state.cached_prefix import on_screen
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live, PanelOptions, layer_rows, panel_rows
from kvchat.ui.widgets.cache.row_view import row_text
from tests.ui.scripted_engine import FULL, INTERLEAVED, SLIDING, HeldTokens, LayerKind, scripted_snapshot

pytestmark = pytest.mark.pure

NAMELESS = BranchNames(of_branches={}, of_sessions={})
FORKED = (
    HeldTokens(owner="s1", num_tokens=1260, num_shared=1100, running=True),
    HeldTokens(owner="s2", num_tokens=1400, num_shared=1100),
)


def lines(snapshot: CacheSnapshot, width: int = 40, *, expanded: bool = False) -> list[str]:
    names = BranchNames(of_branches={}, of_sessions={"s1": "Trip to Oslo", "s2": "Proof reading"})
    options = PanelOptions(width=width, max_rows=99, expanded=expanded, names=names, live=Live())
    return [row_text(row).rstrip() for row in panel_rows(snapshot, options)]


def test_interleaved_layers_each_have_a_row_and_sliding_ones_are_shorter() -> None:
    shown = lines(scripted_snapshot(FORKED, kept_tokens=300, disk_bytes=3 << 20, reused=1100, computed=160))
    assert "\n".join(shown) == (
        "device ▓░·················· 7.3 / 96 MiB\n"
        "disk   no limit                  3.0 MiB\n"
        "\n"
        "layers             one cell = 128 tokens\n"
        "L0 window 256 ▒▒░░             320K+320K\n"
        "L1            ▒▒▒▒▒▒▒▒▒▓▓▓░░·· 1.5M+320K\n"
        "L2 window 256 ▒▒░░             320K+320K\n"
        "L3            ▒▒▒▒▒▒▒▒▒▓▓▓░░·· 1.5M+320K\n"
        "L4 window 256 ▒▒░░             320K+320K\n"
        "L5            ▒▒▒▒▒▒▒▒▒▓▓▓░░·· 1.5M+320K\n"
        "\n"
        "▒ shared   ▓ own   ░ cached   · free\n"
        "\n"
        "branches on the device\n"
        "▸ Trip to Oslo     ▒  4.3 MiB ▓  384 KiB\n"
        "  Proof reading    ▒  4.3 MiB ▓  768 KiB\n"
        "\n"
        "reused (total)       1.1k of 1.3k · 87 %\n"
        "\n"
        "room for                8.2k more tokens\n"
        "              before the context is full"
    )


def test_latent_layers_say_what_they_keep_and_in_which_format() -> None:
    snapshot = scripted_snapshot(FORKED, layers=[FULL] * 3)
    kinds = ("latent", "latent", "latent fp8")
    layers = zip(snapshot.layers, kinds, strict=True)
    snapshot = replace(snapshot, layers=tuple(replace(layer, kind=kind) for layer, kind in layers))
    rows = [line for line in lines(snapshot) if line.startswith("L")]
    assert [row.split("▒")[0].split()[-1 - row.count("fp8") :] for row in rows] == [
        ["latent"],
        ["latent", "fp8"],
    ]


def test_states_are_counted_one_by_one_beside_layers_of_tokens() -> None:
    """A cell of the others stands for many tokens, and one of theirs for one state."""
    snapshot = scripted_snapshot(FORKED, layers=[FULL] * 2)
    full, state = snapshot.layers
    size = snapshot.groups[0].block_bytes // 2
    sizes = {"used_bytes": 2 * size, "shared_bytes": size, "cached_bytes": 3 * size}
    snapshot = replace(snapshot, layers=(full, replace(state, kind=STATE_KIND, **sizes)))
    rows = lines(snapshot)
    heading = next(line for line in rows if line.startswith("layers"))
    assert heading.endswith("tokens or 1 state")
    assert next(line for line in rows if line.startswith("L1")).startswith("L1 state ▒▓░░░·")


@pytest.mark.parametrize("width", [31, 36, 39, 80])
def test_no_bar_has_a_word_in_it_and_tiers_have_bars_of_one_length(width: int) -> None:
    snapshot = scripted_snapshot(FORKED, kept_tokens=700)
    host = replace(snapshot.tiers[0], tier=Tier.HOST, total_bytes=20 << 30, used_bytes=0)
    shown = lines(replace(snapshot, tiers=(snapshot.tiers[0], host)), width)
    bars = re.findall("[▒▓░·][^▒▓░·]+[▒▓░·]", "\n".join(row for row in shown if row[0:1] in "dhL"))
    assert all("\n" in between for between in bars)
    assert shown[1].split("·")[-1].strip() == "3.0 MiB / 20 GiB"
    tiers = [max(map(len, re.findall("[▒▓░·]+", row))) for row in shown[:2]]
    assert tiers[0] == tiers[1]


def test_a_conversation_on_screen_that_no_branch_holds_is_named_with_its_tokens_and_its_blocks_counted() -> (
    None
):
    snapshot = scripted_snapshot([], kept_tokens=640)
    blocks = [
        InspectedBlock(
            key="k",
            parent="p",
            start=64 * number,
            token_ids=(1,) * 64,
            places=tuple(
                BlockPlace(group=GroupId(group), tier=Tier.DEVICE if number >= first else Tier.DISK)
                for group, first in ((0, 5), (1, 0))
            ),
            unused_s=1.0,
        )
        for number in range(10)
    ]
    cached = on_screen(InspectionRequest(token_ids=(1,) * 640), "s1", blocks, snapshot)
    names = BranchNames(of_branches={}, of_sessions={"s1": "Trip to Oslo"})
    options = PanelOptions(width=40, max_rows=99, names=names, live=Live(on_screen=cached))
    shown = [row_text(row) for row in panel_rows(snapshot, options)]
    at = shown.index("branches on the device")
    assert [row.split() for row in shown[at + 1 : at + 3]] == [
        ["●", "Trip", "to", "Oslo", "▓", "2.8", "MiB"],
        ["on", "screen,", "cached:", "640", "tokens"],
    ]
    bars = [row for row in shown[:at] if row[0:1] in "dL" and "▓" in row]
    assert len(bars) == 7
    assert not any("░" in row for row in bars)
    counted = cached.counted(snapshot)
    assert sum(layer.used_bytes for layer in counted.layers) == counted.tiers[0].used_bytes == 45 << 16
    part_of_it = on_screen(cached.request, "s1", blocks[:8], snapshot).counted(snapshot)
    assert part_of_it.tiers[0].cached_bytes == 12 << 16


@pytest.mark.parametrize("num_tokens", [1, 64, 1000, 8000, 100_000])
def test_a_sliding_layer_keeps_its_length_however_much_is_said(num_tokens: int) -> None:
    snapshot = scripted_snapshot(
        [HeldTokens(owner="s1", num_tokens=num_tokens)], layers=INTERLEAVED, total_blocks=4096
    )
    sliding, full = [line for line in lines(snapshot) if line.startswith("L")][:2]
    assert sliding.count("▓") <= 5
    assert sliding.count("▓") <= full.count("▓")
    assert "window 256" in sliding


def test_what_is_there_at_all_gets_a_cell() -> None:
    snapshot = scripted_snapshot([HeldTokens(owner="s1", num_tokens=1)], total_blocks=100_000)
    assert lines(snapshot)[0].startswith("device ▓·")


def test_blank_rows_are_left_out_where_there_is_no_room() -> None:
    snapshot = scripted_snapshot(FORKED)
    options = PanelOptions(width=40, max_rows=16, names=NAMELESS, live=Live())
    assert all(panel_rows(snapshot, options))
    assert not all(panel_rows(snapshot, replace(options, max_rows=25)))


def test_what_a_window_saves_is_seen_where_blocks_behind_it_are_kept() -> None:
    """Those that a sliding layer has left are kept for a while, so that both kinds may hold as much."""
    snapshot = scripted_snapshot([HeldTokens(owner="s1", num_tokens=9 * 64)], layers=(SLIDING, FULL))
    sliding, full = snapshot.layers
    kept = full.used_bytes - sliding.used_bytes
    rows = lines(replace(snapshot, layers=(replace(sliding, cached_bytes=kept), full)))
    assert [line.split()[-1] for line in rows if line.startswith("L0")] == ["320K+256K"]
    assert [line.split()[-2:] for line in rows if line.startswith("L1")] == [["576", "KiB"]]


def test_branches_are_called_by_their_own_name_and_those_of_one_session_are_told_apart() -> None:
    held = (*FORKED, HeldTokens(owner="s1", num_tokens=64), HeldTokens(owner="s1", num_tokens=64))
    names = BranchNames(
        of_branches={SequenceId(3): "by boat"}, of_sessions={"s1": "Trip to Oslo"}, active=SequenceId(0)
    )
    options = PanelOptions(width=40, max_rows=99, names=names, live=Live())
    rows = panel_rows(scripted_snapshot(held), options)
    shown = [row_text(row)[2:].split("  ")[0] for row in rows if row_text(row)[:2] in ("▸ ", "● ", "  ")]
    assert shown[-5:-1] == ["Trip to Oslo", "s2", "Trip to Os… › #2", "by boat"]


def test_alike_neighbours_share_a_row_that_adds_their_bytes_until_it_is_expanded() -> None:
    snapshot = scripted_snapshot(FORKED, layers=(SLIDING,) * 5 + (FULL,), kept_tokens=700)
    shown = [line for line in lines(snapshot) if line.startswith("L")]
    assert [line.split()[0] for line in shown] == ["L0-L4", "L5"]
    assert "×5" in shown[0]
    merged = layer_rows(snapshot, expanded=False)
    alike = snapshot.layers[:5]
    assert merged[0].used_bytes == sum(layer.used_bytes for layer in alike)
    assert merged[0].kept_bytes == sum(layer.cached_bytes for layer in alike)
    device = snapshot.tiers[0]
    assert sum(row.used_bytes + row.kept_bytes for row in merged) == device.used_bytes + device.cached_bytes
    expanded = [line.split()[0] for line in lines(snapshot, expanded=True) if line.startswith("L")]
    assert expanded == ["L0", "L1", "L2", "L3", "L4", "L5"]
    bigger = LayerKind(window=None, block_bytes=128 * 1024)
    unlike = scripted_snapshot(FORKED, layers=(FULL, FULL, bigger))
    assert [row.num_layers for row in layer_rows(unlike, expanded=False)] == [2, 1]


def test_an_empty_cache_says_what_is_not_known_and_one_without_blocks_is_drawn_too() -> None:
    shown = "\n".join(lines(scripted_snapshot([])))
    assert "0 of 0 · –" in shown
    assert "branches" not in shown
    assert "not used" not in shown
    assert lines(replace(scripted_snapshot([], total_blocks=0), tiers=()))
