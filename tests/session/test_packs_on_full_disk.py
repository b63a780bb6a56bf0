"""A pack that finds no room is refused with a reason, and the pack before it stays whole."""

import errno
from pathlib import Path

import pytest

from kvchat.errors import StorageError
from kvchat.session.packs import PackStore
from tests.engine.memory.disk.failing_files import FailingFiles
from tests.engine.memory.disk.test_crash_states_of_small_files import pack

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("is_passing", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_pack_that_is_refused_anywhere_takes_nothing_from_the_one_before(
    tmp_path: Path, code: int, is_passing: bool
) -> None:
    """Trap 25: at every operation in turn; two of one name are there until the older one can go."""
    seen = set()
    for at in range(14):
        files = FailingFiles(code)
        store = PackStore(tmp_path / str(at), None, files)
        store.put(pack("one"))
        files.fail(at, is_passing=is_passing)
        told = ""
        try:
            store.put(pack("two"))
        except StorageError as error:
            told = str(error)
            seen.add("refused")
        assert told == "" or "cannot be written" in told
        files.fail(None)
        texts = tuple(found.text for found in store.all())
        assert texts in {("one",), ("two",), ("one", "two"), ("two", "one")}
        seen.add(texts)
        left = list((tmp_path / str(at)).glob(".*"))
        assert left == [] or code == errno.EROFS, "where nothing can be removed it waits for the next pack"
        store.put(pack("two"))
        assert [found.text for found in store.all()] == ["two"]
    assert {"refused", ("one",), ("two",)} <= seen


def test_a_removal_that_is_refused_leaves_the_pack(tmp_path: Path) -> None:
    files = FailingFiles(errno.EROFS)
    store = PackStore(tmp_path, None, files)
    store.put(pack("one"))
    files.fail(0)
    with pytest.raises(StorageError, match="cannot be written"):
        store.remove(pack("one"))
    files.fail(None)
    assert [found.text for found in store.all()] == ["one"]
