"""The lock of a session's turns: who waits is told, and errors are those of whoever made them."""

from pathlib import Path

import pytest

from kvchat.errors import StorageError
from kvchat.session.tree import SessionId
from kvchat.session.turn_lock import turn_lock

pytestmark = pytest.mark.pure

SESSION = SessionId("0123456789")


def test_an_error_of_whoever_is_told_to_wait_is_not_the_lock_files(tmp_path: Path) -> None:
    def told() -> None:
        raise BrokenPipeError("nobody reads")

    with turn_lock(tmp_path, SESSION):
        with pytest.raises(BrokenPipeError), turn_lock(tmp_path, SESSION, told):
            raise AssertionError("held twice")
        assert list(tmp_path.glob("*.lock"))
    with turn_lock(tmp_path, SESSION, told):
        pass


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{SESSION}.lock").mkdir()
    with pytest.raises(StorageError, match="lock: Is a directory"), turn_lock(tmp_path, SESSION):
        raise AssertionError("held")
