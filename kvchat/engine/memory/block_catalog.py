"""All blocks in a cache directory, whatever model they belong to; opened without a model."""

from collections.abc import Callable, Iterable
from pathlib import Path

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.block_directory import BlockDirectory
from kvchat.engine.memory.block_index import DiskUsage, IndexedBlock

IsReferenced = Callable[[IndexedBlock], bool]


class BlockCatalog:
    """What is on disk, by fingerprint, and its removal."""

    def __init__(self, cache_dir: Path) -> None:
        """Open the catalog and make the index agree with the files.

        Raises: StorageError: the directory cannot be created or written.
        """
        self._directory = BlockDirectory(cache_dir)

    def usages(self) -> dict[bytes, DiskUsage]:
        """Return the totals of each fingerprint that has blocks."""
        return self._directory.index.usages()

    def usage(self) -> DiskUsage:
        """Return the totals of all fingerprints together."""
        return self._directory.index.usage()

    def blocks(self) -> list[IndexedBlock]:
        """Return every block and tail, its groups together."""
        return self._directory.index.blocks()

    def remove(self, fingerprint: bytes, keys: Iterable[BlockKey]) -> DiskUsage:
        """Remove blocks with all their groups; return what was freed."""
        index = self._directory.index
        found = (index.with_key(fingerprint, key) for key in keys)
        return self._remove(block for block in found if block is not None)

    def collect(self, is_referenced: IsReferenced) -> DiskUsage:
        """Remove every block that nothing refers to, and all damaged ones; return what was freed.

        A damaged block is in no index, so nobody knows any more whose tokens it held; it is not counted.

        Args:
            is_referenced: pure. A full block is referenced if the chain of a kept turn has its key; a tail
                if the ids of a kept turn continue its parent with the tail's ids.
        """
        self._directory.empty_quarantine()
        return self._remove(block for block in self.blocks() if not is_referenced(block))

    def close(self) -> None:
        self._directory.close()

    def _remove(self, blocks: Iterable[IndexedBlock]) -> DiskUsage:
        num_blocks = num_tails = num_bytes = 0
        for block in blocks:
            self._directory.remove(block.fingerprint, block.key, block.groups)
            num_blocks += len(block.groups)
            num_tails += len(block.groups) * block.is_tail
            num_bytes += block.num_bytes
        self._directory.remove_empty()
        return DiskUsage(num_blocks=num_blocks, num_tails=num_tails, num_bytes=num_bytes)
