"""The inspector's lines about what moved in the cache, and why. Pure."""

from collections.abc import Mapping, Sequence
from time import localtime, strftime

from kvchat.engine.api.cache_events import CacheEvent, CacheEventKind
from kvchat.text.figures import count_text, plural, short_bytes_text
from kvchat.text.fit_text import one_line, padded
from kvchat.ui.widgets.cache.row_view import Look, Row, Run

KINDS = (None, *CacheEventKind)
"""What the view may be filtered by; None: all."""

_COLUMNS = {"time": 8, "event": 13, "blocks": 6, "bytes": 6, "tier": 4}
_FIGURES = ("blocks", "bytes")
_WITH_FIGURES = 60
"""Columns from which there is room for them."""
_WIDE = 100
_LOOKS = {
    CacheEventKind.HIT: Look.OWN,
    CacheEventKind.SHARE: Look.SHARED,
    CacheEventKind.COPY: Look.SHARED,
    CacheEventKind.EVICT: Look.DIFFERENT,
}


def event_heading(width: int) -> Row:
    return _line({name: (name, Look.FAINT) for name in _COLUMNS}, "why · whose", width)


def event_row(event: CacheEvent, titles: Mapping[str, str], width: int) -> Row:
    """Return one line of exactly `width` cells.

    Args:
        titles: of sessions, by id.
    """
    cells = {
        "time": (strftime("%H:%M:%S", localtime(event.time_s)), Look.FAINT),
        "event": (event.kind.value, _LOOKS.get(event.kind, Look.LABEL)),
        "blocks": (count_text(event.num_blocks) if event.num_blocks else "", Look.VALUE),
        "bytes": (short_bytes_text(event.num_bytes) if event.num_bytes else "", Look.VALUE),
        "tier": (event.tier.value if event.tier else "", Look.LABEL),
    }
    tokens = plural(event.num_tokens, "token") if event.num_tokens else ""
    parts = (event.reason, tokens, titles.get(event.owner, event.owner))
    return _line(cells, " · ".join(filter(None, parts)), width)


def events_title(events: Sequence[CacheEvent], kind: CacheEventKind | None) -> str:
    return f"Events{'' if kind is None else f' “{kind.value}”'}: {count_text(len(events))}"


def _line(cells: Mapping[str, Run], words: str, width: int) -> Row:
    runs: list[Run] = []
    for name, num_cells in _COLUMNS.items():
        if name in _FIGURES and width < _WITH_FIGURES:
            continue
        text, look = cells[name]
        shown = text.rjust(num_cells) if name in _FIGURES else padded(text, num_cells)
        runs.append((shown + ("  " if width >= _WIDE else " "), look))
    taken = sum(len(text) for text, _ in runs)
    return *runs, (padded(one_line(words), max(0, width - taken)), Look.LABEL)
