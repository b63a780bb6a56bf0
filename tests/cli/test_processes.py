"""Whole processes, a real engine and a tiny random model: what survives their end, however they end.

Where two ends of a conversation have to be two processes, this process is one of them: it has loaded torch.
All but the starter's are forked by a process that has.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.session.tree import Finish
from tests.cli.command_line import Run as InThisProcess
from tests.cli.homes import turns_of
from tests.fork_server import Forked, ForkServer
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("loading_pays")]

DOCUMENT_TOKENS = 2000

# Asks, and never gets to the end of importing torch.
STUCK_IN_TORCH = """
import sys, time

def get_stuck(event, arguments):
    if event == "import" and arguments[0] == "torch":
        print("importing torch", file=sys.stderr, flush=True)
        time.sleep(1000)

sys.addaudithook(get_stuck)
sys.argv[1:1] = ["ask"]
from kvchat.cli.main import main
main()
"""

Run = Callable[..., dict[str, Any]]


def event_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    event: dict[str, Any] = json.loads(done.stdout)
    return event


@pytest.fixture
def ask(tiny_model: Path, fork_server: ForkServer) -> Run:
    """Ask in a process of its own and return the last event."""

    def run(*words: str) -> dict[str, Any]:
        model = ("-m", str(tiny_model), "--max-tokens", "12")
        return event_of(fork_server.run("ask", *model, "--json", *words))

    return run


@pytest.fixture
def ask_here(tiny_model: Path, run: InThisProcess) -> Run:
    """Ask in this process, with an engine of its own, and return the last event."""

    def ask(*words: str, home: Path | None = None, model: str = str(tiny_model)) -> dict[str, Any]:
        place = () if home is None else ("--data-dir", f"{home}/data", "--cache-dir", f"{home}/cache")
        event: dict[str, Any] = run.json("ask", "-m", model, "--max-tokens", "12", *place, *words)
        return event

    return ask


Start = Callable[..., Forked]


@pytest.fixture
def start(tiny_model: Path, fork_server: ForkServer) -> Start:
    """Start a long answer."""

    def begin(*words: str) -> Forked:
        return fork_server.start("ask", "-m", str(tiny_model), "--max-tokens", "4000", *words)

    return begin


def shown(process: Forked, num_pieces: int) -> str:
    """Read the first pieces of an answer."""
    text = ""
    while num_pieces:
        event = json.loads(process.stdout.readline())
        if event["event"] == "text":
            text += event["text"]
            num_pieces -= 1
    return text


def test_a_session_of_2000_tokens_goes_on_in_a_new_process_without_computing_it_again(
    ask: Run, ask_here: Run, home: Path, tmp_path: Path
) -> None:
    document = tmp_path / "document.txt"
    document.write_text(" ".join(f"{number} is a number." for number in range(350)))
    first = ask("--new", "demo", "-f", str(document), "What is this?")
    assert first["usage"]["prompt_tokens"] >= DOCUMENT_TOKENS
    shutil.copytree(home, tmp_path / "cold")
    shutil.rmtree(tmp_path / "cold" / "cache")

    warm = ask("-s", "demo", "And what comes next?")
    usage = warm["usage"]
    question = turns_of(home)[2]
    # The last sampled token was never fed; the question's ids hold the template's glue and the message.
    assert usage["computed_tokens"] == 1 + len(question.token_ids or ())
    assert usage["cached_tokens"] + usage["computed_tokens"] == usage["prompt_tokens"]
    assert warm["loaded"] == {"device": 0, "host": 0, "disk": usage["cached_tokens"], "stateless": 0}

    cold = ask_here("-s", "demo", "And what comes next?", home=tmp_path / "cold")
    assert cold["usage"]["cached_tokens"] == 0
    assert cold["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    assert cold["text"] == warm["text"] != ""


def test_every_word_that_was_shown_survives_a_kill_and_the_talk_goes_on(
    ask_here: Run, home: Path, start: Start
) -> None:
    with start("--ndjson", "--new", "demo", "Tell me a story.") as process:
        text = shown(process, num_pieces=8)
        process.kill()
    question, answer = turns_of(home)
    assert question.text == "Tell me a story."
    assert answer.finish is Finish.INTERRUPTED
    assert answer.text.startswith(text)
    assert ask_here("-s", "demo", "Go on.")["finish_reason"] in ("stop", "length")


def test_asking_nothing_goes_on_with_an_answer_that_was_cut_off(ask: Run, ask_here: Run, home: Path) -> None:
    ask("--new", "demo", "Tell me a story.")
    before = turns_of(home)[1].token_ids or ()
    event = ask_here("-s", "demo")
    after = turns_of(home)[1].token_ids or ()
    assert len(after) == len(before) + event["usage"]["completion_tokens"]
    assert after[: len(before)] == before
    assert event["usage"]["computed_tokens"] == 1  # the last sampled token had never been fed


def test_ctrl_c_while_the_model_loads_exits_130_in_silence(tiny_model: Path) -> None:
    command = [sys.executable, "-c", STUCK_IN_TORCH, "-m", str(tiny_model), "-q", "Hello?"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"importing torch\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait(timeout=PATIENCE_S) == 130
