"""Memory that recorded steps leave to others: what they take stays taken until the engine ends."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReserve:
    """What the largest step that is not recorded allocates beside weights and pools.

    Args:
        num_bytes: of it.
        free_bytes: returns what the device has left for it now.
    """

    num_bytes: int
    free_bytes: Callable[[], int]

    @property
    def is_kept(self) -> bool:
        """Whether as much is left. Asks the device."""
        return self.free_bytes() >= self.num_bytes
