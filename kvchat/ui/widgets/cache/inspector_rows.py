"""The inspector's content: whose blocks there are, each block in a line or in full, and what moved. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import localtime, strftime

from kvchat.engine.api.cache_events import CacheEvent, CacheEventKind
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import CacheSnapshot, GroupUsage, LayerUsage, SequenceUsage, Tier
from kvchat.text.figures import UNKNOWN, age_text, bytes_text, count_text, plural, short_bytes_text
from kvchat.text.fit_text import one_line, padded
from kvchat.ui.state.cached_prefix import OnScreen, cached_usage
from kvchat.ui.widgets.cache.panel_rows import BranchNames
from kvchat.ui.widgets.cache.row_view import MARKS, Look, Row, Run

_KEY_WIDTH = 8
_FIGURE_WIDTH = 10
_FREED_WIDTH = 15
_WITH_USE, _WITH_KEY, _WITH_ALL_PLACES, _WITH_PARENT = 46, 56, 76, 100
"""Columns from which there is room for these."""

UNREFERENCED = "cached, unreferenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """Whose blocks can be shown.

    Args:
        usage: what the device has of it.
        freed_bytes: what closing its session would let go of; None: it is not that session's first line.
    """

    name: str
    request: InspectionRequest
    usage: SequenceUsage
    mark: str = " "
    freed_bytes: int | None = None

    def title(self, what: str) -> str:
        """Return what is shown, `blocks` or `layers`, and whose."""
        if self.name == UNREFERENCED:
            return f"Unreferenced {what}"
        name, bracket, rest = self.name.partition(" (")
        return f"{what.capitalize()} of “{name}”{bracket}{rest}"


def sources(snapshot: CacheSnapshot, names: BranchNames, on_screen: OnScreen | None) -> list[RowSource]:
    """Return the live branches, session by session, and what is cached for nobody.

    Args:
        on_screen: the conversation on screen, where no live branch holds it.
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
                usage=branch,
                mark=mark,
                freed_bytes=freed.pop(branch.owner, None),
            )
        )
    unreferenced = [group.cached_blocks for group in snapshot.groups]
    if on_screen is not None:
        note = "on screen" if on_screen.usage.num_tokens else "not loaded yet"
        name = f"{names.name_of(on_screen.usage)} ({note})"
        found.append(RowSource(name=name, request=on_screen.request, usage=on_screen.usage, mark="●"))
        counted = zip(unreferenced, on_screen.cached_per_group, strict=False)
        unreferenced = [max(0, num - num_shown) for num, num_shown in counted] or unreferenced
    usage = cached_usage("", unreferenced, snapshot)
    return [*found, RowSource(name=UNREFERENCED, request=InspectionRequest(), usage=usage)]


def layers_of(source: RowSource | None, snapshot: CacheSnapshot) -> tuple[LayerUsage, ...]:
    """Return what one source has of each layer; None: all that there is."""
    if source is None:
        return snapshot.layers
    held = snapshot.layer_bytes(source.usage.blocks_per_group)
    shared = snapshot.layer_bytes(source.usage.shared_per_group)
    is_held = source.name != UNREFERENCED
    return tuple(
        replace(
            layer,
            used_bytes=held.get(layer.layer, 0) if is_held else 0,
            shared_bytes=shared.get(layer.layer, 0),
            cached_bytes=0 if is_held else held.get(layer.layer, 0),
        )
        for layer in snapshot.layers
    )


def source_heading(width: int) -> Row:
    figures = ("tokens", "shared ▒", "own ▓", "if deleted")
    return _source_line("   sessions on the device", figures, width, Look.FAINT)


def source_row(source: RowSource, width: int, *, is_chosen: bool) -> Row:
    """Return a source with its figures; the last is what closing all of its session would let go of."""
    usage = source.usage
    figures = (
        count_text(usage.num_tokens) if usage.num_tokens else "",
        bytes_text(usage.shared_bytes) if usage.shared_bytes else "",
        bytes_text(usage.own_bytes),
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
    return _block_line("  ", {name: (name, Look.FAINT) for name in _columns(width)}, "text", width)


def block_row(block: InspectedBlock, words: str, width: int, *, is_chosen: bool, is_moved: bool) -> Row:
    """Return one line of exactly `width` cells.

    Args:
        is_moved: its tier is another than a moment ago.
    """
    end = block.start + len(block.token_ids) - 1
    span = f"{count_text(block.start)}–{count_text(end)}"
    if block.is_state:
        span, words = f"  state at {count_text(end + 1)}", "…" + one_line(words)[-width // 3 :]
    held = f"×{block.num_holders}" if block.num_holders else UNKNOWN
    cells = {
        "tokens": (span, Look.DIFFERENT if is_chosen else Look.LABEL),
        "key": (block.key[:_KEY_WIDTH] or "filling", Look.FAINT),
        "parent": (block.parent[:_KEY_WIDTH], Look.FAINT),
        "held": (f"{_shade(block)} {held}", Look.SHARED if block.num_holders > 1 else Look.VALUE),
        "where": (place_text(block), Look.MOVED if is_moved else _tier_look(block)),
        "used": (f"{since_text(block.unused_s):>4}", Look.FAINT),
    }
    return _block_line("› " if is_chosen else "  ", cells, words, width)


def _columns(width: int) -> Mapping[str, int]:
    """Return the columns that there is room for and the cells of each; the text has the rest."""
    is_wide = width >= _WITH_PARENT
    columns = {"tokens": 19 if is_wide else 15, "key": _KEY_WIDTH, "parent": _KEY_WIDTH, "held": 5}
    columns |= {"where": 15 if width >= _WITH_ALL_PLACES else 11, "used": 4}
    has_room = {"parent": is_wide, "key": width >= _WITH_KEY, "used": width >= _WITH_USE}
    return {name: cells for name, cells in columns.items() if has_room.get(name, True)}


def _block_line(arrow: str, cells: Mapping[str, Run], words: str, width: int) -> Row:
    runs: list[Run] = [(arrow, Look.LABEL)]
    for name, num_cells in _columns(width).items():
        text, look = cells[name]
        runs.append((padded(text, num_cells) + (" " if width < _WITH_KEY else "  "), look))
    taken = sum(len(text) for text, _ in runs)
    return *runs, (padded(one_line(words), max(0, width - taken)), Look.LABEL)


def place_text(block: InspectedBlock) -> str:
    """Return where a block is: `device`, `device 1/2` where groups differ, `+disk` where that has it too."""
    tiers = [place.tier for place in block.places if place.is_kept]
    fastest = next((tier for tier in Tier if tier in tiers), None)
    if fastest is None:
        return "not stored"
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
    key = block.key or "filling: no key yet"
    sort = "block" if all(place.tier is None or block.key for place in block.places) else "tail"
    what = f"{sort} of {plural(len(block.token_ids), 'token')}"
    if block.is_state:
        what = f"state behind {plural(block.start + len(block.token_ids), 'token')}"
    held = f"held by {block.num_holders}" if block.num_holders else "unreferenced"
    facts = [what, held, _use_text(block)]
    if any(place.is_pinned for place in block.places):
        facts.append("pinned")
    places = " · ".join(
        f"{_layers_text(group.layers)}: {_place_words(place)}"
        for group, place in zip(groups, block.places, strict=False)
        if place.is_kept
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
        return "not stored (outside the window, or evicted)"
    return f"{place.tier.value}{', also on disk' if place.is_stored and place.tier is not Tier.DISK else ''}"


KINDS = (None, *CacheEventKind)
"""What the view may be filtered by; None: all."""

_EVENT_COLUMNS = {"time": 8, "event": 13, "blocks": 6, "bytes": 6, "tier": 4}
_FIGURES = ("blocks", "bytes")
_WITH_FIGURES = 60
"""Columns from which there is room for them."""
_WITH_GAPS = 100
_EVENT_LOOKS = {
    CacheEventKind.HIT: Look.OWN,
    CacheEventKind.SHARE: Look.SHARED,
    CacheEventKind.COPY: Look.SHARED,
    CacheEventKind.EVICT: Look.DIFFERENT,
}


def event_heading(width: int) -> Row:
    return _event_line({name: (name, Look.FAINT) for name in _EVENT_COLUMNS}, "why · whose", width)


def event_row(event: CacheEvent, titles: Mapping[str, str], width: int) -> Row:
    """Return one line of exactly `width` cells.

    Args:
        titles: of sessions, by id.
    """
    cells = {
        "time": (strftime("%H:%M:%S", localtime(event.time_s)), Look.FAINT),
        "event": (event.kind.value, _EVENT_LOOKS.get(event.kind, Look.LABEL)),
        "blocks": (count_text(event.num_blocks) if event.num_blocks else "", Look.VALUE),
        "bytes": (short_bytes_text(event.num_bytes) if event.num_bytes else "", Look.VALUE),
        "tier": (event.tier.value if event.tier else "", Look.LABEL),
    }
    tokens = plural(event.num_tokens, "token") if event.num_tokens else ""
    parts = (event.reason, tokens, titles.get(event.owner, event.owner))
    return _event_line(cells, " · ".join(filter(None, parts)), width)


def events_title(events: Sequence[CacheEvent], kind: CacheEventKind | None) -> str:
    return f"Events{'' if kind is None else f' “{kind.value}”'}: {count_text(len(events))}"


def _event_line(cells: Mapping[str, Run], words: str, width: int) -> Row:
    runs: list[Run] = []
    for name, num_cells in _EVENT_COLUMNS.items():
        if name in _FIGURES and width < _WITH_FIGURES:
            continue
        text, look = cells[name]
        shown = text.rjust(num_cells) if name in _FIGURES else padded(text, num_cells)
        runs.append((shown + ("  " if width >= _WITH_GAPS else " "), look))
    taken = sum(len(text) for text, _ in runs)
    return *runs, (padded(one_line(words), max(0, width - taken)), Look.LABEL)
