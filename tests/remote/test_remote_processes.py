"""The real program against a server: a question, the window, and what scripts read."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.app.config import RemoteSettings
from kvchat.cli.commands.ask.options import AskOptions
from kvchat.cli.commands.doctor import DoctorOptions
from kvchat.cli.commands.interface import ResumeOptions
from kvchat.cli.commands.pack.make import MakeOptions
from kvchat.cli.commands.serve import ServeOptions
from kvchat.cli.commands.sessions.verify import VerifyOptions
from tests.cli.printed import run_program
from tests.patience import PATIENCE_S
from tests.remote.conftest import RawServer
from tests.serving.conftest import KEY, REPLY, Served
from tests.terminal import terminal

pytestmark = [pytest.mark.pure, pytest.mark.long]


@pytest.fixture
def variables(tmp_path: Path, served: Served) -> dict[str, str]:
    key_file = tmp_path / "key"
    key_file.touch(0o600)
    key_file.write_text(KEY)
    return {
        "KVCHAT_HOME": str(tmp_path / "home"),
        "KVCHAT_REMOTE": served.server.url,
        "KVCHAT_REMOTE_KEY_FILE": str(key_file),
    }


def kvchat(variables: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return run_program(*words, **variables, PYTHONPROFILEIMPORTTIME="1")


def test_a_question_is_answered_by_the_server_without_loading_torch(variables: dict[str, str]) -> None:
    done = kvchat(variables, "ask", "--json", "--new", "talk", "Hello")
    assert done.returncode == 0, done.stderr[-500:]
    event = json.loads(done.stdout)
    assert (event["text"], event["exact"], event["loaded"]) == (REPLY, False, None)
    assert event["backend"] == variables["KVCHAT_REMOTE"]
    assert event["usage"]["cached_tokens"] == 0
    assert not any(line.endswith(("| torch", "| transformers")) for line in done.stderr.splitlines())


def test_only_conversations_go_to_the_server(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is lent, a pack is made and a session is verified here, whatever answers."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert AskOptions().settings().remote.url == variables["KVCHAT_REMOTE"]
    assert ResumeOptions(remote="none").settings().remote.url is None
    for options in (ServeOptions(), MakeOptions(name="spec"), VerifyOptions(), DoctorOptions()):
        assert options.settings().remote == RemoteSettings()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--remote", "http://127.0.0.1:1/v1"), 1),
        (("--remote", "nowhere"), 2),
        (("-m", "another"), 4),
        (("--remote-key-file", "/dev/null"), 3),
        (("--pack", "spec"), 2),
    ],
)
def test_what_goes_wrong_with_a_server_has_its_exit_code(
    variables: dict[str, str], words: tuple[str, ...], code: int
) -> None:
    done = kvchat(variables, "ask", *words, "Hello")
    assert done.returncode == code
    assert done.stdout == ""


def test_a_signal_ends_a_question_that_the_server_has_not_begun_to_answer(
    tmp_path: Path, raw: Callable[..., RawServer]
) -> None:
    server = raw(b"", hangs=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "kvchat", "ask", "--remote", server.url, "-m", "any", "Hello"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"KVCHAT_HOME": str(tmp_path / "home")},
    )
    try:
        assert server.asked.wait(PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143
    finally:
        process.kill()
        process.wait()


def test_the_window_talks_to_the_server_and_says_what_it_reported(
    variables: dict[str, str], served: Served
) -> None:
    with terminal(["-m", "kvchat"], size=(140, 40), **variables) as shown:
        shown.until_shown("scripted at 127.0.0.1")
        shown.type("Hello\r")
        shown.until_shown(REPLY)
        shown.until_shown("by 127.0.0.1")
        shown.type("/fork\r")
        shown.until_shown("main-2")
        shown.type("And now?\r")
        shown.until(lambda: shown.text.count(REPLY) == 2)
        shown.until_shown("and-now")
        shown.type("/why\r")
        shown.until_shown("does not say")
        shown.type("/quit\r")
        assert shown.exit_status() == 0
    page = kvchat(variables, "export", "Hello", "--format", "md", "-o", "-")
    assert page.stdout.count(REPLY) == 2
    assert "127.0.0.1" in page.stdout
