"""In-flight loads: carried out by the reader, published as they land, ended when nobody waits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvchat.engine.api.cache_events import CacheEventKind
from kvchat.engine.api.ids import BlockKey
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_loads import LoadUnit, Transfer, Transfers
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_matcher import PrefixMatch
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.memory.reader import Job, Reader


@dataclass(slots=True, eq=False)
class InFlightLoad:
    """A transfer that the reader carries out.

    Args:
        landed: the blocks that have arrived, and the tier each came from.
    """

    transfer: Transfer
    job: Job
    landed: dict[BlockKey, Tier] = field(default_factory=dict)
    is_complete: bool = True
    """False once a block was damaged or gone."""
    has_ended: bool = False

    @property
    def is_over(self) -> bool:
        return self.job.is_over


class InFlightLoads:
    """Owned by the engine's thread; only the reader behind it has one of its own."""

    def __init__(
        self, device: DeviceTier, reader: Reader, rates: Rates, carry_out: Callable[[Sequence[Move]], None]
    ) -> None:
        self._device = device
        self.transfers = Transfers(device)
        self._reader = reader
        self._rates = rates
        self._carry_out = carry_out
        self._loads: dict[Job, InFlightLoad] = {}
        self._leaving: list[InFlightLoad] = []

    @property
    def under_way(self) -> tuple[InFlightLoad, ...]:
        """The loads that hold blocks, those that have landed included, in the order in which they began."""
        return tuple(self._loads.values())

    @property
    def is_busy(self) -> bool:
        """Whether bytes are on their way."""
        return any(not load.is_over for load in self._loads.values())

    def in_the_way(self, match: PrefixMatch) -> InFlightLoad | None:
        """Return a load that is bringing a block of the match and has not brought it yet. Pure."""
        transfer = self.transfers.in_the_way(match)
        return next((load for load in self._loads.values() if load.transfer is transfer), None)

    def leave_prefetches(self) -> None:
        """Let go of the loads that no request waits for."""
        for load in list(self._loads.values()):
            if not load.job.is_urgent:
                self.leave(load)

    def begin(
        self, match: PrefixMatch, root: BlockKey, *, spared: Sequence[BlockKey] = (), is_urgent: bool = True
    ) -> InFlightLoad | None:
        """Begin to bring a match to the device; None if there is no room, there or in the reader's queue."""
        transfer = self.transfers.begin(match, root, spared)
        self._carry_out(self._device.take_demotions())
        if transfer is None:
            return None
        job = self._reader.submit(transfer.units, is_urgent=is_urgent)
        if job is None:
            self.transfers.end(transfer)
            return None
        self._loads[job] = InFlightLoad(transfer, job)
        return self._loads[job]

    def claim(self, load: InFlightLoad, end: int) -> int:
        """Let the blocks before number `end` be computed instead, as far as none of them is being read, and
        return the number of the first that is not.
        """
        before = load.job.front
        front = self._reader.claim(load.job, end)
        for number in range(before, front):
            self.transfers.give_up(load.transfer, number)
        return front

    def collect(self) -> None:
        """Name what has landed; end the loads that nobody waits for any more. Never waits."""
        for landed in self._reader.collect():
            load = self._loads[landed.job]
            unit = landed.unit
            self.transfers.land(load.transfer, unit, landed.arrived)
            if all(landed.arrived):
                load.landed[unit.node.key] = unit.tier
                self._note(unit, "a request waits for it" if load.job.is_urgent else "ahead of use")
                self._rates.observe_move(unit.tier, Direction.LOAD, unit.num_bytes, landed.seconds)
            else:
                load.is_complete = False
                self._note(unit, "damaged or gone: it is computed")
        for load in [load for load in self._leaving if load.is_over]:
            self._leaving.remove(load)
            self._end(load)

    def leave(self, load: InFlightLoad) -> None:
        """Let go of a load: now if it is over, else as soon as the block being read has landed."""
        if load.has_ended or load in self._leaving:
            return
        self._reader.cancel(load.job)
        if load.is_over:
            self._end(load)
        else:
            self._leaving.append(load)

    def wait(self, timeout_s: float) -> None:
        """Wait for the next block to land."""
        self._reader.wait(timeout_s)

    def close(self) -> None:
        """Wait for the reader to end, and let go of everything."""
        for load in list(self._loads.values()):
            self.leave(load)
        self._reader.close()
        self.collect()

    def check_integrity(self) -> None:
        """Raise AssertionError if more or less is held than loads hold."""
        self.transfers.check_integrity(load.transfer for load in self._loads.values())

    def _note(self, unit: LoadUnit, reason: str) -> None:
        for number, move in enumerate(unit.moves):
            num_tokens = 0 if number else len(unit.node.token_ids)
            self._device.events.note(
                CacheEventKind.LOAD, reason, move.group, unit.node.key, tier=unit.tier, num_tokens=num_tokens
            )

    def _end(self, load: InFlightLoad) -> None:
        load.has_ended = True
        self.transfers.end(load.transfer)
        del self._loads[load.job]
