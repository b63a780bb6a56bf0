"""What lies on disk of encrypted conversations: no word in the clear, and all of them, also after a kill."""

import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from kvchat.app import unlock
from kvchat.app.config import read_settings
from kvchat.engine.api.ids import u32le
from kvchat.platform.encryptor import Encryptor
from kvchat.platform.paths import Paths
from kvchat.session.store import SessionStore
from tests.cli.command_line import Run
from tests.cli.secret_home import CHEAP, SECRET, WORDS, Give, files_with, make_talk, paths_of
from tests.encryption_child import DATA_KEY
from tests.fork_server import ForkServer
from tests.terminal import ROOT, terminal


@pytest.mark.pure
@pytest.mark.long
@pytest.mark.parametrize("num_kills", [5, pytest.param(150, marks=pytest.mark.slow)])
def test_killed_while_it_is_turned_on_or_off_a_store_stays_whole(home: Path, num_kills: int) -> None:
    """It is encrypted then and no word is in the clear beside it, or it is in the clear; nothing is lost."""
    make_talk(home)
    paths, random, encryptor = paths_of(home), Random(0), Encryptor(DATA_KEY)
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
        key = unlock.key_in_use(paths)
        assert _texts(paths, None if key is None else encryptor) == before
        assert not list(paths.data_dir.glob("*.converting"))
        if key is None:
            assert not list(paths.data_dir.glob("sessions.key*[yp]"))
        else:
            assert files_with(home, *WORDS) == []
            assert key.unwrapped(b"open sesame") == DATA_KEY


@pytest.mark.cpu
@pytest.mark.usefixtures("loading_pays")
def test_nothing_of_what_is_said_lies_on_disk_in_the_clear(
    home: Path, run: Run, passphrase: Give, tiny_model: Path, fork_server: ForkServer
) -> None:
    """Chat, title, system prompt, search, blocks on disk, a killed answer: every byte is looked at."""
    passphrase("open sesame")
    assert run("encrypt", "on", *CHEAP)[0] == 0
    ask = ("ask", "-m", str(tiny_model), "--max-tokens", "40", "--json")
    assert (
        run(*ask, "--new", f"title {SECRET}", "--system", f"system {SECRET}", f"say {SECRET} " * 20)[0] == 0
    )
    out = run.out(*ask, "-c", f"and {SECRET} again")
    done = json.loads(out)
    assert done["loaded"]["disk"] + done["loaded"]["device"] > 0
    assert run("sessions", "search", "zeppelin")[0] == 0
    _kill_while_it_answers(tiny_model, fork_server)
    settings = unlock.unlocked(read_settings())
    with closing(SessionStore(settings.paths.sessions_db, settings.engine.encryptor)) as store:
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


def _kill_while_it_answers(tiny_model: Path, fork_server: ForkServer) -> None:
    words = ("ask", "-m", str(tiny_model), "-c", "--max-tokens", "4000", "--ndjson", f"more {SECRET}")
    with fork_server.start(*words) as process:
        for line in process.stdout:
            if json.loads(line)["event"] == "text":
                break
        process.kill()


def _texts(paths: Paths, encryptor: Encryptor | None) -> list[str]:
    with closing(SessionStore(paths.sessions_db, encryptor)) as store:
        (summary,) = store.list_sessions()
        return [summary.session.title, *(turn.text for turn in store.all_turns(summary.session.id))]
