"""What the index says of block files and what is there come to agree again, whichever of them is lost."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import FULL, SLIDING, chain, lose_row, open_store, path_of, read, write_all

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("left", [None, b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_losing_the_index_loses_nothing(tmp_path: Path, left: bytes | None) -> None:
    """Trap 24; also where something else is in its place."""
    blocks = chain(list(range(10))) + chain(list(range(10)), SLIDING)
    with closing(open_store(tmp_path)) as store:
        write_all(store, blocks)
        before = store.usage(), store.children(blocks[0].key)
    for path in tmp_path.glob("index.db*"):
        path.unlink()
    if left is not None:
        (tmp_path / "index.db").write_bytes(left)
    with closing(open_store(tmp_path)) as store:
        assert (store.usage(), store.children(blocks[0].key)) == before
        assert [read(store, block) for block in blocks] == [block.payload for block in blocks]


def test_a_file_whose_row_was_lost_is_found_when_it_is_written_again_and_a_damaged_one_gives_way(
    tmp_path: Path, store: DiskStore
) -> None:
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    lose_row(store, tmp_path, block)
    assert not store.has(block.key, FULL)
    assert not store.write([(block.header, block.payload)])
    assert store.has(block.key, FULL)
    assert store.usage().num_bytes == path_of(tmp_path, block).stat().st_size
    lose_row(store, tmp_path, block)
    path_of(tmp_path, block).write_bytes(b"torn")
    assert store.write([(block.header, block.payload)])
    assert read(store, block) == block.payload
