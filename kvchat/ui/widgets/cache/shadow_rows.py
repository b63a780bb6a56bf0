"""The part of the cache panel about shadows: what each layer's take, and how they are used. Pure."""

from collections.abc import Sequence

from kvchat.engine.api.snapshot import LayerUsage, ShadowUsage
from kvchat.text.figures import bytes_text, count_text, percent_text
from kvchat.ui.widgets.cache.row_view import Look, Row


def shadow_rows(layers: Sequence[LayerUsage], width: int, *, expanded: bool) -> list[Row]:
    """Return a row for each layer that is looked at through a shadow, or one for all unless `expanded`, below
    a heading; nothing where no shadow is kept.
    """
    kept = [(layer.layer, layer.shadow) for layer in layers if layer.shadow and layer.shadow.device_bytes]
    if not kept:
        return []
    seen_tokens = max(usage.seen_tokens for _, usage in kept)
    runs = [[one] for one in kept] if expanded else [kept]
    places = "device + host" if any(usage.host_bytes for _, usage in kept) else "beside blocks"
    return [
        _row("shadows", f"{places} · chosen again", Look.HEADING, Look.FAINT, width),
        *(
            _row(_label(run), _value([usage for _, usage in run]), Look.LABEL, Look.VALUE, width)
            for run in runs
        ),
        _row("a step looks at", f"{count_text(seen_tokens)} tokens", Look.FAINT, Look.VALUE, width),
    ]


def _label(run: Sequence[tuple[int, ShadowUsage]]) -> str:
    first, last = run[0][0], run[-1][0]
    if first == last:
        return f"L{first}"
    between = "-" if last - first + 1 == len(run) else "…"
    return f"L{first}{between}L{last} ×{len(run)}"


def _value(usages: Sequence[ShadowUsage]) -> str:
    device = sum(one.device_bytes for one in usages)
    host = sum(one.host_bytes for one in usages)
    wanted = sum(one.wanted_chunks for one in usages)
    fetched = sum(one.fetched_chunks for one in usages)
    taken = bytes_text(device) + (f" + {bytes_text(host)}" if host else "")
    return f"{taken} · {percent_text(wanted - fetched, wanted)}"


def _row(label: str, value: str, look: Look, value_look: Look, width: int) -> Row:
    room = max(0, width - len(label) - 1)
    return (label[:width], look), (value[:room].rjust(width - len(label)) if room else "", value_look)
