"""After a clock that ran ahead blocks still go in the order of their use, again and again."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import FULL, Clock, block_behind, chain, open_store, write_all

pytestmark = pytest.mark.pure

YEAR_S = 365 * 86_400.0
ROOTS = [block_behind(chain([0, 0, 0, 0])[0].header.parent, [n, 0, 0, 0]) for n in range(24)]
KEYS = [block.key for block in ROOTS]


def there(store: DiskStore) -> list[int]:
    return [number for number, flag in enumerate(store.has_all(KEYS, FULL)) if flag]


@pytest.mark.parametrize("ahead_s", [20 * YEAR_S, 7000 * YEAR_S])
def test_what_was_written_first_goes_first(tmp_path: Path, ahead_s: float) -> None:
    """All moments were one and the same until that date: what went was chance."""
    clock = Clock()
    with closing(open_store(tmp_path, clock=clock)) as store:
        clock.now_s += ahead_s
        write_all(store, ROOTS[:1])
        file_bytes = store.total_usage().num_bytes
    clock.now_s -= ahead_s
    with closing(open_store(tmp_path, clock=clock, limit_bytes=4 * file_bytes)) as store:
        for number in range(1, len(ROOTS)):
            clock.now_s += 1
            write_all(store, [ROOTS[number]])
            assert there(store) == list(range(max(0, number - 3), number + 1))


def test_what_was_used_first_goes_first(tmp_path: Path) -> None:
    clock = Clock()
    with closing(open_store(tmp_path, clock=clock)) as store:
        write_all(store, ROOTS[:11])
        file_bytes = store.total_usage().num_bytes // 11
        clock.now_s += 20 * YEAR_S
        write_all(store, ROOTS[11:12])
    clock.now_s -= 20 * YEAR_S
    order = [7, 3, 9, 0, 5, 10, 1, 8, 2, 6, 4, 11]
    with closing(open_store(tmp_path, clock=clock, limit_bytes=12 * file_bytes)) as store:
        for number in order:
            clock.now_s += 1
            store.touch([KEYS[number]])
        store.flush_touched()
        found = store._index.oldest_leaves(12)
    assert [KEYS.index(leaf.key) for leaf in found] == order
