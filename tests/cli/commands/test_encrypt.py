"""`kvchat encrypt`: conversations that nobody reads without the key, and what its commands say."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

from kvchat.session.store import SessionStore
from kvchat.session.unsent_drafts import DraftStore
from tests.cli.command_line import Run
from tests.cli.secret_home import CHEAP, SECRET, WORDS, Give, files_with, make_talk, paths_of
from tests.terminal import terminal

pure = pytest.mark.pure


class MemoryKeyring(KeyringBackend):
    """A keyring that forgets everything at the end of the test."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise PasswordDeleteError(username)


@pytest.fixture
def system_keyring() -> Iterator[MemoryKeyring]:
    before, fake = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(fake)
    yield fake
    keyring.set_keyring(before)


@pure
def test_it_is_turned_on_and_off_again_without_losing_a_word(home: Path, run: Run, passphrase: Give) -> None:
    make_talk(home)
    before = run("sessions", "show", "about", "--json")
    assert before[0] == 0
    plain_block = paths_of(home).cache_dir / "blocks" / "left"
    plain_block.parent.mkdir(parents=True)
    plain_block.write_bytes(SECRET.encode())
    passphrase("open sesame")
    code, out, err = run("encrypt", "on", *CHEAP)
    assert (code, out) == (0, "")
    assert "1 session is encrypted" in err
    assert "not even you" in err
    assert files_with(home, *WORDS) == []
    assert not plain_block.exists()
    assert run("sessions", "show", "about", "--json") == before
    assert run.json("encrypt", "status") == {"encrypted": True, "opened_by": "passphrase"}
    assert run("encrypt", "on", *CHEAP)[0] == 2
    assert run("encrypt", "off")[0] == 0
    assert run("sessions", "show", "about", "--json") == before
    assert not list(paths_of(home).data_dir.glob("sessions.key*[!k]"))
    assert run("encrypt", "off")[0] == 2
    assert "are not encrypted" in run("encrypt")[1]


@pure
def test_what_was_not_sent_is_encrypted_and_comes_back_in_the_clear(
    home: Path, run: Run, passphrase: Give
) -> None:
    make_talk(home)
    drafts = DraftStore(paths_of(home).unsent_dir, None)
    drafts.keep("one", SECRET)
    passphrase("open sesame")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    assert files_with(home, *WORDS) == []
    assert run("encrypt", "off")[0] == 0
    with drafts.lent("one") as draft:
        assert draft.text == SECRET


@pure
def test_without_the_passphrase_nothing_opens_and_it_is_said_what_to_do(
    home: Path, run: Run, passphrase: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_talk(home)
    passphrase("open sesame")
    run("encrypt", "on", *CHEAP)
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    passphrase("close sesame")
    for words in (("sessions",), ("ask", "hello"), ("cache", "status"), ("encrypt", "off")):
        code, out, err = run(*words)
        assert code == 3, words
        assert "the passphrase is wrong" in err
        assert SECRET not in out + err
    monkeypatch.delenv("KVCHAT_PASSPHRASE")
    assert "KVCHAT_PASSPHRASE" in run.err("sessions", "list", code=3)
    after = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    assert {name: data for name, data in after.items() if name in before} == before
    # What needs no conversation needs no passphrase.
    assert run("cache", "path")[0] == 0
    assert run("encrypt", "status")[0] == 0
    passphrase("open sesame")
    assert SECRET in run("sessions", "list")[1]


@pure
def test_another_passphrase_is_set_without_writing_a_conversation_again(
    home: Path, run: Run, passphrase: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_talk(home)
    passphrase("first")
    run("encrypt", "on", *CHEAP)
    run("sessions", "list")
    database = paths_of(home).sessions_db.read_bytes()
    monkeypatch.setenv("KVCHAT_NEW_PASSPHRASE", "second")
    assert run("encrypt", "change", *CHEAP)[0] == 0
    assert paths_of(home).sessions_db.read_bytes() == database
    assert run("sessions", "list")[0] == 3
    passphrase("second")
    assert SECRET in run("sessions", "list")[1]
    monkeypatch.setenv("KVCHAT_NEW_PASSPHRASE", "")
    assert run("encrypt", "change", *CHEAP)[0] == 2
    assert run("sessions", "list")[0] == 0


@pure
def test_a_descriptor_may_hold_the_passphrase(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make_talk(home)

    def give(data: bytes) -> None:
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        monkeypatch.setenv("KVCHAT_PASSPHRASE_FD", str(reading))

    give(b"from a pipe\n")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    give(b"from a pipe")
    assert SECRET in run("sessions", "list")[1]
    give(b"\xff\xfe")
    assert run("sessions", "list")[0] == 2


@pure
def test_the_systems_keyring_opens_them_without_a_question(
    home: Path, run: Run, system_keyring: MemoryKeyring, passphrase: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_talk(home)
    assert run("encrypt", "on", "--keyring")[0] == 0
    assert SECRET in run("sessions", "list")[1]
    assert files_with(home, *WORDS) == []
    (kept,) = system_keyring.kept.values()
    assert files_with(home, kept.encode(), bytes.fromhex(kept)) == []
    assert run("encrypt", "change", "--keyring")[0] == 0
    assert list(system_keyring.kept.values()) != [kept]
    taken, system_keyring.kept = system_keyring.kept, {}
    assert "keyring has no key" in run.err("sessions", "list", code=3)
    system_keyring.kept = taken
    passphrase("open sesame")
    monkeypatch.setenv("KVCHAT_NEW_PASSPHRASE", "open sesame")
    assert run("encrypt", "change", *CHEAP)[0] == 0
    assert system_keyring.kept == {}
    assert SECRET in run("sessions", "list")[1]


@pure
def test_search_finds_what_is_encrypted_and_an_export_says_that_it_is_not(
    home: Path, run: Run, passphrase: Give, tmp_path: Path
) -> None:
    make_talk(home)
    assert "NOT encrypted" not in run("export", "about", "-o", str(tmp_path / "plain.kvchat"))[2]
    passphrase("open sesame")
    run("encrypt", "on", *CHEAP)
    assert "question 1" in run("sessions", "search", "zeppe", "question")[1]
    assert "NOT encrypted" in run.err("export", "about", "-o", str(tmp_path / "out.kvchat"))
    assert SECRET.encode() in (tmp_path / "out.kvchat").read_bytes()
    assert run("import", str(tmp_path / "out.kvchat"))[0] == 0
    assert files_with(home, *WORDS) == []
    assert run("sessions", "rename", f"about {SECRET}", f"renamed {SECRET}")[0] == 0
    assert run("sessions", "rm", "renamed", "--yes")[0] == 0
    assert files_with(home, *WORDS) == []


@pure
def test_it_is_not_turned_on_while_another_kvchat_is_open(
    home: Path, run: Run, passphrase: Give, system_keyring: MemoryKeyring
) -> None:
    make_talk(home)
    passphrase("open sesame")
    with closing(SessionStore(paths_of(home).sessions_db)) as store:
        assert run("encrypt", "on", "--keyring")[0] == 1
        assert system_keyring.kept == {}
        assert "close it and try again" in run.err("encrypt", "on", *CHEAP, code=1)
        assert store.search("zeppelin")
        store.create_session(title="and it goes on")
    assert "are not encrypted" in run("encrypt", "status")[1]
    assert SECRET in run("sessions", "list")[1]
    assert run("encrypt", "on", *CHEAP)[0] == 0


@pure
def test_the_doctor_says_what_is_encrypted_and_asks_for_nothing(
    home: Path, run: Run, passphrase: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_talk(home)

    def said() -> dict[str, object]:
        checks = json.loads(run("doctor", "--no-model", "--json")[1])["checks"]
        return next(check for check in checks if check["name"] == "encryption")

    assert said() == {"name": "encryption", "state": "ok", "encrypted": False}
    passphrase("open sesame")
    run("encrypt", "on", *CHEAP)
    assert said() == {"name": "encryption", "state": "ok", "encrypted": True}
    monkeypatch.delenv("KVCHAT_PASSPHRASE")
    assert said()["state"] == "ok"
    passphrase("wrong")
    assert said()["state"] == "broken"


@pure
def test_the_terminal_asks_for_the_passphrase_and_does_not_show_it(home: Path) -> None:
    make_talk(home)
    program = "import sys; from kvchat.cli.main import run; sys.exit(run(sys.argv[1:]))"
    variables = {"KVCHAT_HOME": str(home)}
    with terminal(["-c", program, "encrypt", "on", *CHEAP], **variables) as shown:
        shown.until_shown("new passphrase:")
        shown.type("typed unseen\r")
        shown.until_shown("repeat it:")
        shown.type("typed unseen\r")
        assert shown.exit_status() == 0
        assert "unseen" not in shown.text
    with terminal(["-c", program, "sessions", "list"], **variables) as shown:
        shown.until_shown("passphrase:")
        shown.type("mistyped\r")
        shown.until(lambda: shown.text.count("passphrase:") == 2)
        shown.type("typed unseen\r")
        shown.until_shown("zeppelin")
        assert shown.exit_status() == 0
