"""The bytes of blocks in host memory: one arena per group, a block is one run of bytes in it.

Arenas are anonymous maps, taken from the system page by page as they are first written, with huge pages where
the system offers them. For devices that copy by themselves others are to be had: see `pinned`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.memory.aligned_memory import mapped
from kvchat.errors import OutOfMemory


class Arena(Protocol):
    """Places of one size."""

    def view(self, place: int) -> memoryview: ...


class MappedArena:
    """An anonymous map."""

    def __init__(self, num_places: int, place_bytes: int) -> None:
        self._place_bytes = place_bytes
        self._map = mapped(num_places * place_bytes)

    def view(self, place: int) -> memoryview:
        start = place * self._place_bytes
        return memoryview(self._map)[start : start + self._place_bytes]


class HostPool:
    """Fixed places for blocks of each group, `num_bytes` in all."""

    def __init__(
        self,
        num_blocks: Mapping[GroupId, int],
        block_bytes: Mapping[GroupId, int],
        make_arena: Callable[[int, int], Arena] = MappedArena,
    ) -> None:
        """Args:
        num_blocks: places of each group; groups with none have no arena.
        make_arena: number and size of places → where they are.

        Raises:
            OutOfMemory: the system refuses the memory.
        """
        self.num_bytes = sum(count * block_bytes[group] for group, count in num_blocks.items())
        try:
            self._arenas: dict[GroupId, Arena] = {
                group: make_arena(count, block_bytes[group])
                for group, count in num_blocks.items()
                if count > 0
            }
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemory(
                f"{self.num_bytes} bytes for the host tier are not to be had; give less with --kv-host-bytes"
            ) from error

    def view(self, group: GroupId, place: BlockId) -> memoryview:
        """Return the writable bytes of one place."""
        return self._arenas[group].view(place)
