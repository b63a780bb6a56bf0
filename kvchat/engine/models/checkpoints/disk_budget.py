"""Disk budget of prepared weights, under the limit that they share with stored blocks. Knows no torch."""

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvchat.engine.memory.disk.block_encryption import encryption_of
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.models.checkpoints.prepared import blocks_limit
from kvchat.errors import StorageError
from kvchat.platform.encryptor import Encryptor

LIMIT_SHARE: Final = 2
"""Weights in other forms take at most this part of the disk that blocks and they may take."""
_HEAD_BYTES: Final = 1 << 16
"""Of a checkpoint's files beside its numbers, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskBudget:
    """What a person gave to blocks and prepared weights together.

    Args:
        cache_dir: where both are; None: weights are kept nowhere.
        disk_bytes: most bytes of both; None: no limit.
        encryptor: what blocks are encrypted with; None: they are in the clear.
    """

    cache_dir: Path | None
    disk_bytes: int | None = None
    encryptor: Encryptor | None = None

    @property
    def weights_limit(self) -> int | None:
        """Most bytes of weights in other forms, where there are several; None: no limit."""
        return None if self.disk_bytes is None else self.disk_bytes // LIMIT_SHARE

    def make(self, num_bytes: int) -> None:
        """Let blocks go for weights of so many bytes that are about to be written, so that the limit holds.

        Where blocks cannot go now, they do once their store is opened.
        """
        if self.disk_bytes is None or self.cache_dir is None:
            return
        if not (encryption_of(self.encryptor).home(self.cache_dir) / "blocks").is_dir():
            return
        limit_bytes = blocks_limit(self.disk_bytes, self.cache_dir) or 0
        num_bytes += num_bytes // 256 + _HEAD_BYTES
        with suppress(StorageError), closing(CacheAdmin(self.cache_dir, encryptor=self.encryptor)) as admin:
            admin.shrink(max(0, limit_bytes - num_bytes))
