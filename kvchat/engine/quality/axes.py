"""Axes of the frontier plot: a format's bytes and loss as shares."""

from collections.abc import Sequence
from math import ceil, floor, log10

from kvchat.engine.api.loss import FormatLoss
from kvchat.platform.values import dataclass

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
