"""Two processes at work on the same block: whatever their order, rows and files agree in the end."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.errors import BlockMissing
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FULL,
    chain,
    check_totals,
    open_store,
    put_blocks,
    read,
    write_all,
)

pytestmark = pytest.mark.pure

(BLOCK,) = chain([1, 2, 3, 4])


class MeetingFiles(SystemFiles):
    """Lets another process act once at one moment of an operation."""

    def __init__(self) -> None:
        self.when: dict[str, list[Callable[[], object]]] = defaultdict(list)

    def open(self, path: Path) -> int:
        try:
            return super().open(path)
        except FileNotFoundError:
            self._act("missed")
            raise

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._act("renamed")

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._act("unlinked")

    def entries(self, path: Path) -> "Sequence[os.DirEntry[str]]":
        try:
            return super().entries(path)
        finally:
            if path.name == "quarantine":
                self._act("set_aside_were_listed")

    def _act(self, moment: str) -> None:
        if self.when[moment]:
            self.when[moment].pop()()


def test_a_block_written_while_a_reader_misses_it_keeps_its_row(tmp_path: Path) -> None:
    files = MeetingFiles()
    reader, writer = open_store(tmp_path, files=files), open_store(tmp_path)
    files.when["missed"].append(lambda: write_all(writer, [BLOCK]))

    with pytest.raises(BlockMissing):
        read(reader, BLOCK)

    check_totals(tmp_path, reader.usage())
    assert reader.usage().num_blocks == 1
    assert read(reader, BLOCK) == BLOCK.payload


def test_a_block_removed_before_its_writer_settled_it_leaves_no_row(tmp_path: Path) -> None:
    files = MeetingFiles()
    writer, remover = open_store(tmp_path, files=files), open_store(tmp_path)
    files.when["renamed"].append(lambda: remover.remove(BLOCK.key, FULL))

    write_all(writer, [BLOCK])

    check_totals(tmp_path, writer.usage())
    assert writer.usage().num_blocks == 0


def test_a_block_written_again_while_it_is_removed_keeps_its_row(tmp_path: Path) -> None:
    files = MeetingFiles()
    remover, writer = open_store(tmp_path, files=files), open_store(tmp_path)
    write_all(writer, [BLOCK])
    files.when["unlinked"].append(lambda: write_all(writer, [BLOCK]))

    remover.remove(BLOCK.key, FULL)

    check_totals(tmp_path, remover.usage())
    assert remover.usage().num_blocks == 1
    assert read(writer, BLOCK) == BLOCK.payload


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
    files.when["set_aside_were_listed"] += [lambda: other.set_aside(blocks[1].key, FULL)]
    files.when["set_aside_were_listed"] += [lambda: None] * (num_listed - 1)

    assert writer.write([(blocks[2].header, blocks[2].payload)], is_wanted=True)

    found = [*(tmp_path / "blocks").rglob("*.*"), *(tmp_path / "quarantine").iterdir()]
    assert sum(path.stat().st_size for path in found) <= limit_bytes
    assert read(writer, blocks[2]) == blocks[2].payload
