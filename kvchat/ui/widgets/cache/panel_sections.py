"""Parts of the cache panel: shadows of layers, recent speed, reuse and bytes, and the room left. Pure."""

from collections.abc import Sequence

from kvchat.engine.api.snapshot import CacheSnapshot, LayerUsage, ShadowUsage
from kvchat.text.cache_usage import capacity_words
from kvchat.text.figures import bytes_text, count_text, percent_text, short_count_text, tiny_bytes_text
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
        (value.rjust(_VALUE_WIDTH), Look.VALUE),
    )


def shadow_rows(layers: Sequence[LayerUsage], width: int, *, expanded: bool) -> list[Row]:
    """Return a row for each layer that is looked at through a shadow, or one for all unless `expanded`, below
    a heading; nothing where no shadow is kept.
    """
    kept = [(layer.layer, layer.shadow) for layer in layers if layer.shadow and layer.shadow.device_bytes]
    if not kept:
        return []
    seen_tokens = max(usage.seen_tokens for _, usage in kept)
    runs = [[one] for one in kept] if expanded else [kept]
    figures = [(_shadow_label(run), _shadow_value([usage for _, usage in run])) for run in runs]
    return [
        _shadow_row("shadows", "beside blocks · chosen again", Look.HEADING, Look.FAINT, width),
        *(_shadow_row(label, value, Look.LABEL, Look.VALUE, width) for label, value in figures),
        _shadow_row("a step looks at", f"{count_text(seen_tokens)} tokens", Look.FAINT, Look.VALUE, width),
    ]


def _shadow_label(run: Sequence[tuple[int, ShadowUsage]]) -> str:
    first, last = run[0][0], run[-1][0]
    if first == last:
        return f"L{first}"
    between = "-" if last - first + 1 == len(run) else "…"
    return f"L{first}{between}L{last} ×{len(run)}"


def _shadow_value(usages: Sequence[ShadowUsage]) -> str:
    device = sum(one.device_bytes for one in usages)
    wanted = sum(one.wanted_chunks for one in usages)
    fetched = sum(one.fetched_chunks for one in usages)
    return f"{bytes_text(device)} · {percent_text(wanted - fetched, wanted)}"


def _shadow_row(label: str, value: str, look: Look, value_look: Look, width: int) -> Row:
    room = max(0, width - len(label) - 1)
    return (label[:width], look), (value[:room].rjust(width - len(label)) if room else "", value_look)
