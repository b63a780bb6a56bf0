"""A plot of any scenario's figures as SVG: a bar for each row, and how far its rounds lie apart."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from benchmarks.table import Row

_WIDTH, _LABELS, _VALUES = 1200, 640, 130
_TOP, _LINE, _GAP = 40, 18, 14
_BAR_WIDTH = _WIDTH - _LABELS - _VALUES
_COLOUR, _SPREAD = "#2a6fdb", "#222"


def row_plot(title: str, rows: Sequence[Row]) -> str:
    """Return a plot in which rows of one unit stand together and share a scale, which begins at 0."""
    parts, y = [_text(10, 22, title, weight="bold")], float(_TOP)
    for group in _groups(rows):
        most = max(max(row.high for row in group), 0.0)
        for row in group:
            parts += _bar(row, most, y)
            y += _LINE
        y += _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" font-family="sans-serif"'
        f' font-size="12">\n<rect width="{_WIDTH}" height="{y:.0f}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Return rows unit by unit; what stands below a row of another unit says that one's name, too."""
    groups: dict[str, list[Row]] = {}
    above = None
    for row in rows:
        name = row.name.strip()
        if not row.name.startswith(" "):
            above = row
        elif above is not None and above.unit != row.unit:
            name = f"{above.name.strip()}: {name}"
        groups.setdefault(row.unit, []).append(replace(row, name=name))
    return list(groups.values())


def _bar(row: Row, most: float, y: float) -> list[str]:
    def at(value: float) -> float:
        return _LABELS + (_BAR_WIDTH * max(value, 0.0) / most if most else 0.0)

    middle, end = y + _LINE / 2, at(row.median)
    return [
        _text(_LABELS - 8, middle + 4, row.name, anchor="end"),
        f'<rect x="{_LABELS}" y="{y + 3:.1f}" width="{end - _LABELS:.1f}" height="{_LINE - 6}"'
        f' fill="{_COLOUR}"/>',
        f'<line x1="{at(row.low):.1f}" y1="{middle:.1f}" x2="{at(row.high):.1f}" y2="{middle:.1f}"'
        f' stroke="{_SPREAD}" stroke-width="2"/>',
        _text(_WIDTH - _VALUES + 8, middle + 4, f"{row.median:.4g} {row.unit}"),
    ]


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'
    )
