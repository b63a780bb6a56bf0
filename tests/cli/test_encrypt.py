"""`kvchat encrypt`: conversations and KV that nobody reads without the key, through the whole product."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

from kvchat.cli import main, unlocking
from kvchat.config import Paths, read_settings
from kvchat.engine.api.ids import u32le
from kvchat.sealing.sealer import Sealer
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN
from tests.encryption_child import DATA_KEY
from tests.session.turns import exchange
from tests.terminal import ROOT, terminal

SECRET = "marmalade zeppelin orchestra"
CHEAP = ("--cost", "10")
WORDS = (b"marmalade", b"zeppelin", b"orchestra")

Run = Callable[..., tuple[int, str, str]]
Give = Callable[[str], None]

pure = pytest.mark.pure


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process; return exit code, standard output and standard error."""

    def run_one(*words: str) -> tuple[int, str, str]:
        code = main.run(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run_one


@pytest.fixture
def passphrase(monkeypatch: pytest.MonkeyPatch) -> Give:
    def give(passphrase: str) -> None:
        monkeypatch.setenv("KVCHAT_PASSPHRASE", passphrase)

    return give


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


def paths_of(home: Path) -> Paths:
    return read_settings(environ={"KVCHAT_HOME": str(home)}).paths


def make_talk(home: Path, text: str = SECRET) -> None:
    """Store a conversation in the clear."""
    with closing(SessionStore(paths_of(home).sessions_db)) as store:
        session = store.create_session(title=f"about {text}", system=f"system {text}")
        branch = store.branch(session.id, MAIN)
        for number in range(3):
            branch = exchange(store, branch, f"question {number} {text}", f"reply {number} {text}")


def files_with(home: Path, *words: bytes) -> list[Path]:
    found = []
    for file in sorted(home.rglob("*")):
        data = file.read_bytes() if file.is_file() else b""
        if any(word in data or word in str(file).encode() for word in words):
            found.append(file)
    return found


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
    assert json.loads(run("encrypt", "status", "--json")[1]) == {"encrypted": True, "opened_by": "passphrase"}
    assert run("encrypt", "on", *CHEAP)[0] == 2
    assert run("encrypt", "off")[0] == 0
    assert run("sessions", "show", "about", "--json") == before
    assert not list(paths_of(home).data_dir.glob("sessions.key*[!k]"))
    assert run("encrypt", "off")[0] == 2
    assert "in the clear" in run("encrypt")[1]


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
        assert "another one" in err
        assert SECRET not in out + err
    monkeypatch.delenv("KVCHAT_PASSPHRASE")
    code, _, err = run("sessions", "list")
    assert code == 3
    assert "KVCHAT_PASSPHRASE" in err
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
    home: Path,
    run: Run,
    system_keyring: MemoryKeyring,
    passphrase: Give,
    monkeypatch: pytest.MonkeyPatch,
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
    code, _, err = run("sessions", "list")
    assert code == 3
    assert "keyring has no key" in err
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
    code, _, err = run("export", "about", "-o", str(tmp_path / "out.kvchat"))
    assert code == 0
    assert "NOT encrypted" in err
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
        code, _, err = run("encrypt", "on", *CHEAP)
        assert code == 1
        assert "close it and try again" in err
        assert store.search("zeppelin")
        store.create_session(title="and it goes on")
    assert "in the clear" in run("encrypt", "status")[1]
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


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {absent!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from kvchat.cli.main import run
sys.exit(run({words!r}))
"""


def run_without(absent: str, *words: str) -> tuple[int, str]:
    """Run a command line where a package is not installed; return exit code and standard error."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent, words=list(words))],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "KVCHAT_PASSPHRASE": "open sesame"},
        check=False,
    )
    return done.returncode, done.stderr


@pure
def test_a_missing_extra_says_how_it_is_installed(home: Path, run: Run, passphrase: Give) -> None:
    make_talk(home)
    for absent, words in (("cryptography", ()), ("keyring", ("--keyring",))):
        code, err = run_without(absent, "encrypt", "on", *words)
        assert code == 3
        assert "pip install 'kvchat[encryption]'" in err
    with closing(SessionStore(paths_of(home).sessions_db)) as store:
        assert store.search("zeppelin")
    passphrase("open sesame")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    code, err = run_without("cryptography", "sessions", "list")
    assert code == 3
    assert "pip install 'kvchat[encryption]'" in err


@pure
def test_commands_on_plain_conversations_load_no_library_that_encrypts(home: Path) -> None:
    make_talk(home)
    program = (
        "import sys\nfrom kvchat.cli.main import run\nassert run(['sessions', 'list']) == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'cryptography', 'keyring', 'torch'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


@pure
def test_the_terminal_asks_for_the_passphrase_and_does_not_show_it(home: Path) -> None:
    make_talk(home)
    program = "import sys; from kvchat.cli.main import run; sys.exit(run(sys.argv[1:]))"
    variables = {"KVCHAT_HOME": str(home)}
    with terminal(["-c", program, "encrypt", "on", *CHEAP], **variables) as shown:
        shown.until_shown("new passphrase:")
        shown.type("typed unseen\r")
        shown.until_shown("the same again:")
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


@pure
@pytest.mark.parametrize("num_kills", [5, pytest.param(150, marks=pytest.mark.slow)])
def test_killed_while_it_is_turned_on_or_off_a_store_stays_whole(home: Path, num_kills: int) -> None:
    """It is encrypted then and no word is in the clear beside it, or it is in the clear; nothing is lost."""
    make_talk(home)
    paths, random, sealer = paths_of(home), Random(0), Sealer(DATA_KEY)
    before = _texts(paths, None)
    for _ in range(num_kills):
        command = [sys.executable, "-m", "tests.encryption_child", str(home)]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(random.random() * 0.3)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        key = unlocking.key_in_use(paths)
        assert _texts(paths, None if key is None else sealer) == before
        assert not list(paths.data_dir.glob("*.converting"))
        if key is None:
            assert not list(paths.data_dir.glob("sessions.key*[yp]"))
        else:
            assert files_with(home, *WORDS) == []
            assert key.unwrapped(b"open sesame") == DATA_KEY


@pytest.mark.cpu
def test_nothing_of_what_is_said_lies_on_disk_in_the_clear(
    home: Path, run: Run, passphrase: Give, tiny_model: Path
) -> None:
    """Chat, title, system prompt, search, blocks on disk, a killed answer: every byte is looked at."""
    passphrase("open sesame")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    ask = ("ask", "-m", str(tiny_model), "--max-tokens", "40", "--json")
    code, out, err = run(
        *ask, "--new", f"title {SECRET}", "--system", f"system {SECRET}", f"say {SECRET} " * 20
    )
    assert code == 0, err
    code, out, err = run(*ask, "-c", f"and {SECRET} again")
    assert code == 0, err
    done = json.loads(out)
    assert done["loaded"]["disk"] + done["loaded"]["device"] > 0
    assert run("sessions", "search", "zeppelin")[0] == 0
    _kill_while_it_answers(tiny_model)
    settings = unlocking.unlocked(read_settings())
    with closing(SessionStore(settings.paths.sessions_db, settings.engine.sealer)) as store:
        ids = [turn.token_ids or () for turn in store.all_turns(store.find("title").id)]
    assert len(ids) == 6
    runs = [u32le(turn[at : at + 4]) for turn in ids for at in range(0, len(turn) - 4, 4)]
    assert len(list(home.rglob("*.safetensors"))) > 2
    assert files_with(home, *WORDS, SECRET.encode("utf-16-le"), *runs) == []
    assert files_with(home, *(run.hex().encode() for run in runs)) == []


@pytest.mark.slow
@pytest.mark.tui
def test_the_interface_leaves_nothing_in_the_clear_when_it_is_killed(
    home: Path, run: Run, passphrase: Give, tiny_model: Path
) -> None:
    """Neither messages, nor the prompt's history, nor a draft, nor the log."""
    passphrase("open sesame")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    arguments = ["-m", "kvchat", "-m", str(tiny_model), "--max-tokens", "20"]
    with terminal(arguments, KVCHAT_HOME=str(home)) as shown:
        shown.until_shown("f1 help")
        shown.type(f"say {SECRET}\r")
        shown.until_shown("computed")
        shown.type("a draft of marmalade")
        shown.until_shown("a draft of marmalade")
        shown.process.kill()
        shown.process.wait()
    assert len(list(home.rglob("*.safetensors"))) > 0
    assert files_with(home, *WORDS) == []
    assert "zeppelin" in run("sessions", "search", "zeppelin")[1]


def _kill_while_it_answers(tiny_model: Path) -> None:
    command = [sys.executable, "-m", "kvchat", "ask", "-m", str(tiny_model), "-c", "--max-tokens", "4000"]
    process = subprocess.Popen(
        [*command, "--ndjson", f"more {SECRET}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "text":
            break
    process.kill()
    process.wait()
    process.stdout.close()


def _texts(paths: Paths, sealer: Sealer | None) -> list[str]:
    with closing(SessionStore(paths.sessions_db, sealer)) as store:
        (summary,) = store.list_sessions()
        return [summary.session.title, *(turn.text for turn in store.all_turns(summary.session.id))]
