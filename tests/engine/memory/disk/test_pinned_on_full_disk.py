"""A list of kept blocks that a full disk refuses is told, and what was kept before is kept still."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.pinned_blocks import PinnedBlocks
from kvchat.errors import StorageError
from tests.engine.memory.chains import FINGERPRINT
from tests.engine.memory.disk.failing_files import FailingFiles

pytestmark = pytest.mark.pure

FEW = [DiskKey(bytes([number]) * 32) for number in range(3)]
MANY = [DiskKey(number.to_bytes(32)) for number in range(1, 1001)]


@contextmanager
def no_file_longer_than(num_bytes: int) -> Iterator[None]:
    """Have the system refuse what goes beyond, as a full disk refuses it: after a part was written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_passing", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_list_that_is_refused_anywhere_is_the_one_before_or_the_new_one(
    tmp_path: Path, code: int, is_passing: bool
) -> None:
    """Trap 25: at every operation in turn, where lists are and where there is none yet."""
    num_refused = 0
    for at in range(40):
        files = FailingFiles(code)
        kept = PinnedBlocks(tmp_path / str(at), files)
        if at % 2:
            kept.keep("pack", FINGERPRINT, FEW)
        before = kept.all()
        files.fail(at // 2, is_passing=is_passing)
        told = ""
        try:
            kept.keep("pack", FINGERPRINT, MANY)
        except StorageError as error:
            told = str(error)
            num_refused += 1
        assert told == "" or "cannot write" in told
        files.fail(None)
        assert kept.all() in (before, {(FINGERPRINT, key) for key in MANY})
        left = list((tmp_path / str(at)).rglob(".*"))
        assert left == [] or code == errno.EROFS, "where nothing can be removed it waits for the next list"
        kept.keep("pack", FINGERPRINT, MANY)
        kept.let_go("pack")
        assert kept.all() == frozenset()
    assert num_refused > 8
