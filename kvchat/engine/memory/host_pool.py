"""The bytes of blocks in host memory: one arena per group, a block is one run of bytes in it.

Arenas are anonymous maps, taken from the system page by page as they are first written, with huge pages where
the system offers them.
"""

import mmap
from collections.abc import Mapping

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.errors import OutOfMemory


class HostPool:
    """Fixed places for blocks of each group."""

    def __init__(self, num_blocks: Mapping[GroupId, int], block_bytes: Mapping[GroupId, int]) -> None:
        """Args:
        num_blocks: places of each group; groups with none have no arena.
        block_bytes: bytes of one block of each group.

        Raises:
            OutOfMemory: the system refuses the memory.
        """
        self._block_bytes = dict(block_bytes)
        try:
            self._arenas = {
                group: _arena(count * block_bytes[group]) for group, count in num_blocks.items() if count > 0
            }
        except (OSError, ValueError, OverflowError) as error:
            total = sum(count * block_bytes[group] for group, count in num_blocks.items())
            raise OutOfMemory(
                f"{total} bytes for the host tier are not to be had; give less with --kv-host-bytes"
            ) from error

    @property
    def num_bytes(self) -> int:
        return sum(len(arena) for arena in self._arenas.values())

    def view(self, group: GroupId, place: BlockId) -> memoryview:
        """Return the writable bytes of one place."""
        size = self._block_bytes[group]
        return memoryview(self._arenas[group])[place * size : (place + 1) * size]

    def close(self) -> None:
        """Give the memory back; views must be gone."""
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()


def _arena(num_bytes: int) -> mmap.mmap:
    arena = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            arena.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without transparent huge pages: the arena works all the same
    return arena
