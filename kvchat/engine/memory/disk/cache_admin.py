"""All blocks in a cache directory, whatever model they belong to; opened without a model."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.block_directory import BlockDirectory
from kvchat.engine.memory.disk.block_encryption import encryption_of
from kvchat.engine.memory.disk.index import DiskUsage, IndexedBlock, WrittenBytes
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles
from kvchat.engine.memory.disk.pinned_blocks import Kept
from kvchat.errors import StorageError
from kvchat.platform.encryptor import Encryptor

IsReferenced = Callable[[IndexedBlock], bool]


class CacheAdmin:
    """What is on disk, by fingerprint, and its removal."""

    def __init__(
        self, cache_dir: Path, *, encryptor: Encryptor | None = None, files: SystemFiles = SYSTEM
    ) -> None:
        """Open the admin and settle what a crash has left.

        Args:
            encryptor: what the blocks are encrypted with; None: those in the clear are meant.

        Raises: StorageError: the directory cannot be created or written.
        """
        self._directory = BlockDirectory(cache_dir, files, time.time, encryption_of(encryptor))
        self.still_readable: Sequence[str] = ()
        """Where token ids of blocks may be read that were removed here, with what to do about it."""

    def usages(self) -> dict[bytes, DiskUsage]:
        """Return the totals of each fingerprint that has blocks."""
        return self._directory.index.usages()

    def usage(self) -> DiskUsage:
        """Return the totals of all fingerprints together."""
        return self._directory.index.usage()

    def aside_bytes(self) -> int:
        """Return what damaged blocks take that were set aside, which the limit counts too."""
        return self._directory.quarantine.num_bytes()

    def written(self) -> WrittenBytes:
        """Return how much was written today and ever, by all processes."""
        return self._directory.written()

    def blocks(self) -> list[IndexedBlock]:
        """Return every block and tail, its groups together."""
        return self._directory.index.blocks()

    def remove(self, fingerprint: bytes, keys: Iterable[BlockKey]) -> DiskUsage:
        """Remove blocks with all their groups; return what was freed."""
        return self._remove(self.found(fingerprint, keys).values())

    def collect(self, is_referenced: IsReferenced) -> DiskUsage:
        """Remove every block that nothing refers to, as `collect_by` does.

        Args:
            is_referenced: pure. A full block is referenced if the chain of a kept turn has its key; a tail
                if the ids of a kept turn continue its parent with the tail's ids.
        """
        return self.collect_by(lambda _: is_referenced)

    def collect_by(self, judge: Callable[[Sequence[IndexedBlock]], IsReferenced]) -> DiskUsage:
        """Remove every block that nothing refers to, unless it is kept, and all damaged ones; return what was
        freed.

        A damaged block is in no index, so nobody knows any more whose tokens it held; it is not counted.
        Every file is looked at, also those that the index has lost.

        Args:
            judge: given the blocks that are there, says what is referred to, by what it reads from then on:
                a block that is written meanwhile stays, whoever writes it.
        """
        self._directory.rebuild()
        self._directory.quarantine.empty()
        self._directory.remove_unfinished()
        blocks = self.blocks()
        is_referenced = judge(blocks)
        kept = self._directory.kept.all()
        return self._remove(
            block
            for block in blocks
            if (block.fingerprint, block.name) not in kept and not is_referenced(block)
        )

    def shrink(self, to_bytes: int) -> DiskUsage:
        """Remove blocks, longest unused first and none that is kept, until at most so much is left; return
        what was freed.
        """
        before = self.usage()
        self._directory.enforce(to_bytes)
        self._directory.sync_removed()
        self._directory.remove_empty()
        after = self.usage()
        return DiskUsage(
            num_blocks=before.num_blocks - after.num_blocks,
            num_tails=before.num_tails - after.num_tails,
            num_bytes=before.num_bytes - after.num_bytes,
        )

    # Kept blocks

    def keep(self, name: str, fingerprint: bytes, keys: Sequence[BlockKey]) -> None:
        """Let blocks, there or not yet, make room for nothing, under a name; see `KeptBlocks.keep`."""
        disk_key = self._directory.encryption.name
        self._directory.kept.keep(name, fingerprint, [disk_key(key) for key in keys])

    def narrow(self, name: str, fingerprint: bytes, keys: Iterable[BlockKey]) -> None:
        """Let blocks make room again that are kept under a name, all but these."""
        disk_key, kept = self._directory.encryption.name, self._directory.kept
        held = kept.of(name)
        left = held & {(fingerprint, disk_key(key)) for key in keys}
        if not left:
            kept.let_go(name)
        elif left != held:
            kept.keep(name, fingerprint, sorted(block for _, block in left))

    def let_go(self, name: str) -> None:
        """Let blocks make room again that are kept under a name."""
        self._directory.kept.let_go(name)

    def is_kept(self, name: str) -> bool:
        """Return whether anything is kept under a name."""
        return bool(self._directory.kept.of(name))

    def found(self, fingerprint: bytes, keys: Iterable[BlockKey]) -> dict[BlockKey, IndexedBlock]:
        """Return those of some blocks that are on disk."""
        index = self._directory.index
        rows = ((key, index.with_key(fingerprint, key)) for key in keys)
        return {key: block for key, block in rows if block is not None}

    def block_size(self, fingerprint: bytes) -> int | None:
        """Return how many tokens a block of a fingerprint has; None if it has none."""
        return self._directory.index.block_size(fingerprint)

    def kept_names(self) -> list[str]:
        """Return under which names blocks are kept."""
        return self._directory.kept.names()

    def kept_blocks(self, but: Collection[str] = ()) -> list[IndexedBlock]:
        """Return which blocks on disk are kept, under whatever name; those in `but` do not count."""
        kept = self._kept(but)
        return [block for block in self.blocks() if (block.fingerprint, block.name) in kept]

    def kept_bytes(
        self, but: Collection[str] = (), beside: Mapping[bytes, Sequence[BlockKey]] | None = None
    ) -> int:
        """Return how many bytes of what is on disk are kept.

        Args:
            but: names that do not count.
            beside: keys by fingerprint, to be kept as well; those that are not on disk yet count as those do
                that are.
        """
        kept = self._kept(but)
        num_bytes = self._directory.index.num_bytes(kept)
        for fingerprint, keys in (beside or {}).items():
            found = self.found(fingerprint, keys).values()
            new = [block.num_bytes for block in found if (fingerprint, block.name) not in kept]
            num_absent = len(keys) - len(found)
            each = sum(block.num_bytes for block in found) // len(found) if found else 0
            num_bytes += sum(new) + num_absent * each
        return num_bytes

    def _kept(self, but: Collection[str]) -> Kept:
        if not but:
            return self._directory.kept.all()
        names = (name for name in self.kept_names() if name not in but)
        return frozenset(chain.from_iterable(map(self._directory.kept.of, names)))

    def close(self) -> None:
        self._directory.close()

    def _remove(self, blocks: Iterable[IndexedBlock]) -> DiskUsage:
        blocks = list(blocks)
        names = [name for block in blocks for name in block.names]
        self._directory.remove(names)
        self._directory.sync_removed()
        self._directory.remove_empty()
        self._erase()
        return DiskUsage(
            num_blocks=len(names),
            num_tails=sum(len(block.groups) for block in blocks if block.is_tail),
            num_bytes=sum(block.num_bytes for block in blocks),
        )

    def _erase(self) -> None:
        try:
            self._directory.index.erase()
            self.still_readable = ()
        except StorageError as error:
            told = f"token ids of what was deleted may still be in the index of the cache: {error}"
            self.still_readable = (f"{told} `kvchat cache gc` tries again.",)
