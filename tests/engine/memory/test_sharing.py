"""What sessions have in common is kept once, and opening a store looks at what has changed alone."""

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.store import memory_row, sharing_row
from tests.engine.memory.chains import chain, open_store, path_of, put_blocks

pytestmark = pytest.mark.pure


def test_sessions_that_share_a_prompt_hold_its_full_blocks_once(tmp_path: Path) -> None:
    """On disk and on the device; the benchmark says the same of a thousand."""
    assert sharing_row(tmp_path, num_sessions=40).median == 0
    assert memory_row(num_sessions=40).median == 0


def test_opening_a_store_looks_at_no_file_that_has_not_changed(tmp_path: Path) -> None:
    """Seen by what it does not see: a file that nobody wrote through the store, until all are looked at."""
    (block, *others) = chain(list(range(40)))
    put_blocks(tmp_path, others)
    put_blocks(tmp_path / "elsewhere", [block])
    path_of(tmp_path, block).parent.mkdir(exist_ok=True)
    path_of(tmp_path / "elsewhere", block).rename(path_of(tmp_path, block))
    with closing(open_store(tmp_path, limit_bytes=1 << 20)) as store:
        assert store.usage().num_blocks == len(others)
        store.rebuild()
        assert store.usage().num_blocks == len(others) + 1
