"""A encrypted session store behaves as a plain one, and its files tell nobody what was said."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kvchat.engine.api.ids import u32le
from kvchat.errors import EncryptionError, StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.database import schema
from kvchat.session.database.backups import backup_paths
from kvchat.session.database.plain_tables import is_encrypted
from kvchat.session.encryption import tables
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, MessagePart, Turn
from tests.damage import after_trouble
from tests.session.turns import exchange, open_answer, question

pytestmark = pytest.mark.pure

ENCRYPTOR = Encryptor(bytes(range(32)))
IDS = tuple(range(70_000, 70_012))
SECRET = "marmalade zeppelin"


@pytest.fixture
def store(path: Path) -> Iterator[SessionStore]:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        yield store


def talk(store: SessionStore, title: str = f"title {SECRET}", num_turns: int = 2) -> tuple[Turn, ...]:
    """Store a conversation of which everything is secret."""
    session = store.create_session(title=title, system=f"system {SECRET}", model=f"/home/{SECRET}")
    branch = store.branch(session.id, MAIN)
    for number in range(num_turns):
        branch = exchange(store, branch, f"question {number} {SECRET}", f"reply {number} {SECRET}", IDS)
    store.create_branch(session.id, leaf_id=branch.leaf_id, name=f"branch {SECRET}")
    return store.turns_to(branch.leaf_id)


def everything_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file())


def raw(path: Path) -> sqlite3.Connection:
    """Open a database as somebody without the key."""
    return sqlite3.connect(path, isolation_level=None)


def test_no_byte_on_disk_tells_text_titles_names_or_token_ids(store: SessionStore, path: Path) -> None:
    """Also while it is open, in the middle of an answer, after a search, and in the daily copy."""
    turns = talk(store)
    branch = store.branch(turns[0].session_id, MAIN)
    asked = question(turns[0].session_id, f"open {SECRET}", IDS, parent=branch.leaf_id)
    answer = open_answer(asked)
    store.add_turns(branch, (asked, answer))
    store.append_to_answer(answer.id, IDS, f"piece {SECRET}")
    assert store.search("zeppelin")
    store.rename(turns[0].session_id, f"renamed {SECRET}")
    found = everything_in(path.parent)
    store.close()
    for data in (found, everything_in(path.parent)):
        assert len(data) > 10_000
        for word in (b"marmalade", b"zeppelin", SECRET.encode("utf-16-le"), u32le(IDS), u32le(IDS[:3])):
            assert word not in data
    assert backup_paths(path)[0].exists()


def test_two_stores_on_one_file_see_each_other(path: Path) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as one, closing(SessionStore(path, ENCRYPTOR)) as two:
        turns = talk(one)
        assert two.search("marmalade")
        branch = two.branch(turns[0].session_id, MAIN)
        moved = exchange(two, branch, "from two", "yes")
        assert exchange(one, branch, "from one", "too").name == f"{MAIN}-2"
        assert one.turns_to(moved.leaf_id)[-2].text == "from two"
        assert {hit.excerpt for hit in one.search("from")} == {"from two", "from one"}


@pytest.mark.parametrize(("column", "part"), [("text", MessagePart.TEXT), ("token_ids", MessagePart.IDS)])
def test_a_damaged_value_is_told_alone_and_repaired_by_the_other(
    path: Path, column: str, part: MessagePart
) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        whole = talk(store)[1]
    with closing(raw(path)) as connection:
        (value,) = connection.execute(
            f"SELECT {column} FROM sealed_turns WHERE id = ?", (whole.id,)
        ).fetchone()
        changed = value[:-8] + type(value)(reversed(value[-8:]) if isinstance(value, bytes) else "AAAAAAAA")
        connection.execute(f"UPDATE sealed_turns SET {column} = ? WHERE id = ?", (changed, whole.id))
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        broken = store.turn(whole.id)
        assert broken.broken == {part}
        assert store.repair(replace(broken, text="something else", token_ids=(1,))) is None
        mended = store.repair(replace(broken, text=whole.text, token_ids=whole.token_ids))
        assert mended is not None
        assert store.turn(whole.id) == replace(whole, repaired=True)


def test_what_does_not_open_is_never_vouched_for_by_a_change_beside_it(path: Path) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        turn = talk(store)[1]
    with closing(raw(path)) as connection:
        connection.execute("UPDATE sealed_turns SET text = 'AAAA' WHERE id = ?", (turn.id,))
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        store.mark_answer(turn.id, model="other", fingerprint=turn.fingerprint)
    with closing(raw(path)) as connection:
        query = "SELECT text FROM sealed_turns WHERE id = ?"
        assert connection.execute(query, (turn.id,)).fetchone() == ("AAAA",)


@pytest.mark.parametrize("column", ["text", "reasoning", "token_ids", "model", "digest", "parts"])
def test_values_of_two_turns_that_were_swapped_do_not_open(path: Path, column: str) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        turns = talk(store)
    one, two = turns[0].id, turns[2].id
    with closing(raw(path)) as connection:
        values = {
            row[0]: row[1] for row in connection.execute(f"SELECT id, {column} FROM sealed_turns").fetchall()
        }
        for here, there in ((one, two), (two, one)):
            connection.execute(f"UPDATE sealed_turns SET {column} = ? WHERE id = ?", (values[there], here))
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        for turn in (store.turn(one), store.turn(two)):
            if column in ("text", "token_ids"):
                assert turn.broken
            assert turn.text in ("", *(other.text for other in turns if other.id == turn.id))
            assert turn.token_ids in ((), *(other.token_ids for other in turns if other.id == turn.id))


@pytest.mark.parametrize("table", ["sessions", "branches"])
def test_a_title_or_a_name_that_does_not_open_costs_nothing_else(path: Path, table: str) -> None:
    """The next start puts a readable one in its place."""
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        texts = [turn.text for turn in talk(store)]
        talk(store, "another")
    column = {"sessions": "title", "branches": "name"}[table]
    with closing(raw(path)) as connection:
        connection.execute(f"UPDATE sealed_{table} SET {column} = 'AAAA' WHERE rowid = 1")
    for copy in backup_paths(path):
        copy.unlink(missing_ok=True)
    with (
        closing(SessionStore(path, ENCRYPTOR)) as store,
        pytest.raises(StorageError, match="start kvchat again"),
    ):
        _look_at_all(store)
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        summaries = store.list_sessions()
        assert len(summaries) == 2
        for summary in summaries:
            branch = store.branch(summary.session.id, summary.session.active_branch)
            assert [turn.text for turn in store.turns_to(branch.leaf_id)] == texts
    assert is_encrypted(path)


def test_another_key_opens_nothing_and_changes_nothing(path: Path) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        talk(store)
    before = sorted(path.parent.iterdir()), path.read_bytes()
    with pytest.raises(EncryptionError, match="from a backup"):
        SessionStore(path, Encryptor(bytes(32)))
    with pytest.raises(EncryptionError, match="its key is gone"):
        SessionStore(path)
    assert (sorted(path.parent.iterdir()), path.read_bytes()) == before


@pytest.mark.parametrize("num_times", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_whatever_is_damaged_nothing_wrong_is_read_and_the_store_works_again(
    path: Path, num_times: int
) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        texts = {turn.text for turn in talk(store, num_turns=12)}
    whole, random = path.read_bytes(), Random(1)
    for _ in range(num_times):
        for leftover in path.parent.glob("sessions.db.damaged*"):
            leftover.unlink()
        at, size = random.randrange(len(whole)), random.choice([1, 16, 512])
        path.write_bytes((whole[:at] + random.randbytes(size) + whole[at + size :])[: len(whole)])
        assert after_trouble(lambda: _texts(path)) <= texts | {""}
        assert is_encrypted(path)
        backup_paths(path)[0].touch()


def test_an_older_encrypted_database_is_brought_forward(path: Path) -> None:
    path.parent.mkdir()
    with closing(raw(path)) as connection:
        for statement in (*schema.MIGRATIONS[0], *schema.MIGRATIONS[1], *tables.CONCEAL):
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 2")
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        assert talk(store)[0].text == f"question 0 {SECRET}"
    with closing(raw(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    assert version == len(schema.MIGRATIONS)


def _look_at_all(store: SessionStore) -> None:
    for summary in store.list_sessions():
        store.branches(summary.session.id)


def _texts(path: Path) -> set[str]:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        return {turn.text for one in store.list_sessions() for turn in store.all_turns(one.session.id)}


def test_a_numbered_branch_takes_its_name_from_the_first_message_also_encrypted(path: Path) -> None:
    with closing(SessionStore(path, ENCRYPTOR)) as store:
        session = store.create_session(title="demo")
        main = exchange(store, store.branch(session.id, MAIN), "One", "1")
        exchange(store, store.create_branch(session.id, leaf_id=main.leaf_id), "By boat", "2")
        assert {branch.name for branch in store.branches(session.id)} == {MAIN, "by-boat"}
        assert store.session(session.id).active_branch == "by-boat"
