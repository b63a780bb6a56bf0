"""Requests whose prompt is stored on slower tiers: who waits for what, and what the engine does meanwhile.

A request that can reuse stored blocks waits until a flight has brought them to the device; everybody else
goes on. Where computing its first blocks beside the flight is faster, it runs up to the block where the two
meet. In the end it is matched again and finds everything on the device, as any other request would. A block
that turns out to be damaged is one that the next match does not find.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from enum import Enum, auto
from typing import Final

from kvchat.engine.api.events import LoadChoice, Loaded, LoadEstimate, LoadPlanned
from kvchat.engine.api.ids import BlockKey
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.match import PrefixMatch
from kvchat.engine.cache.plan import Move
from kvchat.engine.memory.rates import Rates
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.completion import Completion
from kvchat.engine.tiering.in_flight_loads import InFlightLoads
from kvchat.engine.tiering.load_choice import meeting, weigh
from kvchat.engine.tiering.pending_loads import PendingLoad, PendingLoads

LEAST_LANDED: Final = 3
"""Units of a flight that say something about its pace. The first of a process bears what happens once, and a
median of fewer than three is moved by a single slow one.
"""


class Obstacle(Enum):
    """Why a waiting request is not admitted now."""

    LOADS = auto()
    """What it can reuse is on its way. Others may be admitted before it."""
    NO_ROOM = auto()
    """Neither it nor anybody behind it can be admitted."""


class LoadController:
    """Admits waiting requests, with all that they can reuse.

    Args:
        pending_loads: the same that the scheduler lets go of.
        tell: takes the estimates that are to be shown.
        carry_out: executes moves, at once.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pending_loads: PendingLoads,
        loads: InFlightLoads,
        rates: Rates,
        tell: Callable[[LoadPlanned], None],
        carry_out: Callable[[Sequence[Move]], None],
    ) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager
        self._pending_loads = pending_loads
        self._loads = loads
        self._rates = rates
        self._tell = tell
        self._carry_out = carry_out

    def advance(self) -> None:
        """Follow what has landed: forget requests that are gone, move fronts. Never waits."""
        pending_loads = tuple(self._pending_loads)
        if not pending_loads:
            return
        alive = {completion.id for completion in [*self._scheduler.waiting, *self._scheduler.running]}
        for resumption in pending_loads:
            if resumption.completion.id not in alive:
                self._pending_loads.forget(resumption)
            elif resumption.present_len is not None and resumption.completion in self._scheduler.running:
                self._follow_front(resumption)

    def admit_waiting(self) -> Iterator[Completion]:
        """Admit requests in order until there is no room for one, and yield each that was admitted; those
        that still load are passed by.
        """
        for completion in tuple(self._scheduler.waiting):
            if completion.is_held:
                continue  # a beam that has nothing to compute until the others have caught up
            obstacle = self.admit(completion)
            if obstacle is Obstacle.NO_ROOM:
                return
            if obstacle is None:
                yield completion

    def admit(self, completion: Completion) -> Obstacle | None:
        """Admit one waiting request, or begin to load what it lacks.

        Returns:
            Why it still waits; None if it was admitted.
        """
        obstacle = self._prepare(completion)
        if obstacle is not None:
            return obstacle
        moves = self._scheduler.admit(completion)
        if moves is None:
            return Obstacle.NO_ROOM
        self._carry_out(moves)
        self._settle(completion)
        return None

    def _prepare(self, completion: Completion) -> Obstacle | None:
        """Begin to load what a request lacks; None if nothing stands in its way any more."""
        if self._scheduler.is_refused(completion):
            return Obstacle.NO_ROOM
        resumption = self._pending_loads.of(completion)
        if resumption is None:
            resumption = PendingLoad(completion, counts=completion.loaded is None)
        elif resumption.is_landing:
            return None if self._pays_to_compute(resumption) else Obstacle.LOADS
        elif resumption.blocked_by and not resumption.blocked_by.is_over:
            return Obstacle.LOADS
        elif resumption.flight is not None:
            resumption.fetched |= resumption.flight.landed
            if resumption.flight.is_complete:
                return None
        obstacle = self._begin(resumption)
        if resumption.estimate is not None or resumption.blocked_by is not None:
            self._pending_loads.keep(resumption)
        return obstacle

    def _settle(self, completion: Completion) -> None:
        """Note that a request was admitted: with all it can reuse, or to compute beside its flight."""
        resumption = self._pending_loads.of(completion)
        if resumption is None:
            return
        if resumption.is_landing:
            resumption.present_len = completion.sequence.computed_len
            self._move_front(resumption)
            return
        if resumption.counts:
            completion.loaded = self._provenance(resumption)
        self._pending_loads.forget(resumption)

    # Before it is admitted

    def _begin(self, resumption: PendingLoad) -> Obstacle | None:
        """Begin the flight that a request needs, making room as for an admission."""
        completion = resumption.completion
        if resumption.flight is not None:
            self._loads.leave(resumption.flight)
            resumption.flight = None
        max_len = None
        while True:
            match = self._manager.match(completion.sequence, max_len)
            if not match.host_len + match.disk_len:
                if resumption.blocked_by is not None and not resumption.blocked_by.job.is_urgent:
                    resumption.fetched |= self._brought_before(match)
                return None
            resumption.blocked_by = self._loads.in_the_way(match)
            if resumption.blocked_by is not None:
                if not resumption.blocked_by.job.is_urgent:
                    self._loads.leave(resumption.blocked_by)  # what has arrived of it stays
                if resumption.blocked_by.has_ended:
                    continue
                return Obstacle.LOADS
            if self._estimate(resumption, match).choice is LoadChoice.COMPUTE:
                return None
            resumption.flight = self._loads.begin(match, completion.sequence.root)
            if resumption.flight is not None:
                resumption.fetched |= self._brought_before(match)
                return Obstacle.LOADS if match.course.stages else self._front_obstacle(resumption)
            if self._scheduler.make_room(completion):
                continue
            if self._scheduler.running or self._loads.is_busy:
                self._scheduler.refuse(completion, self._loads.lacking(match, completion.sequence.root))
                return Obstacle.NO_ROOM
            if not match.partial:
                return None  # alone and still too much: what is on the device must do
            # The copy's source takes a block of its own; the last request must not fail for that.
            max_len = len(match.keys) * self._manager.block_size

    def _brought_before(self, match: PrefixMatch) -> dict[BlockKey, Tier]:
        """Return where blocks came from that a promotion has brought for the path of this request."""
        brought = self._manager.device.brought
        return {key: brought[key] for key in match.all_keys if key in brought}

    def _estimate(self, resumption: PendingLoad, match: PrefixMatch) -> LoadEstimate:
        """Weigh loading against computing, and tell it once."""
        sequence = resumption.completion.sequence
        resumption.start_len = self._manager.match(sequence, match.length, resident=True).length
        estimate = weigh(
            self._rates,
            present_len=resumption.start_len,
            prefix_len=match.length,
            num_bytes=self._loads.missing_bytes(match, sequence.root),
            block_size=self._manager.block_size,
        )
        if resumption.estimate is None and resumption.counts:
            completion = resumption.completion
            self._tell(LoadPlanned(request_id=completion.id, sequence=sequence.id, estimate=estimate))
        resumption.estimate = estimate
        return estimate

    def _pays_to_compute(self, resumption: PendingLoad) -> bool:
        """Whether loading has turned out so slow that the request should begin to compute beside it. What was
        pruned comes as a whole: its blocks are not those that the first tokens fill.
        """
        flight = resumption.flight
        assert flight is not None
        if flight.transfer.match.course.stages:
            return False
        if flight.job.num_landed < LEAST_LANDED:
            return False
        lowest, num_taken = flight.job.lowest_taken, flight.job.num_taken
        estimate = weigh(
            self._rates,
            present_len=resumption.start_len,
            prefix_len=max(resumption.start_len, lowest * self._manager.block_size),
            num_bytes=flight.transfer.bytes_left(num_taken),
            block_size=self._manager.block_size,
        )
        return estimate.choice is not LoadChoice.LOAD

    def _front_obstacle(self, resumption: PendingLoad) -> Obstacle | None:
        assert resumption.estimate is not None
        return None if resumption.estimate.choice is LoadChoice.BOTH else Obstacle.LOADS

    # Computing beside a flight

    def _follow_front(self, resumption: PendingLoad) -> None:
        """Let a front go on, or end it where it has met the loaded part."""
        flight, completion = resumption.flight, resumption.completion
        assert flight is not None
        assert resumption.present_len is not None
        if completion.sequence.computed_len < flight.job.front * self._manager.block_size:
            return
        if not flight.is_over:
            self._move_front(resumption)
            return
        completion.limit = None
        if flight.landed:
            # Matched again, it finds what both have brought.
            resumption.front_len += completion.sequence.computed_len - resumption.present_len
            self._scheduler.requeue(completion)
        else:
            self._pending_loads.forget(resumption)

    def _move_front(self, resumption: PendingLoad) -> None:
        """Claim the next blocks to compute: as many as keep computing and loading equally long."""
        flight, sequence = resumption.flight, resumption.completion.sequence
        assert flight is not None
        size = self._manager.block_size
        start = sequence.computed_len // size
        num_blocks = max(0, flight.job.lowest_taken - start)
        load_s = sum(
            self._rates.seconds_to_load(tier, num_bytes)
            for tier, num_bytes in flight.transfer.bytes_left(0).items()
        )
        num_due = meeting(
            num_blocks,
            lambda num: self._rates.seconds_to_compute(num * size, sequence.computed_len),
            load_s / len(flight.transfer.units),
        )
        most = max(1, self._scheduler.max_batch_tokens // size)
        end = self._loads.claim(flight, start + min(num_due, most))
        resumption.completion.limit = max(end * size, sequence.computed_len)

    # The end

    def _provenance(self, resumption: PendingLoad) -> Loaded:
        """Return where the tokens of an admitted request came from that it has not computed."""
        sequence, size = resumption.completion.sequence, self._manager.block_size
        fetched = resumption.fetched
        kept = {key: sequence.keys[number] for number, (key, _) in sequence.kept_names.items()}
        by_block = {kept.get(key, key): tier for key, tier in fetched.items()}
        slowest = [by_block.get(key) for key in sequence.keys]
        counts = {tier: size * sum(found is tier for found in slowest) for tier in Tier}
        partial = resumption.flight.transfer.match.partial if resumption.flight else None
        key = partial.key if partial else _first_beside(fetched, {*sequence.keys, *kept})
        tier = fetched.get(key) if key else None
        if tier is not None:
            counts[tier] += sequence.computed_len - len(sequence.keys) * size
        num_slow = counts[Tier.HOST] + counts[Tier.DISK]
        return Loaded(
            device=sequence.computed_len - num_slow - resumption.front_len,
            host=counts[Tier.HOST],
            disk=counts[Tier.DISK],
        )


def _first_beside(fetched: Iterable[BlockKey], known: Set[BlockKey]) -> BlockKey | None:
    """Return the first key that is not known: that of a tail."""
    return next((key for key in fetched if key not in known), None)
