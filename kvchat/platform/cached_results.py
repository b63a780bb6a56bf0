"""Small files in the cache directory, with results that later processes reuse.

    line 1  blake2b of line 2, in hex
    line 2  JSON

A file that is not exactly what was written counts as absent.
"""

import json
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import Any, Final

from kvchat.platform.private_files import STALE_S, make_private

MAX_BYTES: Final = 1 << 20
"""A larger file was not written here, and is not read."""
_DIGEST_BYTES = 16


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
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        make_private(file.parent)
        _remove_unfinished(file)
        with open(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as stream:
            stream.write(data)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _remove_unfinished(file: Path) -> None:
    """Remove what a killed process has left half written; nobody takes so long to write it."""
    for left in file.parent.glob(f".{file.name}.*.tmp"):
        with suppress(OSError):
            if time() - left.stat().st_mtime > STALE_S:
                left.unlink()


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=_DIGEST_BYTES).hexdigest().encode()
