"""Small files in the cache directory, with results that later processes reuse.

    line 1  blake2b of line 2, in hex
    line 2  JSON

A file that is not exactly what was written counts as absent.
"""

import json
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kvchat.platform.private_files import NamedFiles, remove_unfinished, write_private

MAX_BYTES: Final = 1 << 20
"""A larger file was not written here, and is not read."""
_DIGEST_BYTES = 16


class _Unsynced(NamedFiles):
    def sync(self, descriptor: int) -> None:
        """Nothing: what is lost is computed again."""

    def sync_dir(self, path: Path) -> None:
        """Nothing, too."""


_UNSYNCED = _Unsynced()


def read_kept(file: Path) -> Any:
    """Return what was written; None where that cannot be told."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        digest, _, line = file.read_bytes().partition(b"\n")
        return json.loads(line) if digest == _digest(line) else None
    except (OSError, ValueError, RecursionError):
        return None


def write_kept(file: Path, fields: Any) -> None:
    """Write the file, whole or not at all; not being able to costs the next process time.

    Waits for no medium.
    """
    line = json.dumps(fields, separators=(",", ":")).encode()
    write_whole(file, _digest(line) + b"\n" + line)


def write_whole(file: Path, data: bytes) -> None:
    """Write bytes to a file for its owner alone, on the same terms as `write_kept`."""
    with suppress(OSError):
        remove_unfinished(file.parent)
        write_private(file, data, _UNSYNCED)


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=_DIGEST_BYTES).hexdigest().encode()
