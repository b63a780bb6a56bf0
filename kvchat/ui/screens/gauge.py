"""Gauge screen: bytes against loss as a plot, and every figure below it."""

from textwrap import dedent

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kvchat.app.interface_types import Gauged
from kvchat.engine.quality.frontier import recommended
from kvchat.ui.screens.dialog import InterruptingDialog
from kvchat.ui.widgets.cache.frontier_rows import LEGEND, frontier_rows
from kvchat.ui.widgets.cache.row_view import Look, row_content

_AROUND = 4
"""Rows of the screen that are neither plot nor table."""
_MOST_PLOT = 24
_LEAST_PLOT = 12
_STYLES = {Look.FAINT: "$faint", Look.HEADING: "bold"}


class GaugeScreen(InterruptingDialog[None]):
    """Shows what was measured; the plot grows with the terminal, and goes where there is no room for it."""

    answer_keys = {"enter": None, "q": None}

    def __init__(self, found: Gauged) -> None:
        super().__init__()
        self._found = found
        report = found.report
        self._taken = recommended(report.formats, found.kept_agreement, report.exact_bytes)

    def compose(self) -> ComposeResult:
        with Vertical(id="gauge"):
            yield Static("What smaller cache formats lose here", id="gauge-title", markup=False)
            with VerticalScroll(id="gauge-body"):
                yield Static("", id="gauge-plot", markup=False)
                # Tables at the edge: in 80 columns every column counts.
                words = "\n".join(map(dedent, self._found.words.splitlines()))
                yield Static(words, id="gauge-words", markup=False)
            yield Static("↑↓ scroll · esc closes", id="gauge-keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#gauge-body").focus()

    def on_resize(self, event: events.Resize) -> None:
        lines = self._found.words.count("\n") + 1
        height = min(_MOST_PLOT, max(_LEAST_PLOT, event.size.height - lines - _AROUND))
        rows = frontier_rows(self._found.report, self._taken, event.size.width - 4, height)
        place = self.query_one("#gauge-plot", Static)
        place.display = bool(rows)
        legend = Content.styled(LEGEND, "$faint")
        place.update(Content("\n").join([*(row_content(row, _STYLES) for row in rows), legend, Content("")]))
