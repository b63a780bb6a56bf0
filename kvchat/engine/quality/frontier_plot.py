"""Bytes against loss as a picture: one dot for each format, a line through those that none is better than."""

from collections.abc import Sequence
from html import escape

from kvchat.engine.api.loss import FormatLoss
from kvchat.engine.quality.advice import frontier
from kvchat.engine.quality.axes import Axes, axes_of

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 150, 44, 56
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#444}.t{font-size:15px;fill:#222}"
    ".g{stroke:#ddd}.f{fill:none;stroke:#3b6ea5;stroke-width:2}.d{fill:#3b6ea5}.o{fill:#b0b0b0}"
    ".a{stroke:#888}.n{fill:#222}"
)


def frontier_svg(formats: Sequence[FormatLoss], title: str, exact_token_bytes: float) -> str:
    """Return an SVG document; shows losses as mean divergence in nats and sizes as bytes of a token.

    Args:
        exact_token_bytes: where the exact format, which loses nothing, stands.
    """
    axes = _DrawnAxes(axes_of(formats, exact_token_bytes), exact_token_bytes)
    best = frontier(formats)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(axes.place, best))
    dots = [_dot(axes.place(one), one.cache_format, is_best=one in best) for one in formats]
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="t" x="{LEFT}" y="24">{escape(title)}</text>',
        *axes.lines(),
        f'<polyline class="f" points="{line}"/>',
        *dots,
        "</svg>",
    )
    return "\n".join(parts) + "\n"


class _DrawnAxes:
    def __init__(self, axes: Axes, exact_token_bytes: float) -> None:
        self._axes = axes
        self._exact = exact_token_bytes

    def place(self, one: FormatLoss) -> tuple[float, float]:
        x, y = self._axes.place(one)
        return _across(x), _down(y)

    def lines(self) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        drawn = []
        for power in range(self._axes.low, self._axes.high + 1):
            y = _down(self._axes.y(power))
            drawn.append(f'<line class="g" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
        for step in range(5):
            x, value = _across(step / 4), self._axes.most_bytes * step / 4
            drawn.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:,.0f}</text>')
        x = _across(self._axes.x(self._exact))
        drawn += [
            f'<line class="a" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
            f'<line class="a" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{bottom}"/>',
            f'<line class="a" stroke-dasharray="4 4" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>',
            f'<text x="{x + 6:.1f}" y="{bottom - 8}">exact, no loss</text>',
            f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">bytes of a token</text>',
            f'<text transform="translate(20 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
            "divergence, nats of a token</text>",
        ]
        return drawn


def _across(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _dot(place: tuple[float, float], name: str, *, is_best: bool) -> str:
    x, y = place
    kind = "d" if is_best else "o"
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text class="n" x="{x + 9:.1f}" y="{y - 6:.1f}">{escape(name)}</text>'
    )
