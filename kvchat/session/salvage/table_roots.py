"""Root pages of the session database's tables, which are recorded on its first page alone.

Tables begin where they were created, or, once the file was rewritten (see `erasure`), where SQLite creates
them then. So a damaged first page is replaced by one of two others, and the contents of the pages tell which.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import connect

from kvchat.session.salvage.page import PAGE_BYTES

_INDEX_PAGES = (2, 10)
"""What the first byte of a page of an index is; others belong to tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRoots:
    """Where tables begin. `begins_index`: for the first page of each table or index, which of both it is."""

    first_page: bytes
    begins_index: Mapping[int, bool | None]


def layout_of(path: Path) -> TableRoots:
    """Return the layout of a new database, in which no first page is damaged."""
    with closing(connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE rootpage > 0"
        pages = [page for (page,) in connection.execute(query)]
    data = path.read_bytes()
    return TableRoots(
        first_page=data[:PAGE_BYTES], begins_index={page: _is_of_index(data, page) for page in pages}
    )


def likeliest(layouts: Sequence[TableRoots], damaged: Path) -> TableRoots:
    """Return the layout that agrees best with what is on the pages of a file."""
    most = max(max(layout.begins_index) for layout in layouts)
    with open(damaged, "rb") as file:
        data = file.read(most * PAGE_BYTES)
    return max(layouts, key=lambda layout: _num_agreeing(layout, data))


def _num_agreeing(layout: TableRoots, data: bytes) -> int:
    return sum(_is_of_index(data, page) == is_index for page, is_index in layout.begins_index.items())


def _is_of_index(data: bytes, page: int) -> bool | None:
    """Whether a page belongs to an index; None if the data ends before it."""
    start = (page - 1) * PAGE_BYTES
    return data[start] in _INDEX_PAGES if start < len(data) else None
