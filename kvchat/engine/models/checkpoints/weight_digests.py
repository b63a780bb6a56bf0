"""Digests of weight files by their content, remembered for as long as a file is the same file."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvchat.platform.cached_results import write_whole

_SHA256 = re.compile(r"[0-9a-f]{64}")
_RACY_NS = 2_000_000_000
"""A file changed this recently may change again within the same tick of its file system's clock."""


class WeightDigests:
    """SHA-256 of weight files, remembered for as long as a file is the same file."""

    def __init__(self, cache_file: Path | None, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.num_read = 0
        """Files whose bytes had to be read."""
        self._cache_file = cache_file
        self._clock_ns = clock_ns
        self._known = _load(cache_file)
        self._is_changed = False

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file in hex: from a hub blob's name, from the cache, or by reading it.

        The cache knows a file by place, inode, size and both its times; ctime cannot be set back by a
        program that wants to keep mtime.
        """
        path = Path(os.path.realpath(path))
        if path.parent.name == "blobs" and _SHA256.fullmatch(path.name):
            return path.name
        before = _identity(path)
        known = self._known.get(str(path))
        if known is not None and known[:-1] == before:
            return str(known[-1])
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.num_read += 1
        if _identity(path) == before and self._clock_ns() - max(before[2:]) > _RACY_NS:
            self._known[str(path)] = [*before, digest]
            self._is_changed = True
        return digest

    def save(self) -> None:
        """Write the cache if it changed, whole or not at all; not being able to costs the next start time."""
        if self._cache_file is not None and self._is_changed:
            write_whole(self._cache_file, json.dumps(self._known).encode())


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _load(cache_file: Path | None) -> dict[str, list[Any]]:
    """Return the remembered digests; what is not exactly in their form was not written by `save`."""
    try:
        known = json.loads(cache_file.read_text(encoding="utf-8")) if cache_file is not None else {}
    except (OSError, ValueError, RecursionError):
        return {}
    entries = known.items() if isinstance(known, dict) else ()
    return {path: entry for path, entry in entries if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 5:
        return False
    *numbers, digest = entry
    return all(type(number) is int for number in numbers) and bool(_SHA256.fullmatch(str(digest)))
