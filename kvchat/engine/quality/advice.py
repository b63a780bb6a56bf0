"""Advice: formats worth a look, and the one to take."""

from collections.abc import Iterable, Sequence

from kvchat.engine.api.loss import FormatLoss

CANDIDATES = ("fp8", "int8", "k=int8,v=int4", "int4", "k=int4,v=int2", "int2")
"""What is measured where nobody says what."""
KEPT_AGREEMENT = 0.99
"""What is kept where nobody says how much."""


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
