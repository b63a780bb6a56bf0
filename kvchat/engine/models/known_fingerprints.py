"""Inputs of each fingerprint, kept beside the blocks so that two can be told apart by name.

A record is a file named by its fingerprint and believed only where its fields give that digest, so nobody can
put words into the mouth of another model.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvchat.engine.api.ids import GroupId
from kvchat.engine.memory.disk.block_file import Layout, Region
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles
from kvchat.engine.models.fingerprint import digest_of
from kvchat.platform.private_files import remove_unfinished, write_private

MAX_RECORD_BYTES = 4 << 20

Fields = Mapping[str, Any]


def remember(cache_dir: Path, fields: Fields, files: SystemFiles = SYSTEM) -> None:
    """Keep the fields of a fingerprint; not being able to costs an export its blocks, and nothing else.

    Effect: durable when this returns, or not there at all.
    """
    fingerprint = digest_of(fields)
    path = _path(cache_dir, fingerprint)
    if recall(cache_dir, fingerprint) is None:
        remove_unfinished(path.parent, files)
        with suppress(OSError):
            write_private(path, json.dumps(fields).encode(), files)


def recall(cache_dir: Path, fingerprint: bytes) -> Fields | None:
    """Return what a fingerprint was taken over, None where that is not known."""
    path = _path(cache_dir, fingerprint)
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            return None
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return fields if is_identity(fields, fingerprint) else None


def is_identity(fields: object, fingerprint: bytes) -> bool:
    """Return whether a fingerprint was taken over exactly these fields."""
    try:
        return isinstance(fields, dict) and digest_of(fields) == fingerprint
    except (TypeError, ValueError, RecursionError):
        return False


def layouts_of(fields: Fields) -> dict[GroupId, Layout]:
    """Return the tensors of one block of each group, from fields that `is_identity` has checked."""
    return {
        GroupId(int(group)): tuple(
            Region(name=name, dtype=dtype, shape=tuple(shape)) for name, dtype, shape in regions
        )
        for group, regions in fields["layouts"].items()
    }


def differing(fields: Fields, other: Fields) -> list[str]:
    """Return the names of the fields in `other` that have another value; inside a config by its own names."""
    found: list[str] = []
    for name, value in sorted(other.items()):
        if fields.get(name) != value:
            found += _inside(name, fields.get(name), value)
    return found


def _inside(name: str, left: object, right: object) -> list[str]:
    if not isinstance(left, dict) or not isinstance(right, dict) or name == "layouts":
        return [name]
    names = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
    return [inner for key in names for inner in _inside(f"{name}.{key}", left.get(key), right.get(key))]


def _path(cache_dir: Path, fingerprint: bytes) -> Path:
    return cache_dir / "fingerprints" / f"{fingerprint.hex()}.json"
