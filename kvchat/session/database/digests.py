"""Digests of stored rows, part by part: they tell which part of a row is not what was written.

Text and token ids of a turn say the same in two ways. With a digest for each, a damaged one is found and
rebuilt from the other, and the digest proves the result. Sessions and branches have a digest for each column,
which confirms a value among the possible ones.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from operator import ne
from typing import Any

from kvchat.session.tree import MessagePart

Row = Mapping[str, Any] | sqlite3.Row

_DIGEST_BYTES = 16
_FACTS = (
    "session_id", "parent_id", "role", "finish", "model", "fingerprint", "tokenizer", "exact", "starts_over",
)  # fmt: skip
_COLUMN_BYTES = 8
SESSION_COLUMNS = (
    "id", "title", "system", "model", "created_at", "updated_at", "active_branch", "pinned", "namespace",
    "verified", "adapter",
)  # fmt: skip
_LATER_COLUMNS = ("adapter",)
"""The last of them, of which rows that are older have no digest; there they are believed."""
BRANCH_COLUMNS = ("session_id", "name", "leaf_id", "updated_at")
"""What the digests of a session's and a branch's columns are taken over; the first names the session."""
PART_COLUMNS = ("id", "text", "reasoning", "token_ids", *_FACTS)
"""What the digests of a turn are taken over."""


def part_digests(row: Row) -> dict[MessagePart, bytes]:
    """Return the digests of a row's parts as they are now, in the order of its column `parts`."""
    return {
        MessagePart.TEXT: text_digest(row["id"], row["text"], row["reasoning"]),
        MessagePart.IDS: _ids_digest(row["id"], row["token_ids"]),
        MessagePart.FACTS: _facts_digest(row),
    }


def broken_parts(row: Row) -> frozenset[MessagePart]:
    """Return the parts of a row whose digests are not those that were written with them."""
    return _other_than(row["parts"] or b"", part_digests(row))


def _other_than(written: bytes, found: Mapping[MessagePart, bytes]) -> frozenset[MessagePart]:
    starts = range(0, _DIGEST_BYTES * len(found), _DIGEST_BYTES)
    return frozenset(
        part
        for start, (part, digest) in zip(starts, found.items(), strict=True)
        if written[start : start + _DIGEST_BYTES] != digest
    )


def turn_digest(role: str, parent_id: str | None, text: str, reasoning: str, ids: bytes | None) -> bytes:
    """Return the digest of the first version, over all that must not change in a finished turn."""
    digest = blake2b(digest_size=_DIGEST_BYTES, person=b"kvchat.turn1")
    for part in (str(role).encode(), (parent_id or "").encode(), _utf8(text), _utf8(reasoning), ids or b""):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    digest.update(b"\0" if ids is None else b"\1")
    return digest.digest()


def text_digest(turn_id: str, text: str, reasoning: str) -> bytes:
    return _digest(b"kvchat.text2", turn_id, text, reasoning)


def _ids_digest(turn_id: str, ids: bytes | None) -> bytes:
    return _digest(b"kvchat.ids2", turn_id, ids)


def piece_name(turn_id: str, place: int | None) -> str:
    """Return what a piece's digests are bound to; older ones have no place and are bound to nothing."""
    return "" if place is None else f"{turn_id} {place}"


def piece_digests(name: str, text: str, reasoning: str, ids: bytes) -> bytes:
    """Return the digests of a piece's text and of its ids."""
    return text_digest(name, text, reasoning) + _ids_digest(name, ids)


def broken_in_piece(row: Row, turn_id: str) -> frozenset[MessagePart]:
    """Return the parts of a turn's piece that are not what was written; none for one of the first version."""
    written = row["digests"]
    if written is None:
        return frozenset()
    name = piece_name(turn_id, row["place"])
    found = {
        MessagePart.TEXT: text_digest(name, row["text"], row["reasoning"]),
        MessagePart.IDS: _ids_digest(name, row["token_ids"]),
    }
    return _other_than(written, found)


def with_facts(parts: bytes, row: Row) -> bytes:
    """Return the digests of a row's parts with that of its facts as they are now."""
    return parts[:-_DIGEST_BYTES] + _facts_digest(row)


def has_its_text(row: Row, parts: bytes | None) -> bool:
    """Return whether a row's text has the digest among those of its parts; True where there are none."""
    return not parts or text_digest(row["id"], row["text"], row["reasoning"]) == parts[:_DIGEST_BYTES]


def has_its_facts(row: Row, parts: bytes) -> bool:
    return _facts_digest(row) == parts[-_DIGEST_BYTES:]


def column_digests(columns: Sequence[str], row: Row) -> bytes:
    """Return the digests of a row's columns behind each other, each bound to its session and its name."""
    return b"".join(column_digest(row[columns[0]], name, row[name]) for name in columns)


def column_digest(session_id: str, name: str, value: object) -> bytes:
    if isinstance(value, int | float):
        value = repr(float(value))  # SQLite gives a whole number back as a fraction where the column is one
    text = value if value is None or isinstance(value, str) else repr(value)
    return _digest(b"kvchat.column", session_id, name, text)[:_COLUMN_BYTES]


def changed_digests(columns: Sequence[str], written: bytes, session_id: str, values: Row) -> bytes:
    """Return the digests of a row in which some columns change. The others keep theirs, right or not."""
    parts = [written[start : start + _COLUMN_BYTES] for start in range(0, len(written), _COLUMN_BYTES)]
    for name in columns:
        if name in values.keys():  # noqa: SIM118  a row is no mapping
            at = columns.index(name)
            parts[at : at + 1] = [column_digest(session_id, name, values[name])]
    return b"".join(parts)


def broken_columns(columns: Sequence[str], row: Row, written: bytes) -> frozenset[str]:
    """Return the columns that are not what was written; all of them if the row is another session's."""
    earlier = [name for name in columns if name not in _LATER_COLUMNS]
    if len(written) == _COLUMN_BYTES * len(earlier):
        columns = earlier
    return frozenset(
        name
        for at, name in enumerate(columns)
        if not _is_almost(
            written[at * _COLUMN_BYTES : (at + 1) * _COLUMN_BYTES],
            column_digest(row[columns[0]], name, row[name]),
        )
    )


def _is_almost(written: bytes, found: bytes) -> bool:
    """Return whether two digests agree but for one byte: then that byte is damaged, and the value is not."""
    return written == found or (len(written) == len(found) and sum(map(ne, written, found)) <= 1)


def _facts_digest(row: Row) -> bytes:
    return _digest(b"kvchat.facts2", row["id"], *(row[name] for name in _FACTS))


def _digest(person: bytes, *values: str | bytes | int | None) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES, person=person)
    for value in values:
        data = value if isinstance(value, bytes) else _utf8(str(value))
        digest.update(b"\0" if value is None else b"\1")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")
