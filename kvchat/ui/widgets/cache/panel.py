"""The cache panel: live occupancy per tier and per layer, drawn line by line."""

from time import strftime

from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip

from kvchat.engine.api.server_cache import ServerCache
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.text.cache_usage import request_words, reuse_words, share_words
from kvchat.text.fit_text import one_line
from kvchat.ui.widgets.cache.panel_rows import BranchNames, Live, PanelOptions, panel_rows
from kvchat.ui.widgets.cache.row_view import MARKS, Look, Row, RowView, figure_row

_LABEL_WIDTH = 9
_VALUE_WIDTH = 8
_MIN_BAR_WIDTH = 4
_WAITING: tuple[Row, ...] = ((("the model is not loaded yet", Look.FAINT),),)


class CachePanel(RowView):
    """Draws a snapshot. Rows that did not change are not drawn again.

    Attributes:
        rows: what is drawn now.
        is_expanded: whether alike neighbouring layers have a row each.
        frozen_at: since when it has stood still, by the clock on the wall; empty: it follows the engine.
    """

    rows: tuple[Row, ...] = _WAITING
    is_expanded = False
    frozen_at = ""
    _snapshot: CacheSnapshot | None = None
    _names = BranchNames(of_branches={}, of_sessions={})
    _live = Live()

    def show_snapshot(self, snapshot: CacheSnapshot, names: BranchNames, live: Live) -> None:
        """Draw `snapshot`, unless the panel stands still."""
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
        self.frozen_at = "" if self.frozen_at else strftime("%H:%M:%S")
        self._compose_rows()

    def toggle_expanded(self) -> None:
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
            frozen_at=self.frozen_at,
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


def served_rows(where: str, served: ServerCache | None, width: int) -> tuple[Row, ...]:
    """Return the rows of the panel where a server answers.

    Args:
        served: None: it reports nothing of its cache.
    """
    head: Row = ((where, Look.FAINT),)
    if served is None:
        return head, (("its cache is unknown", Look.FAINT),)
    return (
        head,
        (),
        _usage_row("device", served.usage, width),
        _usage_row("host", served.host_usage, width),
        (),
        figure_row("reused", reuse_words(served, short=True), width, Look.LABEL),
        figure_row("requests", request_words(served), width, Look.LABEL),
        (),
        (("as its /metrics tell", Look.FAINT),),
    )


def _usage_row(label: str, share: float | None, width: int) -> Row:
    if share is None:
        return figure_row(label, share_words(share), width, Look.LABEL)
    bar_width = max(_MIN_BAR_WIDTH, width - _LABEL_WIDTH - _VALUE_WIDTH)
    used = min(bar_width, max(1, round(share * bar_width))) if share else 0
    return (
        (label.ljust(_LABEL_WIDTH), Look.LABEL),
        (MARKS[Look.OWN] * used, Look.OWN),
        (MARKS[Look.FREE] * (bar_width - used), Look.FREE),
        (share_words(share).rjust(_VALUE_WIDTH), Look.VALUE),
    )
