"""Two processes at work on the same block: whatever their order, rows and files agree in the end."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockMissing
from tests.engine.memory.chains import BLOCK_SIZE, FULL, chain, open_store, put_blocks, read, write_all

pytestmark = pytest.mark.pure

(BLOCK,) = chain([1, 2, 3, 4])


class MeetingFiles(SystemFiles):
    """Lets another process act once at one moment of an operation."""

    def __init__(self) -> None:
        self.when_missed: list[Callable[[], object]] = []
        self.when_renamed: list[Callable[[], object]] = []
        self.when_unlinked: list[Callable[[], object]] = []
        self.when_set_aside_were_listed: list[Callable[[], object]] = []

    def open(self, path: Path) -> int:
        try:
            return super().open(path)
        except FileNotFoundError:
            _act(self.when_missed)
            raise

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        _act(self.when_renamed)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        _act(self.when_unlinked)

    def entries(self, path: Path) -> "Sequence[os.DirEntry[str]]":
        try:
            return super().entries(path)
        finally:
            if path.name == "quarantine":
                _act(self.when_set_aside_were_listed)


def test_a_block_written_while_a_reader_misses_it_keeps_its_row(tmp_path: Path) -> None:
    files = MeetingFiles()
    reader, writer = open_store(tmp_path, files=files), open_store(tmp_path)
    files.when_missed.append(lambda: write_all(writer, [BLOCK]))

    with pytest.raises(BlockMissing):
        read(reader, BLOCK)

    _check_agreement(tmp_path, reader, num_blocks=1)
    assert read(reader, BLOCK) == BLOCK.payload


def test_a_block_removed_before_its_writer_settled_it_leaves_no_row(tmp_path: Path) -> None:
    files = MeetingFiles()
    writer, remover = open_store(tmp_path, files=files), open_store(tmp_path)
    files.when_renamed.append(lambda: remover.remove(BLOCK.key, FULL))

    write_all(writer, [BLOCK])

    _check_agreement(tmp_path, writer, num_blocks=0)


def test_a_block_written_again_while_it_is_removed_keeps_its_row(tmp_path: Path) -> None:
    files = MeetingFiles()
    remover, writer = open_store(tmp_path, files=files), open_store(tmp_path)
    write_all(writer, [BLOCK])
    files.when_unlinked.append(lambda: write_all(writer, [BLOCK]))

    remover.remove(BLOCK.key, FULL)

    _check_agreement(tmp_path, remover, num_blocks=1)
    assert read(writer, BLOCK) == BLOCK.payload


def test_a_block_settled_between_a_removals_mark_and_its_end_leaves_no_row(tmp_path: Path) -> None:
    """The writer has its name in place, the remover marks the row and removes the file, the writer settles
    the row, and only then does the remover settle what it has removed.
    """
    writers_files, removers_files = MeetingFiles(), MeetingFiles()
    writer, remover = open_store(tmp_path, files=writers_files), open_store(tmp_path, files=removers_files)
    third = open_store(tmp_path)
    write_all(third, [BLOCK])
    removers_files.when_unlinked.append(lambda: write_all(writer, [BLOCK]))
    writers_files.when_renamed.append(lambda: third.remove(BLOCK.key, FULL))

    remover.remove(BLOCK.key, FULL)

    _check_agreement(tmp_path, remover, num_blocks=0)


@pytest.mark.parametrize("num_listed", [1, 2])
def test_a_block_that_is_set_aside_while_room_is_made_is_counted_where_it_was_or_where_it_is(
    tmp_path: Path, num_listed: int
) -> None:
    blocks = [chain([number, *range(1, BLOCK_SIZE)])[0] for number in range(3)]
    files = MeetingFiles()
    limit_bytes = put_blocks(tmp_path / "sized", blocks[:2])
    writer, other = open_store(tmp_path, files=files, limit_bytes=limit_bytes), open_store(tmp_path)
    write_all(other, blocks[:2])
    # What is called last is called first; each of the last calls may be the one that decides.
    files.when_set_aside_were_listed += [lambda: other.set_aside(blocks[1].key, FULL)]
    files.when_set_aside_were_listed += [lambda: None] * (num_listed - 1)

    assert writer.write([(blocks[2].header, blocks[2].payload)], is_wanted=True)

    found = [*(tmp_path / "blocks").rglob("*.*"), *(tmp_path / "quarantine").iterdir()]
    assert sum(path.stat().st_size for path in found) <= limit_bytes
    assert read(writer, blocks[2]) == blocks[2].payload


def _act(actions: list[Callable[[], object]]) -> None:
    if actions:
        actions.pop()()


def _check_agreement(cache_dir: Path, store: DiskStore, num_blocks: int) -> None:
    sizes = [path.stat().st_size for path in (cache_dir / "blocks").rglob("*.*")]
    assert len(sizes) == num_blocks
    assert (store.usage().num_blocks, store.usage().num_bytes) == (len(sizes), sum(sizes))
