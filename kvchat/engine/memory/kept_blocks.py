"""Blocks on disk that are kept whatever room is needed: a small file for each name under which they are.

    [0, 32)         fingerprint
    [32, 32 + 32n)  names of the blocks as they are on disk
    [end - 16, end) blake2b of everything before

The files stand beside the blocks and not in the index, which may be lost at any time. One that is damaged
keeps nothing; while one cannot be read, nobody knows what is kept, and nothing goes.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from time import time

from kvchat.directories import make_private, sync
from kvchat.engine.api.ids import KEY_BYTES
from kvchat.engine.memory.block_seal import DiskKey
from kvchat.errors import StorageError

_DIGEST_BYTES = 16
_SUFFIX = ".keep"
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}")
_STALE_S = 60.0

Kept = frozenset[tuple[bytes, DiskKey]]
"""Fingerprints and names of blocks."""


class KeptBlocks:
    """What is kept in one cache directory. May be called from several threads and processes."""

    def __init__(self, home: Path) -> None:
        """Args:
        home: where files and index of the blocks are.
        """
        self._directory = home / "kept"
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._kept: Kept = frozenset()

    def names(self) -> list[str]:
        """Return under which names blocks are kept, damaged files included.

        Raises: StorageError: it cannot be read now.
        """
        return [name.removesuffix(_SUFFIX) for name, _, _ in self._state()]

    def all(self) -> Kept:
        """Return what is kept now; the files are read again where they have changed.

        Raises: StorageError: one cannot be read now, so that anything may be kept.
        """
        seen = self._state()
        if seen != self._seen:
            self._kept = frozenset(entry for name, _, _ in seen for entry in self._read(name))
            self._seen = seen
        return self._kept

    def of(self, name: str) -> Kept:
        """Return what is kept under a name; nothing if there is no such file, or it is damaged.

        Raises: StorageError: it cannot be read now.
        """
        return frozenset(self._read(name + _SUFFIX))

    def keep(self, name: str, fingerprint: bytes, blocks: Iterable[DiskKey]) -> None:
        """Keep these blocks under a name, instead of what was kept under it.

        Raises: StorageError: it cannot be written.
        """
        data = fingerprint + b"".join(blocks)
        file = self._directory / (name + _SUFFIX)
        unfinished = self._directory / f".{name}.{token_hex(4)}"
        try:
            make_private(self._directory)
            self.remove_unfinished()
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data + _digest(data))
                stream.flush()
                os.fsync(descriptor)
            unfinished.rename(file)
            sync(self._directory)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise StorageError(f"cannot write {file}: {error.strerror or error}") from error

    def let_go(self, name: str) -> None:
        """Let blocks make room again; nothing happens if none are kept under this name.

        Raises: StorageError: the file cannot be removed.
        """
        file = self._directory / (name + _SUFFIX)
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot remove {file}: {error.strerror or error}") from error

    def remove_unfinished(self) -> None:
        """Remove what a killed process has left half written; nobody takes so long to write one."""
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if _UNFINISHED.fullmatch(entry.name) and time() - entry.stat().st_mtime > _STALE_S:
                    Path(entry.path).unlink(missing_ok=True)

    def _state(self) -> tuple[tuple[str, int, int], ...]:
        found: list[tuple[str, int, int]] = []
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name.endswith(_SUFFIX):
                        with suppress(FileNotFoundError):  # let go of just now
                            state = entry.stat()
                            found.append((entry.name, state.st_mtime_ns, state.st_ino))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _unread(self._directory, error) from error
        return tuple(sorted(found))

    def _read(self, name: str) -> list[tuple[bytes, DiskKey]]:
        try:
            data = (self._directory / name).read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unread(self._directory / name, error) from error
        data, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if len(data) % KEY_BYTES or digest != _digest(data):
            return []
        fingerprint = data[:KEY_BYTES]
        starts = range(KEY_BYTES, len(data), KEY_BYTES)
        return [(fingerprint, DiskKey(data[start : start + KEY_BYTES])) for start in starts]


def _unread(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} says which blocks stay on disk, and cannot be read: {error.strerror or error}; check its"
        " permissions, or remove it to keep those blocks no longer"
    )


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
