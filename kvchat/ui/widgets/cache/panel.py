"""The cache panel: live occupancy per tier and per layer, drawn line by line."""

from dataclasses import replace
from time import strftime

from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip

from kvchat.engine.api.server_cache import ServerCache
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.fit_text import one_line
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live, PanelOptions, panel_rows
from kvchat.ui.widgets.cache.row_view import Look, Row, RowView
from kvchat.ui.widgets.cache.server_rows import served_rows

_WAITING: tuple[Row, ...] = ((("the model is not loaded yet", Look.FAINT),),)


class CachePanel(RowView):
    """Draws a snapshot. Rows that did not change are not drawn again.

    Attributes:
        rows: what is drawn now.
        is_expanded: whether alike neighbouring layers have a row each.
        frozen_at: since when it has stood still, by the clock on the wall; empty: it follows the engine.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: tuple[Row, ...] = _WAITING
        self.is_expanded = False
        self.frozen_at = ""
        self._snapshot: CacheSnapshot | None = None
        self._names = BranchNames(of_branches={}, of_sessions={})
        self._live: Live | None = None

    def show_snapshot(self, snapshot: CacheSnapshot, names: BranchNames, live: Live | None = None) -> None:
        """Draw `snapshot`, unless the panel stands still. `live`: None leaves it as it was."""
        live = live or self._live
        if self.frozen_at or (snapshot, names, live) == (self._snapshot, self._names, self._live):
            return
        self._snapshot, self._names, self._live = snapshot, names, live
        self._compose_rows()

    def show_elsewhere(self, where: str, served: ServerCache | None = None) -> None:
        """Say that a server answers, and what it reports of its cache; None: nothing of it is known."""
        if self.frozen_at:
            return
        width = self.scrollable_content_region.width
        before, self.rows = self.rows, served_rows(one_line(where), served, width)
        self._refresh_changed(before)

    def toggle_frozen(self) -> None:
        """Let the panel stand still, or follow the engine again."""
        self.frozen_at = "" if self.frozen_at else strftime("%H:%M:%S")
        if self._live is not None:
            self._live = replace(self._live, frozen_at=self.frozen_at)
        self._compose_rows()

    def toggle_expanded(self) -> None:
        """Give each layer its own row, or let alike neighbours share one."""
        self.is_expanded = not self.is_expanded
        self._compose_rows()

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        return self.strip_of(self.rows[line] if line < len(self.rows) else ())

    def on_resize(self, event: events.Resize) -> None:
        self._compose_rows()

    def on_click(self) -> None:
        self.toggle_expanded()

    def _compose_rows(self) -> None:
        region = self.scrollable_content_region
        if self._snapshot is None or region.width <= 0:
            return
        self._show_rows(region, region.width)
        if len(self.rows) > region.height and not self.show_vertical_scrollbar:
            self._show_rows(region, region.width - self.styles.scrollbar_size_vertical)

    def _show_rows(self, region: Region, width: int) -> None:
        assert self._snapshot is not None
        options = PanelOptions(
            width=width,
            max_rows=region.height,
            expanded=self.is_expanded,
            names=self._names,
            live=self._live,
        )
        before, self.rows = self.rows, panel_rows(self._snapshot, options)
        self._refresh_changed(before)

    def _refresh_changed(self, before: tuple[Row, ...]) -> None:
        if len(before) != len(self.rows):
            self.virtual_size = Size(0, len(self.rows))
            self.refresh()
            return
        top = self.scroll_offset.y
        regions = [
            Region(0, index - top, self.size.width, 1)
            for index, (old, new) in enumerate(zip(before, self.rows, strict=True))
            if old != new and 0 <= index - top < self.size.height
        ]
        if regions:
            self.refresh(*regions)
