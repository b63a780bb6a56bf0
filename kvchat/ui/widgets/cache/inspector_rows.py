"""The inspector's content: whose blocks there are, and each block in a line or in full. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import CacheSnapshot, GroupUsage, Tier
from kvchat.text.figures import UNKNOWN, age_text, bytes_text, count_text, plural
from kvchat.text.fit_text import one_line, padded
from kvchat.ui.widgets.cache.panel_rows import BranchNames
from kvchat.ui.widgets.cache.row_view import MARKS, Look, Row

_KEY_WIDTH = 8
_RANGE_WIDTH = 15
_PLACE_WIDTH = 11
_FIGURE_WIDTH = 10
_FREED_WIDTH = 15
_WITH_PARENT = 100
"""Columns from which the parent has a place of its own."""

KEPT = "kept for nobody"
ON_SCREEN = "on screen, not opened in the engine yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Whose blocks can be shown.

    Args:
        freed_bytes: what closing its session would let go of; None: it is not that session's first line.
    """

    name: str
    request: InspectionRequest
    mark: str = " "
    num_tokens: int | None = None
    shared_bytes: int | None = None
    own_bytes: int | None = None
    freed_bytes: int | None = None

    @property
    def branch(self) -> SequenceId | None:
        return self.request.sequence


def sources(
    snapshot: CacheSnapshot, names: BranchNames, on_screen: InspectionRequest | None
) -> list[RowSource]:
    """Return the live branches, session by session, and what is kept for nobody.

    Args:
        on_screen: the path of the conversation on screen, where no live branch has it.
    """
    found: list[RowSource] = []
    freed = {usage.owner: usage.freed_bytes for usage in snapshot.owners}
    num_live = Counter(branch.owner for branch in snapshot.sequences)
    for branch in sorted(snapshot.sequences, key=lambda usage: usage.owner):
        mark = "▸" if branch.running else "●" if branch.sequence == names.active else " "
        found.append(
            RowSource(
                name=names.name_of(branch, among=num_live[branch.owner]),
                request=InspectionRequest(sequence=branch.sequence),
                mark=mark,
                num_tokens=branch.num_tokens,
                shared_bytes=branch.shared_bytes,
                own_bytes=branch.own_bytes,
                freed_bytes=freed.pop(branch.owner, None),
            )
        )
    if on_screen is not None and names.active not in {source.branch for source in found}:
        found.append(
            RowSource(name=ON_SCREEN, request=on_screen, mark="●", num_tokens=len(on_screen.token_ids))
        )
    kept_bytes = sum(group.cached_blocks * group.block_bytes for group in snapshot.groups)
    found.append(RowSource(name=KEPT, request=InspectionRequest(), own_bytes=kept_bytes))
    return found


def source_heading(width: int) -> Row:
    return _source_line(
        "sessions on the device", ("tokens", "shared ▒", "own ▓", "closing frees"), width, Look.FAINT
    )


def source_row(source: RowSource, width: int, *, is_chosen: bool) -> Row:
    """Return a source with its figures; the last is what closing all of its session would let go of."""
    figures = (
        "" if source.num_tokens is None else count_text(source.num_tokens),
        "" if not source.shared_bytes else bytes_text(source.shared_bytes),
        "" if source.own_bytes is None else bytes_text(source.own_bytes),
        "" if source.freed_bytes is None else bytes_text(source.freed_bytes),
    )
    arrow = "›" if is_chosen else " "
    look = Look.DIFFERENT if is_chosen else Look.HEADING
    return _source_line(f"{arrow}{source.mark} {one_line(source.name)}", figures, width, look)


def _source_line(name: str, figures: Sequence[str], width: int, look: Look) -> Row:
    shown = figures[:-1] if width >= 70 else figures[:1]
    room = max(8, width - _FIGURE_WIDTH * len(shown) - _FREED_WIDTH)
    values = "".join(figure.rjust(_FIGURE_WIDTH) for figure in shown) + figures[-1].rjust(_FREED_WIDTH)
    return (padded(name, room), look), (values, Look.FAINT if look is Look.FAINT else Look.VALUE)


def block_heading(width: int) -> Row:
    parent = f"{'parent':<{_KEY_WIDTH + 2}}" if width >= _WITH_PARENT else ""
    text = (
        f"  {'tokens':<{_RANGE_WIDTH}}{'key':<{_KEY_WIDTH + 2}}{parent}"
        f"{'held':<6}{'where':<{_PLACE_WIDTH}} {'used':>4}  text"
    )
    return ((padded(text, width), Look.FAINT),)


def block_row(block: InspectedBlock, words: str, width: int, *, is_chosen: bool, is_moved: bool) -> Row:
    """Return one line of exactly `width` cells.

    Args:
        is_moved: its tier is another than a moment ago.
    """
    end = block.start + len(block.token_ids) - 1
    span = f"{count_text(block.start)}–{count_text(end)}"
    parent = f"{block.parent[:_KEY_WIDTH]:<{_KEY_WIDTH + 2}}" if width >= _WITH_PARENT else ""
    name = f"{'›' if is_chosen else ' '} {span:<{_RANGE_WIDTH}}"
    key = f"{block.key[:_KEY_WIDTH] or 'written':<{_KEY_WIDTH + 2}}{parent}"
    held = f"×{block.num_holders}" if block.num_holders else UNKNOWN
    place = f"{place_text(block):<{_PLACE_WIDTH}}"
    used = f" {since_text(block.unused_s):>4}  "
    taken = len(name) + len(key) + 6 + len(place) + len(used)
    return (
        (name, Look.DIFFERENT if is_chosen else Look.LABEL),
        (key, Look.FAINT),
        (f"{_shade(block)} {held:<4}", Look.SHARED if block.num_holders > 1 else Look.VALUE),
        (place, Look.MOVED if is_moved else _tier_look(block)),
        (used, Look.FAINT),
        (padded(one_line(words), max(0, width - taken)), Look.LABEL),
    )


def place_text(block: InspectedBlock) -> str:
    """Return where a block is: `device`, `device 1/2` where groups differ, `+disk` where that has it too."""
    tiers = [place.tier for place in block.places]
    fastest = next((tier for tier in Tier if tier in tiers), None)
    if fastest is None:
        return "nowhere"
    num_there = tiers.count(fastest)
    part = "" if num_there == len(tiers) else f" {num_there}/{len(tiers)}"
    stored = [place.is_stored for place in block.places if place.tier is not None]
    return f"{fastest.value}{part}{'+disk' if fastest is not Tier.DISK and all(stored) else ''}"


def since_text(unused_s: float | None) -> str:
    """Return how long ago something was, in at most four characters: `now`, `12s`, `5m`."""
    if unused_s is None:
        return UNKNOWN
    return f"{unused_s:.0f}s" if 1 <= unused_s < 59.5 else age_text(unused_s)


def detail_lines(
    block: InspectedBlock | None, groups: Sequence[GroupUsage], words: str, width: int
) -> tuple[str, ...]:
    """Return all that is known of a block, four lines of at most `width` cells."""
    if block is None:
        return ("", "", "", "")
    key = block.key or "none yet: it is named when it is full, or its branch lets go"
    sort = "block" if all(place.tier is None or block.key for place in block.places) else "tail"
    held = f"held by {block.num_holders or 'nobody'}"
    facts = [f"{sort} of {plural(len(block.token_ids), 'token')}", held, _use_text(block)]
    if any(place.is_pinned for place in block.places):
        facts.append("pinned")
    places = " · ".join(
        f"{_layers_text(group.layers)}: {_place_words(place)}"
        for group, place in zip(groups, block.places, strict=False)
    )
    return (
        padded(f"key     {key}", width),
        padded(f"{'parent' if block.start else 'root  '}  {block.parent}", width),
        padded(f"{' · '.join(facts)} · {places}", width),
        padded(f"“{one_line(words)}”", width),
    )


def _shade(block: InspectedBlock) -> str:
    if block.num_holders > 1:
        return MARKS[Look.SHARED]
    return MARKS[Look.OWN] if block.num_holders else MARKS[Look.KEPT]


def _tier_look(block: InspectedBlock) -> Look:
    if all(place.tier is None for place in block.places):
        return Look.FREE
    return Look.OWN if any(place.tier is Tier.DEVICE for place in block.places) else Look.KEPT


def _use_text(block: InspectedBlock) -> str:
    if block.unused_s is None:
        return "last use not known"
    since = since_text(block.unused_s)
    return "in use now" if since == "now" else f"used {since} ago"


def _layers_text(layers: Sequence[int]) -> str:
    if not layers:
        return "no layer"
    if len(layers) == 1:
        return f"L{layers[0]}"
    are_neighbours = layers[-1] - layers[0] + 1 == len(layers)
    return f"L{layers[0]}-L{layers[-1]}" if are_neighbours else f"L{layers[0]}… ×{len(layers)}"


def _place_words(place: BlockPlace) -> str:
    if place.tier is None:
        return "nowhere (left the window, or given up)"
    return f"{place.tier.value}{', also on disk' if place.is_stored and place.tier is not Tier.DISK else ''}"
