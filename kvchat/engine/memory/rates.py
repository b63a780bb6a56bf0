"""Compute and transfer rates of this machine, estimated while it runs.

Whether a block is worth keeping on a slower tier, and whether a stored prefix is worth loading, are questions
of two times. Each estimate is the median of the last few measurements of its kind, so that one slow step (a
busy machine, a first call that compiles) changes nothing. Any thread may observe and ask.

What an earlier process has measured counts until this one has measured `LEAST_OWN` times by itself.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from threading import Lock
from typing import Final

from kvchat.engine.api.snapshot import Tier

WINDOW: Final = 15
"""Measurements of one kind that count."""
LEAST_OWN: Final = 3
"""So many measurements of a process replace what earlier ones have measured of the same kind."""
LEAST_TOKENS: Final = 8
"""Smaller steps say nothing about prefill: their time is that of reading the weights once."""
FIRST_EDGE: Final = 256
"""Positions before this one are one bucket; behind it each bucket is twice as long as the one before."""

# Before the first measurement computing is taken to be slow and moving to be fast: a block that is kept in
# vain costs some memory, one that is dropped in vain costs a wait.
PRIOR_TOKEN_S: Final = 1 / 500
PRIOR_BYTE_S: Final = {Tier.DEVICE: 1 / 8e9, Tier.HOST: 1 / 2e9, Tier.DISK: 1 / 200e6}


class Direction(StrEnum):
    """Which way bytes go, seen from the device."""

    LOAD = "load"
    STORE = "store"


Samples = tuple[float, ...]
"""Measurements, the newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The last measurements of each kind, at most `WINDOW` of them.

    Args:
        prefill: seconds for a token, by bucket of positions.
        moves: seconds for a byte.
    """

    prefill: Mapping[int, Samples] = field(default_factory=dict)
    moves: Mapping[tuple[Tier, Direction], Samples] = field(default_factory=dict)


class Rates:
    """Running estimates of prefill and of every tier's moves. Nothing here knows a clock.

    Args:
        before: what an earlier process has measured.
    """

    def __init__(self, before: Measured | None = None) -> None:
        before = before or Measured()
        self._prefill = {bucket: _Estimate(samples) for bucket, samples in before.prefill.items()}
        self._moves = {kind: _Estimate(samples) for kind, samples in before.moves.items()}
        self._moved_bytes: Counter[tuple[Tier, Direction]] = Counter()
        self._lock = Lock()

    def observe_prefill(self, num_tokens: int, context_len: int, seconds: float) -> None:
        """Note that computing `num_tokens` tokens behind `context_len` others took `seconds`.

        Steps of fewer than `LEAST_TOKENS` tokens and times that are not positive are ignored.
        """
        if num_tokens < LEAST_TOKENS or not seconds > 0:
            return
        bucket = _bucket(context_len + num_tokens // 2)
        with self._lock:
            self._prefill.setdefault(bucket, _Estimate()).add(seconds / num_tokens)

    def observe_move(self, tier: Tier, direction: Direction, num_bytes: int, seconds: float) -> None:
        """Note that moving `num_bytes` between the device and `tier` took `seconds`."""
        if num_bytes <= 0:
            return
        with self._lock:
            self._moved_bytes[tier, direction] += num_bytes
            if not seconds > 0:
                return
            self._moves.setdefault((tier, direction), _Estimate()).add(seconds / num_bytes)

    def measured(self) -> Measured:
        """Return the last measurements, those of earlier processes included. Pure."""
        with self._lock:
            return Measured(
                prefill={bucket: estimate.recent for bucket, estimate in self._prefill.items()},
                moves={kind: estimate.recent for kind, estimate in self._moves.items()},
            )

    def moved_bytes(self, tier: Tier, direction: Direction) -> int:
        """Return how many bytes moves were observed to bring this way, since the engine started. Pure."""
        with self._lock:
            return self._moved_bytes[tier, direction]

    def seconds_to_compute(self, num_tokens: int, context_len: int = 0) -> float:
        """Return how long prefilling `num_tokens` tokens behind `context_len` others would take. Pure.

        A length that was never measured counts as the nearest one that was.
        """
        with self._lock:
            return sum(length * self._token_s(bucket) for bucket, length in _spans(context_len, num_tokens))

    def seconds_to_load(self, tier: Tier, num_bytes: int) -> float:
        """Return how long bringing `num_bytes` from `tier` to the device would take. Pure."""
        with self._lock:
            estimate = self._moves.get((tier, Direction.LOAD))
        return num_bytes * (estimate.value if estimate else PRIOR_BYTE_S[tier])

    def _token_s(self, bucket: int) -> float:
        if not self._prefill:
            return PRIOR_TOKEN_S
        nearest = min(self._prefill, key=lambda known: (abs(known - bucket), known))
        return self._prefill[nearest].value


class _Estimate:
    """The median of the last measurements."""

    def __init__(self, before: Samples = ()) -> None:
        self._before = before
        self._own: deque[float] = deque(maxlen=WINDOW)
        self.value = median(before) if before else 0.0

    def add(self, value: float) -> None:
        self._own.append(value)
        self.value = median(self._own if len(self._own) >= LEAST_OWN else self.recent)

    @property
    def recent(self) -> Samples:
        return (*self._before, *self._own)[-WINDOW:]


def _bucket(position: int) -> int:
    return (position // FIRST_EDGE).bit_length()


def _spans(start: int, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield (bucket, tokens in it) of the positions `[start, start + num_tokens)`."""
    end = start + num_tokens
    while start < end:
        bucket = _bucket(start)
        stop = min(end, FIRST_EDGE << bucket)
        yield bucket, stop - start
        start = stop
