"""A store with room for a few blocks."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    FULL,
    Block,
    HastyFiles,
    chain,
    open_store,
    path_of,
    put_blocks,
)
from tests.hand_clock import HandClock


def file_bytes(directory: Path) -> int:
    """Return the size of any full block's file."""
    (block,) = chain([1, 2, 3, 4])
    put_blocks(directory, [block])
    return path_of(directory, block).stat().st_size


class Disk:
    """A store with room for so many blocks, on a clock that goes on with every use."""

    def __init__(self, directory: Path, num_blocks: int, eviction: Eviction = Eviction.S3FIFO) -> None:
        self.directory = directory
        self.num_blocks = num_blocks
        self.eviction = eviction
        self.clock = HandClock()
        self.bytes_each = file_bytes(directory / "sized")
        self.limit_bytes = num_blocks * self.bytes_each
        self.store = self.another_store()

    def keep(self, blocks: Iterable[Block]) -> None:
        """Keep these, and what they stand on, as a pack does."""
        with closing(CacheAdmin(self.directory / "cache")) as admin:
            admin.keep("pack", FINGERPRINT, [block.key for block in blocks])

    def another_store(self) -> DiskStore:
        return open_store(
            self.directory / "cache",
            limit_bytes=self.limit_bytes,
            clock=self.clock,
            files=HastyFiles(),
            eviction=self.eviction,
        )

    def reopen(self) -> None:
        self.store.close()
        self.store = self.another_store()

    def write(self, block: Block) -> bool:
        self.clock.now_s += 1
        return self.store.write([(block.header, block.payload)]) == 1

    def write_all(self, blocks: Iterable[Block]) -> int:
        """Write what was asked for by name, all together."""
        return self.store.write([(block.header, block.payload) for block in blocks], is_wanted=True)

    def room(self, new: Iterable[Block], sources: Iterable[Block] = ()) -> AbstractContextManager[None]:
        """Hold room for blocks, and keep those that they are made from."""
        headers, keys = [block.header for block in new], [block.key for block in sources]
        return self.store.room_for(headers, FINGERPRINT, keys)

    def touch(self, blocks: Iterable[Block]) -> None:
        self.clock.now_s += 1
        self.store.touch(block.key for block in blocks)
        self.store.flush_touched()

    def found(self, blocks: list[Block]) -> int:
        """Return how many of a chain's blocks a request could use."""
        there = self.store.has_all([block.key for block in blocks], FULL)
        return next((number for number, flag in enumerate(there) if not flag), len(blocks))

    def request(self, blocks: list[Block]) -> int:
        """Use a chain as a request does, and return how many of its blocks were found."""
        num_found = self.found(blocks)
        self.touch(blocks[:num_found])
        for block in blocks[num_found:]:
            self.write(block)
        return num_found


MakeDisk = Callable[..., Disk]
"""Takes the number of blocks that there is room for, and perhaps how blocks make room."""


def conversation(number: int, num_blocks: int) -> list[Block]:
    return chain([number * 1000 + place for place in range(num_blocks * BLOCK_SIZE)])
