"""SQLite page check: a page is sound if its cells and free space fill it exactly.

Damage inside a cell is for the digests of rows to find. Damage to the places of cells hides rows, and shows
here.

Layout of a page of a tree: kind (1 byte), first free block (2), number of cells (2), beginning of the cells
(2), bytes in gaps too small for a free block (1), for inner pages a child (4), then the places of the cells
(2 each). Page 1 has the file header before that. A free block begins with the place of the next one and its
own size (2 bytes each). All numbers big-endian.

Source: "The SQLite database file format", section 1.6.
"""

import struct
from itertools import pairwise

PAGE_BYTES = 4096
_FILE_HEAD_BYTES = 100
_INNER_INDEX, _INNER_TABLE, _OUTER_INDEX, _OUTER_TABLE = 2, 5, 10, 13
_HEAD_BYTES = {_INNER_INDEX: 12, _INNER_TABLE: 12, _OUTER_INDEX: 8, _OUTER_TABLE: 8}
_LEAST_CELL_BYTES = 4
# How much of a cell's content lies in its own page: all up to the most, else at least the least.
_MOST_OF_TABLE = PAGE_BYTES - 35
_MOST_OF_INDEX = (PAGE_BYTES - 12) * 64 // 255 - 23
_LEAST = (PAGE_BYTES - 12) * 32 // 255 - 23


def can_be_page(number: int, page: bytes) -> bool:
    """Return whether a page of this number can hold these bytes: a tree's, or of no tree. Pure."""
    start = _FILE_HEAD_BYTES if number == 1 else 0
    kind = page[start]
    if kind == 0:
        return True  # of a chain: it begins with the number of the next, and no file has 2^24 pages
    if kind not in _HEAD_BYTES:
        return False
    free, num_cells, content, num_lost = struct.unpack_from(">HHHB", page, start + 1)
    end = start + _HEAD_BYTES[kind] + 2 * num_cells
    if not end <= content <= PAGE_BYTES:
        return False
    places = struct.unpack_from(f">{num_cells}H", page, end - 2 * num_cells)
    try:
        cells = [(place, _cell_bytes(kind, page, place)) for place in places]
        taken = sorted([*cells, *_free_blocks(page, free)])
    except (IndexError, struct.error):
        return False
    bounds = [(content, 0), *taken, (PAGE_BYTES, 0)]
    is_apart = all(one + size <= other for (one, size), (other, _) in pairwise(bounds))
    return is_apart and sum(size for _, size in taken) + num_lost == PAGE_BYTES - content


def _cell_bytes(kind: int, page: bytes, place: int) -> int:
    """Raises:
    IndexError: it would go beyond the page.
    """
    at = place + 4 if kind in (_INNER_INDEX, _INNER_TABLE) else place
    if kind == _INNER_TABLE:
        _, at = _varint(page, at)
        return max(_LEAST_CELL_BYTES, at - place)
    size, at = _varint(page, at)
    if kind == _OUTER_TABLE:
        _, at = _varint(page, at)
    most = _MOST_OF_TABLE if kind == _OUTER_TABLE else _MOST_OF_INDEX
    if size > most:
        local = _LEAST + (size - _LEAST) % (PAGE_BYTES - 4)
        size = (local if local <= most else _LEAST) + 4
    return max(_LEAST_CELL_BYTES, at + size - place)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits in each of up to nine bytes, and where it ends."""
    value = 0
    for _ in range(8):
        byte = page[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | page[at], at + 1


def _free_blocks(page: bytes, place: int) -> list[tuple[int, int]]:
    """Raises:
    struct.error: one would lie beyond the page.
    """
    found: list[tuple[int, int]] = []
    while place:
        following, size = struct.unpack_from(">2H", page, place)
        found.append((place, size))
        if following and following <= place:
            raise struct.error("free blocks go on towards the end")
        place = following
    return found
