"""Timestamps within calendar range and not ahead of the clock, for those that come from elsewhere."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from time import time

from kvchat.session.tree import Branch, Session, Turn

LATEST = 253_402_214_400.0
"""The last day of the year 9999, in every time zone: what counts on from here is a timestamp still."""

STEP_S = 0.001
"""Distance of two timestamps that are told apart."""


def calendar(seconds: float) -> datetime:
    """Return a timestamp as the local clock showed it, the nearest where no calendar has it."""
    return datetime.fromtimestamp(min(max(0.0, seconds), LATEST))


def held_back(times: Iterable[float], now: float) -> dict[float, float]:
    """Return a timestamp for each that is not ahead of `now`; earlier ones stay earlier."""
    allowed: dict[float, float] = {}
    bound = now
    for time_s in sorted(set(times), reverse=True):
        allowed[time_s] = min(time_s, bound)
        if time_s > bound:
            bound -= STEP_S
    return allowed


def not_ahead(
    session: Session, branches: Sequence[Branch], turns: Sequence[Turn]
) -> tuple[Session, list[Branch], list[Turn]]:
    """Return a conversation from elsewhere with no timestamp ahead of the clock, in the same order.

    What is ahead would be the last use of all that is used here for as long.
    """
    now = time()
    used = held_back((session.updated_at, *(branch.updated_at for branch in branches)), now)
    said = held_back((turn.created_at for turn in turns), now)
    return (
        replace(session, created_at=min(session.created_at, now), updated_at=used[session.updated_at]),
        [replace(branch, updated_at=used[branch.updated_at]) for branch in branches],
        [replace(turn, created_at=said[turn.created_at]) for turn in turns],
    )
