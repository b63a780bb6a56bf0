"""Repair of SQLite's write-ahead log: reads on behind a damaged byte.

SQLite takes a log to end before the first frame whose checksum disagrees, as after a write that was cut off,
and reports nothing: one flipped byte would take back every transaction behind it. But each frame's checksum
continues from the one before, so what was written behind a damaged frame proves that it was no cut-off write;
and the checksum is linear, so it tells which single byte must have been another.

Layout: a header of 32 bytes (magic, version, page size, number, two salts, checksum of these), then frames of
24 bytes (page number, pages after commit or 0, the salts, checksum of the first 8 bytes and the page) and a
page. Everything big-endian; the checksums go over words of either order.

Source: "The SQLite database file format", section 4.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from operator import eq, ne
from pathlib import Path
from typing import BinaryIO

PAGE_BYTES = 4096
_HEADER_BYTES = 32
_FRAME_BYTES = 24 + PAGE_BYTES
_SIGNED = 24
"""Of the header: what its checksum is taken over."""
_LITTLE, _BIG = 0x377F0682, 0x377F0683
_START = {
    order: struct.pack(">3I", magic, 3_007_000, PAGE_BYTES)
    for order, magic in (("little", _LITTLE), ("big", _BIG))
}
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RepairedLog:
    """A log without its damage.

    Args:
        frames: what was signed of each: 8 bytes, and the page.
        explained: a frame that several single bytes explain, and all that it may have been: as it is, with
            another number before the page, and with another page; none: every byte is what was written, or
            nothing explains it.
    """

    header: bytes
    frames: list[bytes]
    explained: tuple[int, list[bytes]]

    @property
    def data(self) -> bytes:
        """The log as it is most likely to have been."""
        return _written(self.header, self.frames)

    def versions(self, database: Path) -> list["RepairedLog"]:
        """Return the log with each of what the explained frame may have been, the likeliest first: where the
        page is most like what stood there before, and where a transaction ends.
        """
        number, explained = self.explained
        before, after = self.frames[:number], self.frames[number + 1 :]
        with open(database, "rb") as file:
            alike = {signed[:4]: _similarity(signed, before, file) for signed in reversed(explained)}
        likeliest = sorted(explained, key=lambda signed: (-alike[signed[:4]], not any(signed[4:8])))
        return [replace(self, frames=[*before, signed, *after]) for signed in likeliest]

    def on(self, database: bytes) -> bytearray:
        """Return a database as it becomes by the transactions of the log, to be read without one.

        Raises: MemoryError: it would become many times as large.
        """
        image, num_bytes, begun = bytearray(database), len(database), list[bytes]()
        for signed in self.frames:
            begun.append(signed)
            if num_pages := int.from_bytes(signed[4:8], "big"):
                num_bytes = num_pages * PAGE_BYTES
                if num_bytes > len(image) + PAGE_BYTES * len(self.frames):
                    raise MemoryError("more pages than were written")
                image.extend(bytes(max(0, num_bytes - len(image))))
                for frame in begun:
                    start = PAGE_BYTES * (int.from_bytes(frame[:4], "big") - 1)
                    if 0 <= start < num_bytes:
                        image[start : start + PAGE_BYTES] = frame[8:]
                begun = []
        del image[num_bytes:]
        image[18:20] = b"\x01\x01"
        return image


def repaired(data: bytes) -> RepairedLog | None:
    """Return a log in which SQLite finds what is behind the damage; None if there is none to be found."""
    if len(data) < _HEADER_BYTES + _FRAME_BYTES:
        return None
    salts = data[_HEADER_BYTES + 8 : _HEADER_BYTES + 16]
    header = _right_header(data[:_HEADER_BYTES], salts)
    if header is None:
        return None
    log = _Log(data, header)
    pages = list(log.pages())
    if not log.is_damaged and header == data[:_HEADER_BYTES]:
        return None
    return RepairedLog(header, pages, log.explained)


class _Log:
    """Reads frame after frame; what was signed of each, corrected where that is possible."""

    def __init__(self, data: bytes, header: bytes) -> None:
        self.is_damaged = False
        self.explained: tuple[int, list[bytes]] = (0, [])
        self._begun: set[int] = set()
        """Numbers of the pages of the transaction so far."""
        self._data = data
        self._order = _order(header)
        self._salts = header[16:24]
        self._sums = _unpacked(header[24:])

    def pages(self) -> Iterator[bytes]:
        """Yield the page numbers and pages of all frames up to the log's end."""
        starts = range(_HEADER_BYTES, len(self._data) - _FRAME_BYTES + 1, _FRAME_BYTES)
        for number, start in enumerate(starts):
            frame = self._data[start : start + _FRAME_BYTES]
            signed, written = frame[:8] + frame[24:], frame[16:24]
            found = _sums(signed, self._sums, self._order)
            if _packed(found) == written:
                self.is_damaged |= frame[8:16] != self._salts
            elif frame[8:16] != self._salts:
                return  # of an earlier log in the same file
            elif self._goes_on(start + _FRAME_BYTES, found):
                self.is_damaged = True  # of the checksum alone
            else:
                right = [*_corrected(signed, found, _unpacked(written), self._order)]
                if sum(map(ne, _packed(found), written)) == 1:
                    right.append(signed)  # it may be the checksum that is damaged
                if not right and not self._goes_on(start + _FRAME_BYTES, _unpacked(written)):
                    return  # cut off
                likely = [one for one in right if self._may_be(start, one)]
                self.is_damaged = True
                as_it_is = [signed] if self._may_be(start, signed) else []
                if len(likely) > 1 and not self.explained[1]:
                    self.explained = number, as_it_is + likely
                if likely and (len(likely) == 1 or not as_it_is):
                    signed = likely[0]
                found = _unpacked(written)
            self._sums = found
            page, size = struct.unpack(">2I", signed[:8])
            self._begun.add(page)
            if size:
                self._begun.clear()
            yield signed

    def _may_be(self, start: int, signed: bytes) -> bool:
        """Return whether the transaction with a frame at a place can have this one: it writes no page twice,
        and none behind the file's end.
        """
        page, size = struct.unpack(">2I", signed[:8])
        others = set(self._begun)
        while not size:
            start += _FRAME_BYTES
            frame = self._data[start : start + 8]
            if len(frame) < 8:
                return True  # cut off
            other, size = struct.unpack(">2I", frame)
            others.add(other)
        return bool(0 < page <= size < 1 << 24 and page not in others)

    def _goes_on(self, start: int, sums: Sums) -> bool:
        """Return whether a whole frame stands at a place, behind one with these sums."""
        frame = self._data[start : start + _FRAME_BYTES]
        is_whole = len(frame) == _FRAME_BYTES
        return is_whole and _packed(_sums(frame[:8] + frame[24:], sums, self._order)) == frame[16:24]


def _similarity(signed: bytes, before: list[bytes], database: BinaryIO) -> int:
    """Return how many bytes of a page are those that stood in its place before."""
    earlier = [frame[8:] for frame in before if frame[:4] == signed[:4]]
    if not earlier:
        database.seek(PAGE_BYTES * max(0, int.from_bytes(signed[:4], "big") - 1))
        earlier.append(database.read(PAGE_BYTES))
    return sum(map(eq, signed[8:], earlier[-1]))


def _right_header(header: bytes, salts: bytes) -> bytes | None:
    """Return a header as it was written; None if more than a byte of it is damaged.

    Args:
        salts: those of the first frame.
    """
    signed, written = header[:_SIGNED], header[_SIGNED:]
    for order in ("little", "big"):
        found = _sums(signed, (0, 0), order)
        if signed[:12] == _START[order]:
            num_other = sum(map(ne, _packed(found), written))
            if num_other == 0 or (num_other == 1 and signed[16:] == salts):
                return signed + _packed(found)
        for right in _corrected(signed, found, _unpacked(written), order):
            if right[:12] == _START[order] and right[16:] == salts:
                return right + written
    return None


def _written(header: bytes, pages: list[bytes]) -> bytes:
    """Return a log of these pages, its checksums right."""
    parts, sums, order = [header], _unpacked(header[_SIGNED:]), _order(header)
    for signed in pages:
        sums = _sums(signed, sums, order)
        parts += [signed[:8], header[16:24], _packed(sums), signed[8:]]
    return b"".join(parts)


def _corrected(signed: bytes, found: Sums, written: Sums, order: str) -> Iterator[bytes]:
    """Yield the bytes with one changed, so that they have the sums that were written.

    Differences in the highest bits of a word can be explained by several places.
    """
    first, second = (written[0] - found[0]) & _MASK, (written[1] - found[1]) & _MASK
    changes = _changes()
    # What 1 more in a pair's first or second word adds to both sums, from the last pair back.
    in_first, in_second = (1, 1), (0, 1)
    for word in range(len(signed) // 4 - 2, -1, -2):
        for at, (one, other) in ((word, in_first), (word + 1, in_second)):
            if (one * second - other * first) & _MASK:
                continue
            # One of the two is odd: they are a column of a matrix whose determinant is 1.
            step = first * pow(one, -1, 1 << 32) if one & 1 else second * pow(other, -1, 1 << 32)
            for byte, size in changes.get(step & _MASK, ()):
                place = 4 * at + (byte if order == "little" else 3 - byte)
                if 0 <= signed[place] + size <= 255:
                    yield signed[:place] + bytes([signed[place] + size]) + signed[place + 1 :]
        in_first, in_second = _after(in_first), _after(in_second)


@cache
def _changes() -> Mapping[int, list[tuple[int, int]]]:
    """Return for what a word became more by: which byte, counted from its lowest, by how much."""
    changes: dict[int, list[tuple[int, int]]] = {}
    for byte in range(4):
        for size in (*range(-255, 0), *range(1, 256)):
            changes.setdefault(size << 8 * byte & _MASK, []).append((byte, size))
    return changes


def _after(sums: Sums) -> Sums:
    """Return what a difference in the sums has become behind one more pair of words."""
    first = (sums[0] + sums[1]) & _MASK
    return first, (sums[1] + first) & _MASK


def _sums(data: bytes, sums: Sums, order: str) -> Sums:
    first, second = sums
    words = struct.unpack(f"{'<' if order == 'little' else '>'}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second


def _order(header: bytes) -> str:
    return "big" if int.from_bytes(header[:4], "big") == _BIG else "little"


def _packed(sums: Sums) -> bytes:
    return struct.pack(">2I", *sums)


def _unpacked(data: bytes) -> Sums:
    first, second = struct.unpack(">2I", data)
    return first, second
