"""A plot of points with their intervals as SVG: plain text, no script, no font from elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 30, 64, 50
_COLOURS = ("#d1495b", "#2a6fdb", "#3a9d5d", "#8a5fbf", "#c98a1b")
_STEP = 20
_ROOM = (46, 13)
"""What a name takes, in pixels: another one that would cover it is written lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A figure from `low` to `high` at `x`, and what is written beside it."""

    name: str
    x: float
    y: float
    low: float
    high: float


def points_plot(
    title: str, axes: tuple[str, str], lines: Mapping[str, Sequence[Point]], level: tuple[str, float, float]
) -> str:
    """Return a plot of percentages, logarithmic along.

    Args:
        axes: what is written beside them, along and up.
        lines: points that belong together, by what they are; each line is drawn in the order of its points.
        level: a name, where it stands along, and a figure that all others are compared with.
    """
    places = [level[1], *(point.x for line in lines.values() for point in line)]
    powers = floor(log2(min(places))), ceil(log2(max(places)))
    across = _Across(*powers)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 20, title, weight="bold"),
        _text((_LEFT + right) / 2, _HEIGHT - 12, axes[0], anchor="middle"),
        _text(8, _TOP - 10, axes[1]),
    ]
    for y in range(0, 101, _STEP):
        parts.append(_line(_LEFT, _up(y), right, _up(y)))
        parts.append(_text(_LEFT - 6, _up(y) + 4, f"{y}", anchor="end"))
    for power in range(powers[0], powers[1] + 1):
        parts.append(_line(across.at(2**power), bottom, across.at(2**power), bottom + 4, colour="#888"))
        parts.append(_text(across.at(2**power), bottom + 18, f"{2**power:,}", anchor="middle"))
    parts += _level(across, level)
    written: list[tuple[float, float]] = []
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_text(_LEFT + 130 + 120 * number, 40, name, colour=colour, weight="bold"))
        parts += _drawn(line, colour, across, written)
    return "\n".join([*parts, "</svg>", ""])


class _Across:
    """An axis from one power of 2 to another."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, max(high, low + 1)

    def at(self, value: float) -> float:
        share = (log2(value) - self._low) / (self._high - self._low)
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)


def _up(percent: float) -> float:
    return _HEIGHT - _BOTTOM - percent / 100 * (_HEIGHT - _BOTTOM - _TOP)


def _level(across: _Across, level: tuple[str, float, float]) -> list[str]:
    name, x, y = level
    return [
        _line(_LEFT, _up(y), _WIDTH - _RIGHT, _up(y), colour="#888", dashes="4 4"),
        f'<circle cx="{across.at(x):.1f}" cy="{_up(y):.1f}" r="5" fill="#222"/>',
        _text(across.at(x), _up(y) + 20, name, anchor="middle"),
    ]


def _drawn(
    line: Sequence[Point], colour: str, across: _Across, written: list[tuple[float, float]]
) -> list[str]:
    """Return a line with its points. `written`: where names stand; those of this line are added."""
    path = " ".join(f"{across.at(point.x):.1f},{_up(point.y):.1f}" for point in line)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    for point in line:
        x, y = across.at(point.x), _up(point.y)
        parts.append(_line(x, _up(point.low), x, _up(point.high), colour=colour))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        place = x + 7, y + 14
        while any(
            abs(place[0] - other[0]) < _ROOM[0] and abs(place[1] - other[1]) < _ROOM[1] for other in written
        ):
            place = place[0], place[1] + _ROOM[1]
        written.append(place)
        parts.append(_text(*place, point.name, colour=colour))
    return parts


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#222"
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _line(
    x: float, y: float, end_x: float, end_y: float, *, colour: str = "#e3e3e3", dashes: str = ""
) -> str:
    style = f'stroke="{colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end_x:.1f}" y2="{end_y:.1f}" {style}/>'
