"""The cache in one line, where its panel is not shown: the device as a bar, each layer as a cell."""

from collections.abc import Sequence
from itertools import pairwise

from textual.strip import Strip

from kvchat.engine.api.snapshot import CacheSnapshot, LayerUsage, Tier
from kvchat.text.figures import bytes_text, part_text
from kvchat.ui.widgets.cache.panel_rows import bar_runs
from kvchat.ui.widgets.cache.row_view import MARKS, Look, Row, RowView, Run, row_text

_HEIGHTS = "▁▂▃▄▅▆▇█"
_LEAST_BAR = 6
_MOST_BAR = 24
_GAP = 3
_NOT_LOADED: Row = (("cache not loaded", Look.FAINT),)


class CacheLine(RowView):
    """Draws a snapshot. A click opens the panel."""

    _snapshot: CacheSnapshot | None = None
    _row = _NOT_LOADED

    def show_snapshot(self, snapshot: CacheSnapshot) -> None:
        self._snapshot = snapshot
        self._compose_row()

    def on_resize(self) -> None:
        self._compose_row()

    async def on_click(self) -> None:
        await self.run_action("screen.run('cache')")

    def render_line(self, y: int) -> Strip:
        return self.strip_of(self._row)

    def _compose_row(self) -> None:
        if self._snapshot is None or not self.size.width:
            return
        before, self._row = self._row, compact_row(self._snapshot, self.size.width)
        if self._row != before:
            self.refresh()


def compact_row(snapshot: CacheSnapshot, width: int) -> Row:
    """Return the device's bar, what slower tiers hold where there is room for it, and a cell for each layer.

    A cell is as high as its layer is full beside the fullest one; many layers share cells.
    """
    cells = _layer_cells(snapshot.layers, min(len(snapshot.layers), width // 3))
    layers = (("layers ", Look.LABEL), *cells)
    room = width - len(row_text(layers)) - _GAP
    runs = _device_runs(snapshot, room)
    for tier in snapshot.tiers:
        held = f"   {tier.tier.value} {bytes_text(tier.used_bytes + tier.cached_bytes)}"
        if tier.tier is not Tier.DEVICE and tier.cached_bytes and len(row_text(runs)) + len(held) <= room:
            runs = (*runs, (held, Look.FAINT))
    fill = max(1, width - len(row_text((*runs, *layers))))
    return *runs, (" " * fill, Look.FAINT), *layers


def _device_runs(snapshot: CacheSnapshot, room: int) -> Row:
    device = snapshot.tier(Tier.DEVICE)
    total, shared = device.total_bytes or 1, sum(layer.shared_bytes for layer in snapshot.layers)
    value = f" {part_text(device.used_bytes + device.cached_bytes, total)}"
    width = min(_MOST_BAR, room - len("device ") - len(value))
    if width < _LEAST_BAR:
        width, value = room - len("device "), ""
    parts = ((Look.SHARED, shared), (Look.OWN, device.used_bytes - shared), (Look.KEPT, device.cached_bytes))
    held = bar_runs(parts, max(1, total // width))
    free = MARKS[Look.FREE] * (width - len(row_text(held)))
    return ("device ", Look.LABEL), *held, (free, Look.FREE), (value, Look.VALUE)


def _layer_cells(layers: Sequence[LayerUsage], num_cells: int) -> tuple[Run, ...]:
    bounds = [at * len(layers) // num_cells for at in range(num_cells + 1)] if num_cells else []
    fullest = [max(layers[start:end], key=_held_bytes) for start, end in pairwise(bounds)]
    most = max(map(_held_bytes, fullest), default=0)
    return tuple(_cell(layer, most) for layer in fullest)


def _cell(layer: LayerUsage, most: int) -> Run:
    if not _held_bytes(layer):
        return MARKS[Look.FREE], Look.FREE
    own = layer.used_bytes - layer.shared_bytes
    parts = ((layer.shared_bytes, Look.SHARED), (own, Look.OWN), (layer.cached_bytes, Look.KEPT))
    height = max(1, round(_held_bytes(layer) / most * len(_HEIGHTS)))
    return _HEIGHTS[height - 1], max(parts, key=lambda part: part[0])[1]


def _held_bytes(layer: LayerUsage) -> int:
    return layer.used_bytes + layer.cached_bytes
