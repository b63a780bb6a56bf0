"""Load controller: requests whose prompt is stored on slower tiers, and what is computed meanwhile.

A request that can reuse stored blocks waits until a load has brought them to the device; everybody else
goes on. Where computing its first blocks beside the load is faster, it runs up to the block where the two
meet. In the end it is matched again and finds everything on the device, as any other request would. A block
that turns out to be damaged is one that the next match does not find.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from kvchat.engine.api.events import LoadChoice, LoadEstimate, LoadPlanned
from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.prefix_matcher import PrefixMatch
from kvchat.engine.memory.rates import Rates
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads
from kvchat.engine.tiering.load_choice import meeting, weigh

LEAST_LANDED: Final = 3
"""Units of a load that say something about its pace. The first of a process bears what happens once, and a
median of fewer than three is moved by a single slow one.
"""


class Obstacle(Enum):
    """Why a waiting request is not admitted now."""

    LOADS = auto()
    """What it can reuse is on its way. Others may be admitted before it."""
    NO_ROOM = auto()
    """Neither it nor anybody behind it can be admitted."""


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One request's way to its stored blocks, until it is admitted with them.

    Args:
        is_new: whether it has not been admitted before.
    """

    completion: Completion
    is_new: bool
    load: InFlightLoad | None = None
    blocked_by: InFlightLoad | None = None
    """Another load that brings blocks which this one needs."""
    estimate: LoadEstimate | None = None
    start_len: int = 0
    """Tokens that were on the device when it was weighed."""
    present_len: int | None = None
    """Tokens that were on the device when computing began beside the load; None: it did not."""
    front_len: int = 0
    """Tokens computed beside the load."""

    @property
    def is_landing(self) -> bool:
        return self.load is not None and not self.load.is_over


class LoadController:
    """Admits waiting requests, with all that they can reuse. Gives up what it holds for them where the
    scheduler needs room.

    Args:
        tell: takes the estimates that are to be shown.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        loads: InFlightLoads,
        rates: Rates,
        tell: Callable[[LoadPlanned], None],
        carry_out: Callable[[Sequence[Move]], None],
    ) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager
        self._pending_loads: dict[RequestId, WaitingRequest] = {}
        self._loads = loads
        self._rates = rates
        self._tell = tell
        self._carry_out = carry_out
        scheduler.free_reserved = self._let_go

    def advance(self) -> None:
        """Follow what has landed: forget requests that are gone, move fronts. Never waits."""
        if not self._pending_loads:
            return
        alive = {completion.id for completion in [*self._scheduler.waiting, *self._scheduler.running]}
        for pending in tuple(self._pending_loads.values()):
            if pending.completion.id not in alive:
                self._forget(pending)
            elif pending.present_len is not None and pending.completion in self._scheduler.running:
                self._follow_front(pending)

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
        """Admit one waiting request, or begin to load what it lacks. Returns why it still waits."""
        obstacle = self._prepare(completion)
        if obstacle is not None:
            return obstacle
        pending = self._pending_loads.get(completion.id)
        moves = self._scheduler.admit(completion, is_whole=pending is None or not pending.is_landing)
        if moves is None:
            return Obstacle.NO_ROOM
        self._carry_out(moves)
        if pending is not None:
            self._settle(pending)
        return None

    def _prepare(self, completion: Completion) -> Obstacle | None:
        """Begin to load what a request lacks; None if nothing stands in its way any more."""
        if self._scheduler.is_refused(completion):
            return Obstacle.NO_ROOM
        pending = self._pending_loads.get(completion.id)
        if pending is None:
            pending = WaitingRequest(completion, is_new=completion.loaded is None)
        elif pending.is_landing:
            return None if self._pays_to_compute(pending) else Obstacle.LOADS
        elif pending.blocked_by and not pending.blocked_by.is_over:
            return Obstacle.LOADS
        elif pending.load is not None and pending.load.is_complete:
            return None
        obstacle = self._begin(pending)
        if pending.estimate is not None or pending.blocked_by is not None:
            self._pending_loads[completion.id] = pending
        return obstacle

    def _settle(self, pending: WaitingRequest) -> None:
        """Note that a request was admitted: with all it can reuse, or to compute beside its load."""
        completion = pending.completion
        if pending.is_landing:
            pending.present_len = completion.sequence.computed_len
            self._move_front(pending)
            return
        if pending.is_new:
            assert completion.loaded is not None
            # Less than it computed beside the load is there where others have taken that room.
            num_reused = max(0, completion.loaded.device - pending.front_len)
            completion.loaded = replace(completion.loaded, device=num_reused)
        self._forget(pending)

    def _forget(self, pending: WaitingRequest) -> None:
        """Let go of what is held for a request, and let it compute wherever it likes."""
        pending.completion.limit = None
        pending.completion.is_loaded_in_part = False
        self._pending_loads.pop(pending.completion.id, None)
        if pending.load is not None:
            self._loads.leave(pending.load)

    def _let_go(self, completion: Completion) -> bool:
        """Give up blocks that are held for less important requests, the least important first; False if that
        gives none back now.
        """
        self._loads.leave_prefetches()
        for pending in sorted(
            self._pending_loads.values(), key=lambda each: each.completion.rank, reverse=True
        ):
            load = pending.load
            if pending.completion.rank <= completion.rank:
                return False
            if load is not None and not load.has_ended:
                self._forget(pending)
                if load.has_ended:
                    return True
        return False

    # Before it is admitted

    def _begin(self, pending: WaitingRequest) -> Obstacle | None:
        """Begin the load that a request needs, making room as for an admission."""
        completion = pending.completion
        if pending.load is not None:
            self._loads.leave(pending.load)
            pending.load = None
        max_len = None
        while True:
            match = self._manager.match(completion.sequence, max_len)
            completion.sequence.known_len = max(completion.sequence.known_len, match.tokens_len)
            missing_bytes = self._loads.missing_bytes(match, completion.sequence.root)
            if not missing_bytes:
                return None
            pending.blocked_by = self._loads.in_the_way(match)
            if pending.blocked_by is not None:
                if not pending.blocked_by.job.is_urgent:
                    self._loads.leave(pending.blocked_by)  # what has arrived of it stays
                if pending.blocked_by.has_ended:
                    continue
                return Obstacle.LOADS
            estimate = self._estimate(pending, match, missing_bytes)
            if estimate.choice is LoadChoice.COMPUTE:
                return None
            pending.load = self._loads.begin(match, completion.sequence.root)
            if pending.load is not None:
                is_both = estimate.choice is LoadChoice.BOTH and not match.comes_whole
                return None if is_both else Obstacle.LOADS
            if self._scheduler.make_room(completion):
                continue
            if self._scheduler.running or self._loads.is_busy:
                lacking = self._loads.lacking(match, completion.sequence.root)
                self._scheduler.refuse(completion, lacking)
                return Obstacle.NO_ROOM
            if not match.partial:
                return None  # alone and still too much: what is on the device must do
            # The copy's source takes a block of its own; the last request must not fail for that.
            max_len = len(match.keys) * self._manager.block_size

    def _estimate(
        self, pending: WaitingRequest, match: PrefixMatch, missing_bytes: Mapping[Tier, int]
    ) -> LoadEstimate:
        """Weigh loading against computing, and tell it once."""
        sequence = pending.completion.sequence
        pending.start_len = self._manager.match(sequence, match.length, resident=True).length
        estimate = weigh(
            self._rates,
            present_len=pending.start_len,
            prefix_len=match.length,
            num_bytes=missing_bytes,
            block_size=self._manager.block_size,
        )
        if pending.estimate is None and pending.is_new:
            completion = pending.completion
            self._tell(LoadPlanned(request_id=completion.id, sequence=sequence.id, estimate=estimate))
        pending.estimate = estimate
        return estimate

    def _pays_to_compute(self, pending: WaitingRequest) -> bool:
        """Whether loading has turned out so slow that the request should begin to compute beside it."""
        load = pending.load
        assert load is not None
        if load.match.comes_whole or load.job.num_landed < LEAST_LANDED:
            return False
        estimate = weigh(
            self._rates,
            present_len=pending.start_len,
            prefix_len=max(pending.start_len, load.job.lowest_taken * self._manager.block_size),
            num_bytes=load.bytes_left(load.job.num_taken),
            block_size=self._manager.block_size,
        )
        return estimate.choice is not LoadChoice.LOAD

    # Computing beside a load

    def _follow_front(self, pending: WaitingRequest) -> None:
        """Let a front go on, or end it where it has met the loaded part."""
        load, completion = pending.load, pending.completion
        assert load is not None
        assert pending.present_len is not None
        if completion.sequence.computed_len < load.job.front * self._manager.block_size:
            return
        if not load.is_over:
            self._move_front(pending)
            return
        completion.limit = None
        if load.has_brought_any:
            # Matched again, it finds what both have brought.
            pending.front_len += completion.sequence.computed_len - pending.present_len
            self._scheduler.requeue(completion)
        else:
            self._forget(pending)

    def _move_front(self, pending: WaitingRequest) -> None:
        """Claim the next blocks to compute: as many as keep computing and loading equally long."""
        load, sequence = pending.load, pending.completion.sequence
        assert load is not None
        size = self._manager.block_size
        start = sequence.computed_len // size
        num_blocks = max(0, load.job.lowest_taken - start)
        load_s = sum(
            self._rates.seconds_to_load(tier, num_bytes) for tier, num_bytes in load.bytes_left(0).items()
        )
        num_due = meeting(
            num_blocks,
            lambda num: self._rates.seconds_to_compute(num * size, sequence.computed_len),
            load_s / len(load.job.units),
        )
        most = max(1, self._scheduler.max_batch_tokens // size)
        end = self._loads.claim(load, start + min(num_due, most))
        pending.completion.limit = max(end * size, sequence.computed_len)
