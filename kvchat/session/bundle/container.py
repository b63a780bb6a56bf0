"""The container of a bundle: records with digests that form a chain.

Layout of a file:

    [0, 16)   magic
    [16, 20)  version, u32 little-endian
    [20, end) records, the last of kind END

Layout of a record:

    [0, 4)            kind, ASCII
    [4, 8)            length h of the header, u32 little-endian
    [8, 16)           length b of the body, u64 little-endian
    [16, 16 + h)      header, a JSON object in UTF-8
    [16 + h, + b)     body
    [16 + h + b, +32) digest: BLAKE2b-256 over the digest before it and everything of this record

The digest before the first record is that of magic and version. So no byte, no record and no order can change
without the last digest, which names the bundle, and a file that stops early has no END. A bundle comes from
anywhere, so every field of a header is checked for its type and range before it is used.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
from msgspec import Meta

from kvchat.errors import BundleError

MAGIC = b"\x93kvchat bundle\n\x1a"
VERSION = 1
DIGEST_BYTES = 32

META, TURN, BLOCK, END = "META", "TURN", "BLOK", "END."

MAX_HEADER_BYTES = {META: 64 << 20, TURN: 64 << 20, BLOCK: 1 << 12, END: 1 << 12}
MAX_BODY_BYTES = {META: 0, TURN: 64 << 20, BLOCK: 1 << 30, END: 0}
MAX_STRUCTURE_BYTES = {META: 4 << 20, TURN: 1 << 16, BLOCK: 1 << 12, END: 1 << 12}
"""Of a header, what is not inside strings: three bytes of JSON can take sixty in memory."""

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_PERSON = b"kvchat.bundle1"
_FRAME = struct.Struct("<4sIQ")
_VERSION = struct.Struct("<I")

Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""A whole number that every JSON reader keeps exactly."""
Seconds = Annotated[float, Meta(ge=0, le=253_402_300_799.0)]
"""A timestamp until the end of the year 9999, the last that calendars here can show, or a duration."""
Name = Annotated[str, Meta(max_length=4096)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    header: dict[str, Any]
    body: bytes


class RecordWriter:
    """Writes records one after the other; nothing stays in memory. `write` takes all of the bytes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        start = MAGIC + _VERSION.pack(VERSION)
        write(start)
        self._write = write
        self.digest = _digest(b"", start)
        """The digest of the last record."""
        self.num_bytes = len(start)

    def write(self, kind: str, header: Mapping[str, object], body: bytes = b"") -> None:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        encoded = text.encode(errors="replace")
        frame = _FRAME.pack(kind.encode(), len(encoded), len(body))
        self.digest = _digest(self.digest, frame, encoded, body)
        for part in (frame, encoded, body, self.digest):
            self._write(part)
            self.num_bytes += len(part)


class RecordReader:
    """Reads records and believes none before its digest agrees. Lengths are bounded before they are used.

    Args:
        file: from its first byte; only read from.
        num_bytes: the file's length.

    Raises:
        BundleError: from every method; the file is no bundle, newer, cut short or damaged.
    """

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        self._file = file
        self._num_bytes = num_bytes
        self.position = 0
        start = self._read(min(len(MAGIC) + _VERSION.size, num_bytes))
        if start[: len(MAGIC)] != MAGIC:
            raise BundleError("it is not a kvchat bundle")
        if len(start) < len(MAGIC) + _VERSION.size:
            raise BundleError("it ends early; copy or export it again")
        (version,) = _VERSION.unpack(start[len(MAGIC) :])
        if version != VERSION:
            raise BundleError(
                f"it has version {version} of the format, and this kvchat reads version {VERSION}; "
                "update kvchat, or copy the file again if it may be damaged"
            )
        self.digest = _digest(b"", start)

    def read(self) -> Record:
        """Return the next record."""
        frame = self._read(_FRAME.size)
        name, header_bytes, body_bytes = _FRAME.unpack(frame)
        kind = name.decode("latin-1")
        if kind not in MAX_HEADER_BYTES:
            raise BundleError(f"it is damaged: there is no kind of record {kind!r}")
        self._check_length(kind, "header", header_bytes, MAX_HEADER_BYTES[kind])
        self._check_length(kind, "body", body_bytes, MAX_BODY_BYTES[kind])
        header, body = self._read(header_bytes), self._read(body_bytes)
        self.digest = _digest(self.digest, frame, header, body)
        if self._read(DIGEST_BYTES) != self.digest:
            raise BundleError(f"it is damaged: the digest of a {kind} record disagrees with its bytes")
        return Record(kind, _parse(header, kind), body)

    def expect_end(self) -> None:
        """Refuse anything behind the last record."""
        if self.position != self._num_bytes:
            raise BundleError(f"it has {self._num_bytes - self.position} bytes behind its end")

    def _check_length(self, kind: str, part: str, num_bytes: int, limit: int) -> None:
        left = self._num_bytes - self.position
        if num_bytes > limit:
            raise BundleError(
                f"the {part} of a {kind} record claims {num_bytes} bytes; at most {limit} are read"
            )
        if num_bytes > left:
            raise BundleError(
                f"the {part} of a {kind} record claims {num_bytes} bytes, and {left} are left: "
                "the file ends early or is damaged; copy or export it again"
            )

    def _read(self, num_bytes: int) -> bytes:
        data = self._file.read(num_bytes)
        self.position += len(data)
        if len(data) != num_bytes:
            raise BundleError("it ends early; copy or export it again")
        return data


def read_header(kind: type[T], header: Mapping[str, Any], place: str) -> T:
    """Return a header's JSON object as a value of a type; fields that it does not know are left out.

    Args:
        place: what the header describes, for messages.

    Raises:
        BundleError: a field is missing or of another type or range.
    """
    try:
        return msgspec.convert(header, kind)
    except msgspec.ValidationError as error:
        raise BundleError(f"{place}: {error}") from error


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=DIGEST_BYTES, person=_PERSON)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _parse(header: bytes, kind: str) -> dict[str, Any]:
    """Return a header's JSON object; names that occur twice and numbers that are none are refused."""
    if _has_more_structure(header, MAX_STRUCTURE_BYTES[kind]):
        raise BundleError(f"the header of a {kind} record has too many values")
    try:
        value = json.loads(header, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"the header of a {kind} record is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BundleError(f"the header of a {kind} record is no JSON object")
    return value


def _has_more_structure(header: bytes, limit: int) -> bool:
    if len(header) <= limit:
        return False
    num_bytes = end = 0
    for string in _STRINGS.finditer(header):
        num_bytes += string.start() - end
        end = string.end()
        if num_bytes > limit:
            return True
    return num_bytes + len(header) - end > limit


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    # Half a surrogate pair is no text, though JSON can write one.
    return {name: one.encode(errors="replace").decode() if type(one) is str else one for name, one in pairs}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
