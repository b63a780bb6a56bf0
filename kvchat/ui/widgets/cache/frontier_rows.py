"""Bytes against loss in cells of a terminal: a mark for each format, dots between those none is better than.

Marks differ in shape, so that one colour says as much as several.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from rich.cells import cell_len

from kvchat.engine.api.loss import FormatLoss, GaugeReport
from kvchat.engine.quality.frontier import axes_of, frontier
from kvchat.text.fit_text import fitted
from kvchat.ui.widgets.cache.row_view import Look, Row

TAKEN, GOOD, BEATEN = "◆", "●", "○"
LEGEND = f"{TAKEN} recommended   {GOOD} Pareto-optimal   {BEATEN} dominated"

LEAST_WIDTH, LEAST_HEIGHT = 44, 9
_MARGIN = 7
"""Columns for the powers of ten and their axis."""
_AROUND = 3
"""Rows above and below the plot: what the losses are, the axis of bytes, its numbers."""
_NUM_TICKS = 4
_LINE, _RULE = "·", "┊"

_Cell = tuple[int, int]
"""Row from the top, column from the left."""


def frontier_rows(report: GaugeReport, taken: FormatLoss | None, width: int, height: int) -> Sequence[Row]:
    """Return the plot in exactly `height` rows of `width` cells; none where that is too small. Pure.

    Args:
        taken: the format that is recommended; None: the exact one is.
    """
    if width < LEAST_WIDTH or height < LEAST_HEIGHT or not report.formats:
        return ()
    axes = axes_of(report.formats, report.exact_token_bytes)
    plot = _Plot(width - _MARGIN, height - _AROUND)
    plot.rule(axes.x(report.exact_token_bytes), "exact" if taken else f"{TAKEN} exact")
    best = frontier(report.formats)
    plot.join([axes.place(one) for one in best])
    for one in report.formats:
        mark = TAKEN if one is taken else GOOD if one in best else BEATEN
        plot.mark(axes.place(one), mark, one.cache_format)
    plot.write_names()
    labels = {plot.row_of(axes.y(power)): f"1e{power}" for power in range(axes.high, axes.low - 1, -1)}
    head = ((fitted("loss: divergence, nats of a token", width).ljust(width), Look.FAINT),)
    return (head, *_framed(plot, labels), *_bottom(plot.width, axes.most_bytes))


def _framed(plot: "_Plot", labels: dict[int, str]) -> Iterator[Row]:
    for number, row in enumerate(plot.rows()):
        label = labels.get(number, "")
        yield ((f"{label:>{_MARGIN - 1}}{'┤' if label else '│'}", Look.FAINT), *row)


def _bottom(width: int, most_bytes: float) -> tuple[Row, Row]:
    axis, numbers = ["─"] * width, [" "] * (width + _MARGIN)
    name = " bytes per token"
    for step in range(_NUM_TICKS):
        at = round(step / _NUM_TICKS * (width - 1))
        text = f"{most_bytes * step / _NUM_TICKS:,.0f}"
        start = _MARGIN + at - len(text) // 2
        if start + len(text) + len(name) <= len(numbers):
            axis[at] = "┴"
            numbers[start : start + len(text)] = text
    numbers[-len(name) :] = name
    return (((" " * (_MARGIN - 1) + "└" + "".join(axis), Look.FAINT),), (("".join(numbers), Look.FAINT),))


class _Plot:
    """Cells with marks, then names beside them where there is room; a mark is never written over."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self._height = height
        self._cells: dict[_Cell, tuple[str, Look]] = {}
        self._marks: dict[_Cell, list[tuple[str, str]]] = {}
        self._rule = 0, ""

    def row_of(self, share: float) -> int:
        return round((1 - share) * (self._height - 1))

    def rule(self, share: float, name: str) -> None:
        """Draw where a size is that loses nothing."""
        column = round(share * (self.width - 1))
        for row in range(self._height):
            self._cells[row, column] = (_RULE, Look.FAINT)
        self._rule = column, name

    def join(self, places: Sequence[tuple[float, float]]) -> None:
        for (row, column), (next_row, next_column) in pairwise(map(self._cell, places)):
            steps = max(abs(next_row - row), abs(next_column - column))
            for step in range(1, steps):
                share = step / steps
                at = round(row + share * (next_row - row)), round(column + share * (next_column - column))
                self._cells.setdefault(at, (_LINE, Look.FAINT))

    def mark(self, place: tuple[float, float], mark: str, name: str) -> None:
        self._marks.setdefault(self._cell(place), []).append((mark, name))

    def write_names(self) -> None:
        """Put down the marks, then each name where it hides nothing: beside, or a row above or below."""
        for at, marked in self._marks.items():
            shown = min((mark for mark, _ in marked), key=(TAKEN, GOOD, BEATEN).index)
            self._write(at, shown, _look(shown))
        named = sorted(self._marks.items(), key=lambda one: all(mark != TAKEN for mark, _ in one[1]))
        for (row, column), marked in named:
            text = ", ".join(name for _, name in marked)
            right, left = column + 2, column - 1 - cell_len(text)
            tried = [(row, right), (row, left)]
            tried += [(row + step, start) for step in (-1, 1) for start in (right, left, column)]
            is_taken = any(mark == TAKEN for mark, _ in marked)
            self._write_first(tried, text, Look.HEADING if is_taken else Look.LABEL)
        column, name = self._rule
        beside = [(row, column - len(name) - 1) for row in reversed(range(self._height))]
        self._write_first(beside, name, Look.HEADING if name.startswith(TAKEN) else Look.FAINT)

    def rows(self) -> Iterator[Row]:
        for row in range(self._height):
            cells = [self._cells.get((row, column), (" ", Look.FREE)) for column in range(self.width)]
            yield tuple(
                ("".join(text for text, _ in run), look)
                for look, run in groupby(cells, key=lambda cell: cell[1])
            )

    def _cell(self, place: tuple[float, float]) -> _Cell:
        x, y = place
        return self.row_of(y), round(x * (self.width - 1))

    def _write(self, at: _Cell, text: str, look: Look) -> None:
        row, column = at
        for offset, character in enumerate(text):
            self._cells[row, column + offset] = (character, look)

    def _write_first(self, places: Sequence[_Cell], text: str, look: Look) -> None:
        """Write a name in the first place where it hides nothing, if there is one."""
        for row, start in places:
            if not self._is_free((row, start), text):
                continue
            self._write((row, start), text, look)
            # Dots that touch it would read as a part of it.
            for cell in ((row, start - 1), (row, start + cell_len(text))):
                if self._cells.get(cell, ("", Look.FREE))[0] == _LINE:
                    del self._cells[cell]
            return

    def _is_free(self, at: _Cell, text: str) -> bool:
        row, start = at
        end = start + cell_len(text)
        inside = 0 <= row < self._height and start >= 0 and end <= self.width
        # A cell of air on both sides: two names in a row would read as one.
        return (
            inside
            and all(self._gives_way((row, column), _LINE) for column in (start - 1, end))
            and all(self._gives_way((row, column), _LINE + _RULE) for column in range(start, end))
        )

    def _gives_way(self, at: _Cell, which: str) -> bool:
        cell = self._cells.get(at)
        return cell is None or cell[0] in which


def _look(mark: str) -> Look:
    return Look.HEADING if mark == TAKEN else Look.FAINT if mark == BEATEN else Look.VALUE
