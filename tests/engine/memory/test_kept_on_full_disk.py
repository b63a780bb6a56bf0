"""A list of kept blocks that a full disk refuses is told, and what was kept before is kept still."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvchat.engine.memory.block_seal import DiskKey
from kvchat.engine.memory.kept_blocks import KeptBlocks
from kvchat.errors import StorageError
from tests.engine.memory.chains import FINGERPRINT

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


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 32_000])
def test_a_list_that_finds_no_room_changes_nothing_and_leaves_nothing(tmp_path: Path, num_bytes: int) -> None:
    kept = KeptBlocks(tmp_path)
    kept.keep("pack", FINGERPRINT, FEW)
    before = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    with no_file_longer_than(num_bytes):
        for name in ("pack", "other"):
            with pytest.raises(StorageError, match="cannot write"):
                kept.keep(name, FINGERPRINT, MANY)
        assert kept.all() == {(FINGERPRINT, key) for key in FEW}
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before
    kept.keep("other", FINGERPRINT, MANY)
    assert len(KeptBlocks(tmp_path).all()) == len(FEW) + len(MANY)
