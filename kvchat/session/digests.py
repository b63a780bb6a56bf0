"""Digests of what is stored of a turn, part by part: what tells which part of a row is not what was written.

Text and token ids say the same in two ways. With a digest for each, a damaged one is found and rebuilt from
the other, and the digest proves that what was rebuilt is what was written.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from kvchat.session.tree import Part

Row = Mapping[str, Any] | sqlite3.Row

_DIGEST_BYTES = 16
_PARTS = (Part.TEXT, Part.IDS, Part.FACTS)
_FACTS = (
    "session_id", "parent_id", "role", "finish", "model", "fingerprint", "tokenizer", "exact", "starts_over",
)  # fmt: skip
PART_COLUMNS = ("id", "text", "reasoning", "token_ids", *_FACTS)
"""What the digests of a turn are taken over."""


@dataclass(frozen=True, slots=True)
class PartDigests:
    """The digests of a row's parts, as they stand behind each other in its column `parts`."""

    packed: bytes

    @classmethod
    def of(cls, row: Row) -> "PartDigests":
        """Return the digests of a row's values as they are now."""
        return cls(
            text_digest(row["id"], row["text"], row["reasoning"])
            + ids_digest(row["id"], row["token_ids"])
            + _facts_digest(row)
        )

    def without(self, parts: frozenset[Part]) -> bytes:
        """Return the digests with those of some parts blank, so that nothing vouches for them."""
        return b"".join(
            bytes(_DIGEST_BYTES) if part in parts else self.packed[start : start + _DIGEST_BYTES]
            for part, start in _starts()
        )

    def broken(self, written: bytes) -> frozenset[Part]:
        """Return the parts whose digests are not those that were written."""
        return frozenset(
            part
            for part, start in _starts()
            if self.packed[start : start + _DIGEST_BYTES] != written[start : start + _DIGEST_BYTES]
        )


def _starts() -> Iterator[tuple[Part, int]]:
    return ((part, at * _DIGEST_BYTES) for at, part in enumerate(_PARTS))


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


def ids_digest(turn_id: str, ids: bytes | None) -> bytes:
    return _digest(b"kvchat.ids2", turn_id, ids)


def piece_digests(text: str, reasoning: str, ids: bytes) -> bytes:
    """Return the digests of a piece's text and of its ids."""
    return text_digest("", text, reasoning) + ids_digest("", ids)


def broken_in_piece(row: Row) -> frozenset[Part]:
    """Return the parts of a piece that are not what was written; none for one of the first version."""
    written = row["digests"]
    if written is None:
        return frozenset()
    found = {
        Part.TEXT: written[:_DIGEST_BYTES] == text_digest("", row["text"], row["reasoning"]),
        Part.IDS: written[_DIGEST_BYTES:] == ids_digest("", row["token_ids"]),
    }
    return frozenset(part for part, is_right in found.items() if not is_right)


def has_its_facts(row: Row, parts: bytes) -> bool:
    """Return whether a row's facts have the digest among those of its parts."""
    return _facts_digest(row) == parts[-_DIGEST_BYTES:]


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
