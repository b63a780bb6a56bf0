"""Recent history of the cache: speed, reuse and bytes per tier over time, and current moves between tiers."""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvchat.engine.api.snapshot import CacheSnapshot, MovedBytes, Tier

_WINDOW_S, _MIN_SPAN_S = 2.0, 0.3
"""Over how long a rate is measured, and at least."""

LENGTH = 60
"""Samples that are remembered of each sort."""
RATE_INTERVAL_S = 0.5
BYTES_INTERVAL_S = 2.0
SHOWN_S = 1.5
"""How long a move is shown after it was seen."""

ARRIVING = "▼"
LEAVING = "▲"
BOTH = "⇅"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What is shown of the past.

    Args:
        rates: tokens per second, twice a second while anything was written; oldest first.
        reuses: of each request the share of its prompt that was reused.
        tier_bytes: what each tier held every two seconds.
        moving: for each slower tier that bytes go to or come from, which way: down to it or up from it.
    """

    rates: tuple[float, ...] = ()
    reuses: tuple[float, ...] = ()
    tier_bytes: Mapping[Tier, tuple[int, ...]] = field(default_factory=dict)
    moving: Mapping[Tier, str] = field(default_factory=dict)


class History:
    """Remembers the last samples. Cheap: called with every look at the engine."""

    def __init__(self) -> None:
        self._sampled: deque[tuple[float, int]] = deque()
        self._rates: deque[float] = deque(maxlen=LENGTH)
        self._reuses: deque[float] = deque(maxlen=LENGTH)
        self._tier_bytes: defaultdict[Tier, deque[int]] = defaultdict(lambda: deque(maxlen=LENGTH))
        self._rated_s = self._weighed_s = float("-inf")
        self._counts: tuple[int, int] | None = None
        self._moved: MovedBytes | None = None
        self._seen_s: dict[tuple[Tier, str], float] = {}

    @property
    def tokens_per_s(self) -> float | None:
        """The speed of what runs now; None: nothing runs, or too little of it was seen."""
        if not self._sampled:
            return None
        (first_s, first), (last_s, last) = self._sampled[0], self._sampled[-1]
        span_s = last_s - first_s
        return (last - first) / span_s if span_s >= _MIN_SPAN_S and last > first else None

    def observe(self, now_s: float, snapshot: CacheSnapshot) -> Recent:
        self._observe_rate(now_s, snapshot)
        self._observe_reuse(snapshot)
        self._observe_moves(now_s, snapshot.moved)
        if now_s - self._weighed_s >= BYTES_INTERVAL_S:
            self._weighed_s = now_s
            for tier in snapshot.tiers:
                self._tier_bytes[tier.tier].append(tier.used_bytes + tier.cached_bytes)
        return Recent(
            rates=tuple(self._rates),
            reuses=tuple(self._reuses),
            tier_bytes={tier: tuple(values) for tier, values in self._tier_bytes.items()},
            moving=self._moving(now_s),
        )

    def _observe_rate(self, now_s: float, snapshot: CacheSnapshot) -> None:
        sampled = self._sampled
        if not snapshot.num_running or (sampled and snapshot.sampled_tokens < sampled[-1][1]):
            sampled.clear()  # it counts anew
        if snapshot.num_running:
            sampled.append((now_s, snapshot.sampled_tokens))
            while now_s - sampled[0][0] > _WINDOW_S:
                sampled.popleft()
        rate = self.tokens_per_s
        if rate is not None and now_s - self._rated_s >= RATE_INTERVAL_S:
            self._rated_s = now_s
            self._rates.append(rate)

    def _observe_reuse(self, snapshot: CacheSnapshot) -> None:
        counts = snapshot.reused_tokens, snapshot.computed_tokens
        before, self._counts = self._counts or (0, 0), counts
        reused, computed = counts[0] - before[0], counts[1] - before[1]
        if reused >= 0 and computed >= 0 and reused + computed:  # less than before: another engine
            self._reuses.append(reused / (reused + computed))

    def _observe_moves(self, now_s: float, moved: MovedBytes) -> None:
        before, self._moved = self._moved or moved, moved
        ways = (
            (Tier.HOST, ARRIVING, moved.to_host - before.to_host),
            (Tier.HOST, LEAVING, moved.from_host - before.from_host),
            (Tier.DISK, ARRIVING, moved.to_disk - before.to_disk),
            (Tier.DISK, LEAVING, moved.from_disk - before.from_disk),
        )
        for tier, way, num_bytes in ways:
            if num_bytes > 0:
                self._seen_s[tier, way] = now_s

    def _moving(self, now_s: float) -> dict[Tier, str]:
        moving: dict[Tier, str] = {}
        for (tier, way), seen_s in self._seen_s.items():
            if now_s - seen_s < SHOWN_S:
                moving[tier] = BOTH if tier in moving else way
        return moving
