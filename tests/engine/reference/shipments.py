"""Blocks on their way, in the reference's words: whose they are, and which of them nobody else may have.

A request that waits holds every block of what it will reuse: those that were there and those that come. It
lets go of them when it is admitted, when it is cancelled, or when a more important one needs the room. A
block that is just being read stays held until it has arrived.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.tiering.in_flight_loads import InFlightLoad
from tests.engine.reference.prefix_cache import ReferenceCache
from tests.engine.reference.schedule import Job


@dataclass(slots=True, eq=False)
class Shipment:
    """What is brought for one job.

    Args:
        prompt: its tokens as they were when it began.
    """

    job: Job
    prompt: tuple[int, ...]
    flight: InFlightLoad
    manager: CacheManager
    is_wanted: bool = True
    blocks: set[tuple[int, Hashable]] = field(default_factory=set)
    """By group."""

    @property
    def is_still(self) -> bool:
        """Whether nothing of it is being read."""
        return self.flight.job.num_landed == self.flight.job.num_taken

    @property
    def is_held(self) -> bool:
        """Whether its blocks must not be given to others."""
        return self.is_wanted or not self.is_still

    def look(self) -> None:
        """Note what it holds, as it is once more has landed: a prefix where a block has got its name, else a
        block of its own.
        """
        self.blocks = {
            (group, self._prefix(number) if self.manager.pools[group].key(block) else (id(self), number))
            for number, held in self.flight.held.items()
            for group, block in held
        }

    def check_blocks(self, cache: ReferenceCache) -> None:
        """Assert that it holds what the token behind its match sees, and the tail that is to be copied."""
        match = self.flight.match
        tail = {match.length // cache.block_size} if match.partial and match.partial.key else set()
        for group in self.manager.groups:
            wanted = {*cache.seen_blocks(group.id, match.length), *tail}
            held = self.flight.held.items()
            assert {number for number, blocks in held if group.id in dict(blocks)} == wanted

    def _prefix(self, number: int) -> tuple[int, ...]:
        """Return all tokens up to the end of a block; in the last one, those of the block that is copied."""
        match, size = self.flight.match, self.manager.block_size
        if number < len(match.keys):
            return self.prompt[: (number + 1) * size]
        assert match.partial is not None
        return self.prompt[: number * size] + match.partial.token_ids


class Shipments:
    """All that is under way, beside the real flights."""

    def __init__(self, cache: ReferenceCache) -> None:
        self._cache = cache
        self._known: list[Shipment] = []
        cache.shipped = self.blocks

    @property
    def known(self) -> tuple[Shipment, ...]:
        return tuple(self._known)

    def blocks(self, group: int) -> set[Hashable]:
        return {block for shipment in self._known for of, block in shipment.blocks if of == group}

    def of(self, job: Job) -> Shipment | None:
        return next((each for each in self._known if each.job is job and each.is_wanted), None)

    def behind(self, job: Job) -> list[Shipment]:
        """Return what less important jobs hold, the least important first."""
        others = [each for each in self._known if each.is_wanted and each.job.rank > job.rank]
        return sorted(others, key=lambda each: each.job.rank, reverse=True)

    def let_go(self, job: Job) -> bool:
        """Give up what less important jobs hold; False if no block comes of it now."""
        for shipment in self.behind(job):
            shipment.is_wanted = False
            if not shipment.is_held:
                self._known.remove(shipment)
                return True
        return False

    def begin(self, shipment: Shipment) -> None:
        shipment.check_blocks(self._cache)
        shipment.look()
        self._known.append(shipment)

    def give_up(self, shipment: Shipment) -> None:
        """Note that nobody waits for it any more."""
        shipment.is_wanted = False
        self.settle()

    def settle(self) -> None:
        """Forget what nobody holds any more."""
        self._known = [shipment for shipment in self._known if shipment.is_held]

    def compare(self, under_way: tuple[InFlightLoad, ...]) -> None:
        """Assert that the real flights are these, and that those without a request have been cancelled."""
        assert set(under_way) == {shipment.flight for shipment in self._known}
        for shipment in self._known:
            assert shipment.flight.job.is_cancelled is not shipment.is_wanted
