"""A database written anew in another way holds the same rows, or is as it was."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.errors import StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.database.backups import backup_paths
from kvchat.session.database.plain_tables import PLAIN, is_encrypted
from kvchat.session.encryption.rewrite import converting_path, rewrite
from kvchat.session.encryption.tables import EncryptedTables
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, Turn
from tests.session.test_encrypted_store import raw, talk
from tests.session.turns import open_answer, question

pytestmark = pytest.mark.pure

ENCRYPTOR = Encryptor(bytes(range(32)))
ENCRYPTED = EncryptedTables(ENCRYPTOR)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database in the clear with two conversations, one of them in the middle of an answer."""
    path = tmp_path / "sessions.db"
    with closing(SessionStore(path)) as store:
        talk(store, "one")
        session = store.create_session(title="two")
        asked = question(session.id)
        answer = open_answer(asked)
        store.add_turns(store.branch(session.id, MAIN), (asked, answer))
        for number in range(3):
            store.append_to_answer(answer.id, [number], f"{number} ")
    return path


def contents(path: Path, encryptor: Encryptor | None) -> list[object]:
    with closing(SessionStore(path, encryptor)) as store:
        found: list[object] = []
        for summary in store.list_sessions():
            turns: tuple[Turn, ...] = store.all_turns(summary.session.id)
            found += [summary, store.branches(summary.session.id), turns]
        return found


def test_everything_is_the_same_there_and_back(path: Path) -> None:
    before = contents(path, None)
    rewrite(path, PLAIN, ENCRYPTED)
    assert is_encrypted(path)
    assert contents(path, ENCRYPTOR) == before
    rewrite(path, ENCRYPTED, PLAIN)
    assert not is_encrypted(path)
    assert contents(path, None) == before


def test_an_answer_that_was_growing_grows_on(path: Path) -> None:
    rewrite(path, PLAIN, ENCRYPTED)
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        session = store.find("two")
        branch = store.branch(session.id, MAIN)
        assert store.settle(session.id) == 1
        assert branch.leaf_id is not None
        assert store.turn(branch.leaf_id).text == "0 1 2 "


def test_a_turn_that_was_damaged_stays_told_and_the_rest_is_converted(path: Path) -> None:
    with closing(raw(path)) as connection:
        connection.execute("UPDATE turns SET text = 'forged' WHERE num = 1")
    for source, target, encryptor in ((PLAIN, ENCRYPTED, ENCRYPTOR), (ENCRYPTED, PLAIN, None)):
        rewrite(path, source, target)
        with closing(SessionStore(path, encryptor)) as store:
            turns = store.all_turns(store.find("one").id)
            assert [turn.damaged for turn in turns] == [True, False, False, False]


def test_a_title_that_does_not_open_keeps_everything_as_it_is(path: Path) -> None:
    rewrite(path, PLAIN, ENCRYPTED)
    with closing(raw(path)) as connection:
        connection.execute("UPDATE sealed_sessions SET title = 'AAAA' WHERE rowid = 1")
    for copy in backup_paths(path):
        copy.unlink(missing_ok=True)
    with pytest.raises(StorageError, match="is as before"):
        rewrite(path, ENCRYPTED, PLAIN)
    assert is_encrypted(path)
    assert not converting_path(path).exists()


def test_rows_without_digests_are_converted_too(path: Path) -> None:
    """As of digests that do not open."""
    with closing(raw(path)) as connection:
        connection.execute("UPDATE sessions SET digests = NULL")
        connection.execute("UPDATE branches SET digests = NULL")
    before = contents(path, None)
    rewrite(path, PLAIN, ENCRYPTED)
    assert contents(path, ENCRYPTOR) == before


def test_where_nothing_can_be_written_everything_stays_as_it_is(path: Path) -> None:
    before = contents(path, None)
    converting_path(path).mkdir()  # where nothing can be written
    with pytest.raises(StorageError, match="is as before"):
        rewrite(path, PLAIN, ENCRYPTED)
    converting_path(path).rmdir()
    assert not is_encrypted(path)
    assert contents(path, None) == before
