"""A page that SQLite wrote can be one; one whose places of cells were moved cannot."""

import sqlite3
from contextlib import closing

import pytest

from kvchat.session.salvage.page import PAGE_BYTES, can_be_page
from tests.damage import flipped

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Inner and outer pages of tables and indices, chains of long rows, and room that was freed."""
    path = tmp_path_factory.mktemp("pages") / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, words TEXT)")
        connection.execute("CREATE INDEX i ON t (words)")
        for number in range(600):
            row = (f"name {number}", f"{number * 7919 % 600} " * (number % 90 if number % 50 else 3000))
            connection.execute("INSERT INTO t (name, words) VALUES (?, ?)", row)
        connection.execute("DELETE FROM t WHERE id % 7 = 3")
        connection.execute("UPDATE t SET words = 'shorter' WHERE id % 11 = 4")
    data = path.read_bytes()
    return [data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES)]


def test_every_page_that_was_written_can_be_one(pages: list[bytes]) -> None:
    assert {page[0] for page in pages[1:]} >= {0, 2, 5, 10, 13}
    for number, page in enumerate(pages, start=1):
        if page[0] in (2, 5, 10, 13) or number == 1:
            assert can_be_page(number, page), number


@pytest.mark.parametrize("place", [0, 1, 3, 4, 5, 6, 7, 8, 9])
def test_a_head_with_another_byte_cannot_be_one(pages: list[bytes], place: int) -> None:
    for number, page in enumerate(pages, start=1):
        if number > 1 and page[0] in (10, 13) and page[3:5] != b"\0\0":
            for mask in (0x01, 0x80, 0xFF):
                other = flipped(page, place, mask)
                assert not can_be_page(number, other) or page[0] ^ mask == 0, (number, mask)
