"""Bytes against loss as a picture: one dot for each format, a line through those that none is better than."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from kvchat.engine.api.loss import FormatLoss

CANDIDATES = ("fp8", "int8", "k=int8,v=int4", "int4", "k=int4,v=int2", "int2")
"""What is measured where nobody says what."""


def frontier(formats: Iterable[FormatLoss]) -> tuple[FormatLoss, ...]:
    """Return the formats than which none takes fewer bytes and loses less, fewest bytes first. Pure."""
    kept: list[FormatLoss] = []
    for one in sorted(formats, key=lambda one: (one.num_bytes, one.loss.divergence)):
        if not kept or one.loss.divergence < kept[-1].loss.divergence:
            kept.append(one)
    return tuple(kept)


def recommended(formats: Sequence[FormatLoss], kept_agreement: float, exact_bytes: int) -> FormatLoss | None:
    """Return the format with the fewest bytes that puts the same token first as the exact cache often enough;
    None where only the exact format does, or where no such format takes fewer bytes than it. Pure.
    """
    enough = [one for one in formats if one.loss.agreement >= kept_agreement and one.num_bytes < exact_bytes]
    return min(enough, key=lambda one: (one.num_bytes, one.loss.divergence), default=None)


def share_bounds(share: float, number: int) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a share that was seen in `number` trials, by Wilson. Pure."""
    assert number > 0
    z = 1.96
    middle = (share + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * (share * (1 - share) / number + z * z / (4 * number * number)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


LEAST_DIVERGENCE = 1e-8
MOST_DIVERGENCE = 1e3
"""Less, or more, is drawn as if it were this: the axis of the losses is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Bytes of a token from nothing on, and the mean divergence in whole powers of ten.

    Args:
        most_bytes: the end of the axis of bytes.
        low, high: the powers of ten at the ends of the other one; `low < high`.
    """

    most_bytes: float
    low: int
    high: int

    def x(self, token_bytes: float) -> float:
        """Return the share of the axis of bytes that lies before a size, 0 to 1. Pure."""
        return token_bytes / self.most_bytes

    def y(self, power: float) -> float:
        """Return the share of the axis of losses that lies below a power of ten, 0 to 1. Pure."""
        return (power - self.low) / (self.high - self.low)

    def place(self, one: FormatLoss) -> tuple[float, float]:
        """Return both shares of a format. Pure."""
        return self.x(one.token_bytes), self.y(log10(_shown(one)))


def axes_of(formats: Sequence[FormatLoss], exact_token_bytes: float) -> Axes:
    """Return axes on which all formats have a place, and the exact one a little before the end. Pure."""
    losses = [_shown(one) for one in formats] or [1.0]
    low, high = floor(log10(min(losses))), ceil(log10(max(losses)))
    return Axes(
        most_bytes=max([exact_token_bytes, *(one.token_bytes for one in formats)]) * 1.05,
        low=low,
        high=max(high, low + 1),
    )


def _shown(one: FormatLoss) -> float:
    return min(max(one.loss.divergence, LEAST_DIVERGENCE), MOST_DIVERGENCE)


WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 150, 44, 56
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#444}.t{font-size:15px;fill:#222}"
    ".g{stroke:#ddd}.f{fill:none;stroke:#3b6ea5;stroke-width:2}.d{fill:#3b6ea5}.o{fill:#b0b0b0}"
    ".a{stroke:#888}.n{fill:#222}"
)


def frontier_svg(formats: Sequence[FormatLoss], title: str, exact_token_bytes: float) -> str:
    """Return an SVG document; shows losses as mean divergence in nats and sizes as bytes per token.

    Args:
        exact_token_bytes: where the exact format, which loses nothing, stands.
    """
    axes = axes_of(formats, exact_token_bytes)
    best = frontier(formats)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_drawn(axes, one) for one in best))
    dots = [_dot(_drawn(axes, one), one.cache_format, is_best=one in best) for one in formats]
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="t" x="{LEFT}" y="24">{escape(title)}</text>',
        *_axis_lines(axes, exact_token_bytes),
        f'<polyline class="f" points="{line}"/>',
        *dots,
        "</svg>",
    )
    return "\n".join(parts) + "\n"


def _drawn(axes: Axes, one: FormatLoss) -> tuple[float, float]:
    x, y = axes.place(one)
    return _across(x), _down(y)


def _axis_lines(axes: Axes, exact_token_bytes: float) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    drawn = []
    for power in range(axes.low, axes.high + 1):
        y = _down(axes.y(power))
        drawn.append(f'<line class="g" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    for step in range(5):
        x, value = _across(step / 4), axes.most_bytes * step / 4
        drawn.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:,.0f}</text>')
    x = _across(axes.x(exact_token_bytes))
    drawn += [
        f'<line class="a" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
        f'<line class="a" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{bottom}"/>',
        f'<line class="a" stroke-dasharray="4 4" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>',
        f'<text x="{x + 6:.1f}" y="{bottom - 8}">exact, no loss</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">bytes per token</text>',
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
