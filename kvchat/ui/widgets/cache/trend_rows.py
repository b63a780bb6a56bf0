"""The part of the cache panel that has a past: speed, reuse and bytes over time; and the room left. Pure."""

from collections.abc import Sequence

from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.cache_usage import capacity_words
from kvchat.text.figures import UNKNOWN, short_count_text, tiny_bytes_text
from kvchat.ui.state.cache_history import Recent
from kvchat.ui.widgets.cache.row_view import Look, Row, figure_row

_STEPS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 9
_VALUE_WIDTH = 7


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """Return the last values as bars of eight heights, one cell each, filled up on the left.

    Args:
        top: the value that has the full height; None: the largest one shown.
    """
    shown = values[-width:] if width > 0 else ()
    highest = max(shown, default=0.0) if top is None else top
    steps = [_STEPS[min(7, int(value / highest * 8))] if highest > 0 else _STEPS[0] for value in shown]
    return "".join(steps).rjust(max(0, width))


def history_rows(recent: Recent, width: int) -> list[Row]:
    """Return tokens per second, reuse, and the bytes of tiers as lines; nothing of what was not.

    Bytes are shown where they have changed; the figure beside them is their highest, at the full height.
    """
    rows = []
    if recent.rates:
        rows.append(_line("tok/s", recent.rates, f"{recent.rates[-1]:.0f}", width))
    if recent.reuses:
        rows.append(_line("reuse", recent.reuses, f"{100 * recent.reuses[-1]:.0f} %", width, is_share=True))
    for tier, values in recent.tier_bytes.items():
        if len(set(values)) > 1:
            rows.append(_line(tier.value, values, f"≤ {tiny_bytes_text(max(values))}", width))
    return rows


def room_rows(snapshot: CacheSnapshot, context_len: int, width: int) -> list[Row]:
    """Return how much more can be said, and what gives way then."""
    num_tokens, before = capacity_words(snapshot, context_len)
    room = figure_row("room for", f"{short_count_text(num_tokens)} more tokens", width)
    return [room, ((before.rjust(width), Look.FAINT),)]


def _line(label: str, values: Sequence[float], value: str, width: int, *, is_share: bool = False) -> Row:
    line = sparkline(values, max(4, width - _LABEL_WIDTH - _VALUE_WIDTH), 1.0 if is_share else None)
    return (
        (label.ljust(_LABEL_WIDTH), Look.FAINT),
        (line, Look.KEPT if is_share else Look.OWN),
        ((value or UNKNOWN).rjust(_VALUE_WIDTH), Look.VALUE),
    )
