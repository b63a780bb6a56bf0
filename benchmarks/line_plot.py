"""A plot of lines as SVG: plain text, no script, no font from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 170, 40, 50
_COLOURS = ("#2a6fdb", "#d1495b", "#3a9d5d", "#8a5fbf")


def line_plot(title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> str:
    """Return a plot with both axes logarithmic.

    Args:
        lines: by what is written beside each; every number is positive.
    """
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    across, up = _Axis(xs, _LEFT, _WIDTH - _RIGHT), _Axis(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, title, weight="bold"),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_name, anchor="middle"),
        _text(8, _TOP - 8, y_name),
    ]
    for value in across.ticks:
        at = across.at(value)
        parts.append(_line(at, _TOP, at, _HEIGHT - _BOTTOM))
        parts.append(_text(at, _HEIGHT - _BOTTOM + 16, f"{value:g}", anchor="middle"))
    for value in up.ticks:
        at = up.at(value)
        parts.append(_line(_LEFT, at, _WIDTH - _RIGHT, at))
        parts.append(_text(_LEFT - 6, at + 4, f"{value:g}", anchor="end"))
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        last_x, last_y = points[-1]
        parts.append(_text(across.at(last_x) + 8, up.at(last_y) + 4, name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """A logarithmic axis over some values, from `start` to `end` in the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = log10(min(values)), log10(max(values))
        if self._high - self._low < 0.01:
            self._low, self._high = self._low - 0.5, self._high + 0.5
        self._start, self._end = start, end
        exponents = range(floor(self._low), ceil(self._high) + 1)
        steps = [base * 10.0**exponent for exponent in exponents for base in (1, 2, 5)]
        self.ticks = [step for step in steps if self._low - 0.02 <= log10(step) <= self._high + 0.02]

    def at(self, value: float) -> float:
        part = (log10(value) - self._low) / (self._high - self._low)
        return self._start + part * (self._end - self._start)


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#222"
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _line(x: float, y: float, end_x: float, end_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end_x:.1f}" y2="{end_y:.1f}" stroke="#e3e3e3"/>'
