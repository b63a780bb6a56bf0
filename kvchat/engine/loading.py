"""Requests whose prompt is stored on slower tiers: who waits for what, and what the engine does meanwhile.

A request that can reuse stored blocks waits until a flight has brought them to the device; everybody else
goes on. Where computing its first blocks beside the flight is faster, it runs up to the block where the two
meet. In the end it is matched again and finds everything on the device, as any other request would. A block
that turns out to be damaged is one that the next match does not find.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from kvchat.engine.api.events import LoadChoice, Loaded, LoadEstimate, LoadPlanned
from kvchat.engine.api.ids import BlockKey, RequestId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.load_choice import meeting, weigh
from kvchat.engine.cache.match import PrefixMatch
from kvchat.engine.cache.rates import Rates
from kvchat.engine.entry import Entry
from kvchat.engine.flights import Flight, Flights
from kvchat.engine.scheduler import Scheduler


class Readiness(Enum):
    READY = auto()
    """What it waits for is on the device, or it need not wait; it can be admitted."""
    WAITS = auto()
    """Others may be admitted before it."""
    NO_ROOM = auto()
    """Neither it nor anybody behind it can be admitted now."""


@dataclass(slots=True, eq=False)
class Resumption:
    """One request's way to its stored blocks, until it is admitted with them.

    Args:
        counts: whether the request tells what it finds now as what it has reused.
    """

    entry: Entry
    counts: bool
    flight: Flight | None = None
    blocked_by: Flight | None = None
    """Another flight that brings blocks which this one needs."""
    estimate: LoadEstimate | None = None
    start_len: int = 0
    """Tokens that were on the device when it was weighed."""
    fetched: dict[BlockKey, Tier] = field(default_factory=dict)
    """Where the blocks came from that were brought for it."""
    present_len: int | None = None
    """Tokens that were on the device when computing began beside the flight; None: it did not."""
    front_len: int = 0
    """Tokens computed beside the flight."""

    @property
    def is_landing(self) -> bool:
        return self.flight is not None and not self.flight.is_over


class Loading:
    """Decides for waiting requests what to load, and when they are ready.

    Args:
        tell: takes the estimates that are to be shown.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        flights: Flights,
        rates: Rates,
        tell: Callable[[LoadPlanned], None],
    ) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager
        self._flights = flights
        self._rates = rates
        self._tell = tell
        self._resumptions: dict[RequestId, Resumption] = {}

    def advance(self) -> None:
        """Follow what has landed: forget requests that are gone, move fronts. Never waits."""
        if not self._resumptions:
            return
        alive = {entry.id for entry in [*self._scheduler.waiting, *self._scheduler.running]}
        for resumption in list(self._resumptions.values()):
            if resumption.entry.id not in alive:
                self._forget(resumption)
            elif resumption.present_len is not None and resumption.entry in self._scheduler.running:
                self._follow_front(resumption)

    def prepare(self, entry: Entry) -> Readiness:
        """Say whether a waiting request can be admitted, and begin to load what it lacks."""
        if self._scheduler.is_refused(entry):
            return Readiness.NO_ROOM
        resumption = self._resumptions.get(entry.id)
        if resumption is None:
            resumption = Resumption(entry, counts=entry.loaded is None)
        elif resumption.is_landing:
            return Readiness.READY if self._pays_to_compute(resumption) else Readiness.WAITS
        elif resumption.blocked_by and not resumption.blocked_by.is_over:
            return Readiness.WAITS
        elif resumption.flight is not None:
            resumption.fetched |= resumption.flight.landed
            if resumption.flight.is_complete:
                return Readiness.READY
        readiness = self._begin(resumption)
        if resumption.estimate is not None or resumption.blocked_by is not None:
            self._resumptions[entry.id] = resumption
        return readiness

    def settle(self, entry: Entry) -> None:
        """Note that a request was admitted: with all it can reuse, or to compute beside its flight."""
        resumption = self._resumptions.get(entry.id)
        if resumption is None:
            return
        if resumption.is_landing:
            resumption.present_len = entry.branch.computed_len
            self._move_front(resumption)
            return
        if resumption.counts:
            entry.loaded = self._provenance(resumption)
        self._forget(resumption)

    def let_go(self, entry: Entry) -> bool:
        """Give up the blocks held for a less important request, for one that runs for any; False if that
        gives no block back now.
        """
        self._flights.leave_promotions()
        is_running = entry in self._scheduler.running
        for resumption in sorted(self._resumptions.values(), key=lambda each: each.entry.rank, reverse=True):
            flight = resumption.flight
            if flight is None or resumption.entry is entry or flight.has_ended:
                continue
            if is_running or resumption.entry.rank > entry.rank:
                self._forget(resumption)
                if flight.has_ended:
                    return True
        return False

    # Waiting

    def _begin(self, resumption: Resumption) -> Readiness:
        """Begin the flight that a request needs, making room as for an admission."""
        entry = resumption.entry
        if resumption.flight is not None:
            self._flights.leave(resumption.flight)
            resumption.flight = None
        max_len = None
        while True:
            match = self._manager.match(entry.branch, max_len)
            if not match.host_len + match.disk_len:
                return Readiness.READY
            resumption.blocked_by = self._flights.in_the_way(match)
            if resumption.blocked_by is not None:
                if not resumption.blocked_by.job.is_urgent:
                    self._flights.leave(resumption.blocked_by)  # what has arrived of it stays
                if resumption.blocked_by.has_ended:
                    continue
                return Readiness.WAITS
            if self._estimate(resumption, match).choice is LoadChoice.COMPUTE:
                return Readiness.READY
            resumption.flight = self._flights.begin(match, entry.branch.root)
            if resumption.flight is not None:
                return self._front_readiness(resumption)
            if self._scheduler.make_room(entry):
                continue
            if self._scheduler.running or self._flights.is_busy:
                self._scheduler.refuse(entry, self._flights.lacking(match, entry.branch.root))
                return Readiness.NO_ROOM
            if not match.partial:
                return Readiness.READY  # alone and still too much: what is on the device must do
            # The copy's source takes a block of its own; the last request must not fail for that.
            max_len = len(match.keys) * self._manager.block_size

    def _estimate(self, resumption: Resumption, match: PrefixMatch) -> LoadEstimate:
        """Weigh loading against computing, and tell it once."""
        branch = resumption.entry.branch
        resumption.start_len = self._manager.match(branch, match.length, resident=True).length
        estimate = weigh(
            self._rates,
            present_len=resumption.start_len,
            prefix_len=match.length,
            num_bytes=self._flights.missing_bytes(match, branch.root),
            block_size=self._manager.block_size,
        )
        if resumption.estimate is None and resumption.counts:
            entry = resumption.entry
            self._tell(LoadPlanned(request_id=entry.id, branch=branch.id, estimate=estimate))
        resumption.estimate = estimate
        return estimate

    def _pays_to_compute(self, resumption: Resumption) -> bool:
        """Whether loading has turned out so slow that the request should begin to compute beside it."""
        flight = resumption.flight
        assert flight is not None
        lowest = flight.job.lowest_taken
        estimate = weigh(
            self._rates,
            present_len=resumption.start_len,
            prefix_len=max(resumption.start_len, lowest * self._manager.block_size),
            num_bytes=flight.transfer.bytes_before(lowest),
            block_size=self._manager.block_size,
        )
        return estimate.choice is not LoadChoice.LOAD

    def _front_readiness(self, resumption: Resumption) -> Readiness:
        assert resumption.estimate is not None
        return Readiness.READY if resumption.estimate.choice is LoadChoice.BOTH else Readiness.WAITS

    # Computing beside a flight

    def _follow_front(self, resumption: Resumption) -> None:
        """Let a front go on, or end it where it has met the loaded part."""
        flight, entry = resumption.flight, resumption.entry
        assert flight is not None
        assert resumption.present_len is not None
        if entry.branch.computed_len < flight.job.front * self._manager.block_size:
            return
        if not flight.is_over:
            self._move_front(resumption)
            return
        entry.limit = None
        if flight.landed:
            # Matched again, it finds what both have brought.
            resumption.front_len += entry.branch.computed_len - resumption.present_len
            self._scheduler.requeue(entry)
        else:
            self._forget(resumption)

    def _move_front(self, resumption: Resumption) -> None:
        """Claim the next blocks to compute: as many as keep computing and loading equally long."""
        flight, branch = resumption.flight, resumption.entry.branch
        assert flight is not None
        size = self._manager.block_size
        start = branch.computed_len // size
        num_blocks = max(0, flight.job.lowest_taken - start)
        load_s = sum(
            self._rates.seconds_to_load(tier, flight.transfer.bytes_from(tier))
            for tier in (Tier.HOST, Tier.DISK)
        )
        num_due = meeting(
            num_blocks,
            lambda num: self._rates.seconds_to_compute(num * size, branch.computed_len),
            load_s / len(flight.transfer.units),
        )
        most = max(1, self._scheduler.max_batch_tokens // size)
        end = self._flights.claim(flight, start + min(num_due, most))
        resumption.entry.limit = max(end * size, branch.computed_len)

    # The end

    def _provenance(self, resumption: Resumption) -> Loaded:
        """Return where the tokens of an admitted request came from that it has not computed."""
        branch, size = resumption.entry.branch, self._manager.block_size
        fetched = resumption.fetched
        counts = {tier: size * sum(fetched.get(key) is tier for key in branch.keys) for tier in Tier}
        partial = resumption.flight.transfer.match.partial if resumption.flight else None
        tier = fetched.get(partial.key) if partial and partial.key else None
        if tier is not None:
            counts[tier] += branch.computed_len - len(branch.keys) * size
        num_slow = counts[Tier.HOST] + counts[Tier.DISK]
        return Loaded(
            device=branch.computed_len - num_slow - resumption.front_len,
            host=counts[Tier.HOST],
            disk=counts[Tier.DISK],
        )

    def _forget(self, resumption: Resumption) -> None:
        resumption.entry.limit = None
        self._resumptions.pop(resumption.entry.id, None)
        if resumption.flight is not None:
            self._flights.leave(resumption.flight)
