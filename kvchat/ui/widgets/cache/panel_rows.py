"""The cache panel's content: a snapshot in, rows of marked text out. Pure: tests read it as plain lines.

Every layer's bar has the same scale, so many blocks per cell, and is drawn in the order shared, own, cached,
free. A full layer shows its free blocks up to the edge of the panel, a sliding one those that its window can
still take: however much is said, its bar stays short. What a bar shows stands beside it, never in it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.snapshot import STATE_KIND, CacheSnapshot, LayerUsage, SequenceUsage, Tier, TierUsage
from kvchat.text.figures import (
    bytes_text,
    count_text,
    part_text,
    percent_text,
    plural,
    short_count_text,
    tiny_bytes_text,
)
from kvchat.text.fit_text import STEP, path_padded
from kvchat.ui.state.cache_history import Recent
from kvchat.ui.state.cached_prefix import OnScreen
from kvchat.ui.widgets.cache.panel_sections import history_rows, room_rows, shadow_rows
from kvchat.ui.widgets.cache.row_view import MARKS, Look, Row, Run, figure_row

_VALUE_WIDTH = 9
_MIN_BAR_WIDTH = 6
_GOOD_BAR_WIDTH = 16
"""Less than this, and what makes a layer differ is abbreviated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """Layers that are alike, drawn as one row. Counts are blocks of one layer; bytes of all.

    Neighbours, unless fewer than `last - first + 1` are meant: then others stand between them.
    """

    first: int
    last: int
    num_layers: int = 1
    kind: str
    window: int | None
    num_shared: int
    num_own: int
    num_kept: int
    num_total: int
    used_bytes: int
    kept_bytes: int

    @property
    def is_state(self) -> bool:
        """Whether its blocks are recurrent states, each of all tokens before its place."""
        return self.kind == STATE_KIND

    @property
    def are_neighbours(self) -> bool:
        return self.num_layers == self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchNames:
    """What live branches are called: by their own id where that is known, by their session's id otherwise."""

    of_branches: Mapping[SequenceId, str]
    of_sessions: Mapping[str, str]
    active: SequenceId | None = None
    """The branch on screen."""

    def name_of(self, branch: SequenceUsage, among: int = 1) -> str:
        """Return what a branch is called `among` so many live ones of its session.

        One that nobody has named stands beside those with a number: what is read ahead, or asked elsewhere.
        """
        if branch.sequence in self.of_branches:
            return self.of_branches[branch.sequence]
        of_session = self.of_sessions.get(branch.owner) or branch.owner
        if not of_session:
            return f"#{branch.sequence}"
        is_known = among == 1 or branch.sequence == self.active
        return of_session if is_known else f"{of_session}{STEP}#{branch.sequence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What the panel shows besides a snapshot.

    Args:
        context_len: tokens of the conversation on screen.
        on_screen: what the device has of the conversation on screen where no live branch holds it.
    """

    recent: Recent = field(default_factory=Recent)
    context_len: int = 0
    on_screen: OnScreen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelOptions:
    """How to draw. `max_rows`: leave out blank rows rather than have more, then let all alike layers share
    a row, wherever they are. `frozen_at`: since when it has stood still; empty: it follows the engine.
    """

    width: int
    max_rows: int
    expanded: bool = False
    names: BranchNames
    live: Live
    frozen_at: str = ""


def panel_rows(snapshot: CacheSnapshot, options: PanelOptions) -> tuple[Row, ...]:
    """Return the rows of the panel, each at most `options.width` cells wide."""
    if options.live.on_screen is not None:
        snapshot = options.live.on_screen.counted(snapshot)
    rows = _rows(snapshot, options, layer_rows(snapshot, expanded=options.expanded))
    if len(rows) <= options.max_rows:
        return rows
    close = tuple(row for row in rows if row)
    if len(close) <= options.max_rows or options.expanded:
        return close
    return tuple(row for row in _rows(snapshot, options, gathered_rows(snapshot)) if row)


def _rows(snapshot: CacheSnapshot, options: PanelOptions, layers: Sequence[LayerRow]) -> tuple[Row, ...]:
    blank: Row = ()
    live, width = options.live, options.width
    rows = [*_tier_section(snapshot, live.recent.moving, width), blank]
    rows += [*layer_section(layers, snapshot.block_size, width), blank, _legend(width)]
    if shadows := shadow_rows(snapshot.layers, width, expanded=options.expanded):
        rows += [blank, *shadows]
    if branches := _branch_section(snapshot, options):
        rows += [blank, *branches]
    if options.frozen_at:
        rows[:0] = [((f"frozen since {options.frozen_at}", Look.MOVED),), blank]
    rows += [blank, _reused_row(snapshot, width), *history_rows(live.recent, width)]
    return *rows, blank, *room_rows(snapshot, live.context_len, width)


def layer_rows(snapshot: CacheSnapshot, *, expanded: bool) -> tuple[LayerRow, ...]:
    """Return one row per layer, or per run of alike neighbours unless `expanded`."""
    num_blocks = {group.group: group.total_blocks for group in snapshot.groups}
    single = [_layer_row(layer, num_blocks[layer.group]) for layer in snapshot.layers]
    if expanded:
        return tuple(single)
    return tuple(_merged(tuple(rows)) for _, rows in groupby(single, key=_likeness))


def gathered_rows(snapshot: CacheSnapshot) -> tuple[LayerRow, ...]:
    """Return one row for all layers that are alike, neighbours or not, in the order of the first of each."""
    alike: dict[LayerRow, list[LayerRow]] = {}
    for row in layer_rows(snapshot, expanded=True):
        alike.setdefault(_likeness(row), []).append(row)
    return tuple(_merged(rows) for rows in alike.values())


def blocks_per_cell(rows: Sequence[LayerRow], bar_width: int, block_size: int) -> int:
    """Return the finest scale, a power of two, at which every row fits its bar, if there is one."""
    rows = [row for row in rows if not row.is_state]
    most = max((row.num_shared + row.num_own + row.num_kept for row in rows), default=0)
    scale = 1
    while scale < most and any(_needed_cells(row, scale, block_size) > bar_width for row in rows):
        scale *= 2
    return scale


def bar_runs(counts: Sequence[tuple[Look, int]], scale: int) -> tuple[Run, ...]:
    """Return the marks of a bar; what is there at all gets at least one cell."""
    return tuple((MARKS[look] * _cells(count, scale), look) for look, count in counts if count)


def _layer_row(layer: LayerUsage, num_blocks: int) -> LayerRow:
    block_bytes = max(1, layer.total_bytes // max(1, num_blocks))
    num_shared = round(layer.shared_bytes / block_bytes)
    return LayerRow(
        first=layer.layer,
        last=layer.layer,
        kind=layer.kind,
        window=layer.window,
        num_shared=num_shared,
        num_own=round(layer.used_bytes / block_bytes) - num_shared,
        num_kept=round(layer.cached_bytes / block_bytes),
        num_total=num_blocks,
        used_bytes=layer.used_bytes,
        kept_bytes=layer.cached_bytes,
    )


def _likeness(row: LayerRow) -> LayerRow:
    return replace(row, first=0, last=0)


def _merged(rows: Sequence[LayerRow]) -> LayerRow:
    return replace(
        rows[0],
        last=rows[-1].last,
        num_layers=len(rows),
        used_bytes=sum(row.used_bytes for row in rows),
        kept_bytes=sum(row.kept_bytes for row in rows),
    )


def _cells(count: int, scale: float) -> int:
    return max(1, round(count / scale)) if count else 0


def _held_cells(row: LayerRow, scale: int) -> int:
    return _cells(row.num_shared, scale) + _cells(row.num_own, scale)


def _window_cells(row: LayerRow, scale: int, block_size: int) -> int:
    """Return the cells that one running branch can fill: its window may begin inside a block."""
    return _cells(ceil(row.window / block_size) + 1, scale) if row.window else 0


def _needed_cells(row: LayerRow, scale: int, block_size: int) -> int:
    held = max(_held_cells(row, scale), _window_cells(row, scale, block_size))
    return held + _cells(row.num_kept, scale)


def _kind_note(row: LayerRow) -> str:
    if row.window is not None:
        return f"{'chunk' if row.kind == 'chunked' else 'window'} {row.window}"
    if row.is_state:
        return "state"
    return "" if row.kind == "full" else row.kind


def _tier_section(snapshot: CacheSnapshot, moving: Mapping[Tier, str], width: int) -> list[Row]:
    """Return what each tier holds, with bars of one length.

    Args:
        moving: marks in which direction blocks have just moved.
    """
    limited = [tier for tier in snapshot.tiers if tier.total_bytes]
    value_width = max((len(_tier_value(tier)) for tier in limited), default=0)
    return [_tier_row(tier, width, value_width, moving.get(tier.tier, "")) for tier in snapshot.tiers]


def _tier_value(tier: TierUsage) -> str:
    return part_text(tier.used_bytes + tier.cached_bytes, tier.total_bytes or 0)


def _tier_row(tier: TierUsage, width: int, value_width: int, way: str) -> Row:
    name = tier.tier.value
    label_runs: tuple[Run, ...] = ((f"{name:<7}", Look.LABEL),)
    if way:
        label_runs = (f"{name} ", Look.LABEL), (f"{way:<{6 - len(name)}}", Look.MOVED)
    label = "".join(text for text, _ in label_runs)
    if not tier.total_bytes:
        held_bytes = tier.used_bytes + tier.cached_bytes
        note = "no limit" if tier.total_bytes is None else "not used"
        value = bytes_text(held_bytes).rjust(width - len(label) - len(note))
        return *label_runs, (note, Look.FAINT), (value if held_bytes else "", Look.VALUE)
    bar_width = max(_MIN_BAR_WIDTH, width - len(label) - value_width - 1)
    bar = _share_bar((tier.used_bytes, tier.cached_bytes), tier.total_bytes, bar_width)
    return *label_runs, *bar, (_tier_value(tier).rjust(width - len(label) - bar_width), Look.VALUE)


def _share_bar(parts: tuple[int, int], total: int, width: int) -> tuple[Run, ...]:
    """Return a bar of exactly `width` cells that shows used and kept as shares of `total`."""
    unit = max(1.0, total / width)
    used = min(width, _cells(parts[0], unit))
    kept = min(width - used, _cells(parts[1], unit))
    looks = ((Look.OWN, used), (Look.KEPT, kept), (Look.FREE, width - used - kept))
    return tuple((MARKS[look] * count, look) for look, count in looks if count)


def layer_section(layers: Sequence[LayerRow], block_size: int, width: int) -> list[Row]:
    """Return a heading that names the scale, and each layer's label, bar and bytes."""
    digits = len(str(layers[-1].last)) if layers else 1
    value_width = _VALUE_WIDTH + any(row.kept_bytes for row in layers)
    labels = [_layer_label(row, digits) for row in layers]
    label_width = 1 + max((len(label) for label in labels), default=0)
    notes = [_kind_note(row) for row in layers]
    if width - label_width - _width_of(notes) - value_width < _GOOD_BAR_WIDTH:
        notes = [note.replace("window ", "w").replace("chunk ", "c") for note in notes]
    note_width = _width_of(notes)
    bar_width = max(_MIN_BAR_WIDTH, width - label_width - note_width - value_width)
    scale = blocks_per_cell(layers, bar_width, block_size)
    per_cell = f"{count_text(scale * block_size)} tokens"
    if any(row.is_state for row in layers):
        per_cell += " or 1 state"
    rows: list[Row] = [_layer_heading(per_cell, width)]
    for label, note, row in zip(labels, notes, layers, strict=True):
        rows.append(
            (
                (f"{label:<{label_width}}", Look.LABEL),
                (f"{note:<{note_width}}", Look.DIFFERENT if note else Look.FAINT),
                *_layer_bar(row, bar_width, scale, block_size),
                *_layer_value(row, value_width),
            )
        )
    return rows


def _width_of(notes: Sequence[str]) -> int:
    """Return the columns of notes, with a gap behind them; 0 where there are none."""
    longest = max(map(len, notes), default=0)
    return longest + 1 if longest else 0


def _layer_value(row: LayerRow, width: int) -> tuple[Run, ...]:
    """Return what branches hold, and what is kept for none: only that tells what a window saves."""
    if not row.kept_bytes:
        return ((bytes_text(row.used_bytes).rjust(width), Look.VALUE),)
    kept = f"+{tiny_bytes_text(row.kept_bytes)}"
    used = tiny_bytes_text(row.used_bytes).rjust(width - len(kept))
    return (used, Look.VALUE), (kept, Look.FAINT)


def _layer_heading(per_cell: str, width: int) -> Row:
    scale = f"one cell = {per_cell}"
    return ("layers", Look.HEADING), (scale.rjust(width - len("layers")), Look.FAINT)


def _layer_label(row: LayerRow, digits: int) -> str:
    first = f"L{row.first:0{digits}}"
    if row.num_layers == 1:
        return first
    if not row.are_neighbours:
        return f"{first}… ×{row.num_layers}"
    return f"{first}-L{row.last:0{digits}} ×{row.num_layers}"


def _layer_bar(row: LayerRow, bar_width: int, scale: int, block_size: int) -> tuple[Run, ...]:
    """Return the bar and its free part, padded to exactly `bar_width`."""
    counts = (Look.SHARED, row.num_shared), (Look.OWN, row.num_own), (Look.KEPT, row.num_kept)
    scale = 1 if row.is_state else scale
    if row.window:
        num_free = _window_cells(row, scale, block_size) - _held_cells(row, scale)
    else:
        num_free = min(bar_width, _cells(row.num_total, scale)) - sum(_cells(num, scale) for _, num in counts)
    return _padded((*bar_runs(counts, scale), (MARKS[Look.FREE] * num_free, Look.FREE)), bar_width)


def _padded(runs: Sequence[Run], width: int) -> tuple[Run, ...]:
    """Return runs that are exactly `width` cells wide together."""
    fitted: list[Run] = []
    for text, look in runs:
        fitted.append((text[:width], look))
        width -= len(fitted[-1][0])
    return *fitted, (" " * width, Look.FAINT)


def _legend(width: int) -> Row:
    names = ((Look.SHARED, "shared"), (Look.OWN, "own"), (Look.KEPT, "cached"), (Look.FREE, "free"))
    gap = " " * max(1, min(3, (width - 27) // 3))
    runs: list[Run] = []
    for look, name in names:
        runs += [(MARKS[look], look), (f" {name}{gap}", Look.FAINT)]
    return tuple(runs)


def _branch_section(snapshot: CacheSnapshot, options: PanelOptions) -> list[Row]:
    found = options.live.on_screen
    shown = [found.usage] if found is not None and found.usage.num_tokens else []
    branches = [*shown, *snapshot.sequences]
    if not branches:
        return []
    rows: list[Row] = [(("branches on the device", Look.HEADING),)]
    are_shared = any(branch.shared_bytes for branch in branches)
    num_live = Counter(branch.owner for branch in snapshot.sequences)
    for branch in branches:
        is_cached = branch in shown
        name = options.names.name_of(branch, among=1 if is_cached else num_live[branch.owner])
        rows.append(_branch_row(branch, name, options, are_shared=are_shared, is_on_screen=is_cached))
        if is_cached:
            note = f"  on screen, cached: {plural(branch.num_tokens, 'token')}"
            rows.append(((note, Look.FAINT),))
    return rows


def _branch_row(
    branch: SequenceUsage, name: str, options: PanelOptions, *, are_shared: bool, is_on_screen: bool
) -> Row:
    """Return a branch with what closing it would leave (shared), where any has that, and free (own)."""
    is_on_screen = is_on_screen or branch.sequence == options.names.active
    mark = "▸ " if branch.running else "● " if is_on_screen else "  "
    own = f"{bytes_text(branch.own_bytes):>8}"
    shared = f"{bytes_text(branch.shared_bytes):>8}" if branch.shared_bytes else " " * 8
    room = max(4, options.width - len(mark) - (1 + are_shared) * (_VALUE_WIDTH + 2))
    title = path_padded(name, room)
    shares: tuple[Run, ...] = (
        (f" {MARKS[Look.SHARED] if branch.shared_bytes else ' '} ", Look.SHARED),
        (shared, Look.VALUE),
    )
    return (
        (mark + title, Look.LABEL),
        *(shares if are_shared else ()),
        (f" {MARKS[Look.OWN]} ", Look.OWN),
        (own, Look.VALUE),
    )


def _reused_row(snapshot: CacheSnapshot, width: int) -> Row:
    reused, asked = snapshot.reused_tokens, snapshot.reused_tokens + snapshot.computed_tokens
    value = f"{short_count_text(reused)} of {short_count_text(asked)} · {percent_text(reused, asked)}"
    label = "reused (total)"
    return figure_row(label if len(label) + len(value) < width else "reused", value, width)
