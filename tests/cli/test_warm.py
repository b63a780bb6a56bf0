"""Whole processes that share one engine: a lender, and `ask` after `ask` that borrows it.

Lenders are forked by a process that has imported torch; whoever borrows starts as a person starts it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvchat.app.composition import opened
from kvchat.app.config import read_settings
from kvchat.cli.commands.serve import lend
from kvchat.cli.main import run as run_here
from kvchat.cli.output.signals import StopSignals
from kvchat.cli.output.streams import Status
from kvchat.engine.api.config import EngineConfig
from tests.cli.command_line import Run
from tests.fork_server import Forked, ForkServer
from tests.patience import PATIENCE_S
from tests.scripted_engine import ScriptedEngine
from tests.terminal import terminal

pytestmark = pytest.mark.cpu

_KVCHAT = (sys.executable, "-m", "kvchat")
_MANY = 4000


def environ_of(home: Path) -> dict[str, str]:
    return os.environ | {"KVCHAT_HOME": str(home)}


@contextmanager
def lending(home: Path, model: Path, fork_server: ForkServer) -> Iterator[Forked]:
    """Lend an engine; it has loaded when this begins."""
    words = ("serve", "--socket-only", "-m", str(model), "--idle", "36000")
    with fork_server.start(*words, environ=environ_of(home)) as process:
        assert process.stderr.readline().startswith("lending")
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, fork_server: ForkServer
) -> Iterator[Path]:
    """A home in which an engine is lent."""
    home = tmp_path_factory.mktemp("warm") / "home"
    with lending(home, tiny_model, fork_server):
        yield home


class Asker:
    """Asks in processes of their own, which borrow the engine of a home.

    Args:
        run: runs a command in this process.
    """

    def __init__(self, home: Path, model: Path, run: Run) -> None:
        self._home = home
        self._model = model
        self._run = run

    def start(self, *words: str, max_tokens: int = 12) -> "subprocess.Popen[str]":
        command = [*_KVCHAT, "ask", "-m", str(self._model), "--max-tokens", str(max_tokens), *words]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ_of(self._home),
        )

    def __call__(self, *words: str) -> dict[str, Any]:
        out, err = self.start("--json", *words).communicate()
        assert out, err
        event: dict[str, Any] = json.loads(out)
        return event

    def here(self, *words: str) -> dict[str, Any]:
        """Ask in this process, which has loaded torch."""
        return self._event("ask", "-m", str(self._model), "--max-tokens", "12", *words)

    def turns(self, session: str) -> list[dict[str, Any]]:
        return list(self._shown(session)["turns"])

    def branches(self, session: str) -> list[dict[str, Any]]:
        return list(self._shown(session)["branches"])

    def _shown(self, session: str) -> dict[str, Any]:
        return self._event("sessions", "show", session)

    def _event(self, *words: str) -> dict[str, Any]:
        places = ("--data-dir", f"{self._home}/data", "--cache-dir", f"{self._home}/cache")
        event: dict[str, Any] = self._run.json(*words, *places)
        return event


@pytest.fixture
def ask(shared: Path, tiny_model: Path, run: Run) -> Asker:
    return Asker(shared, tiny_model, run)


def test_a_borrowed_engine_prints_what_ones_own_prints_and_shares_its_blocks(ask: Asker) -> None:
    question = "What is this? " + "One more word. " * 40
    cold = ask.here("--no-attach", "--new", "cold", question)
    warm = ask("--new", "warm", question)
    again = ask("--new", "again", question)
    same = ("finish_reason", "text", "model", "exact")
    assert [warm[key] for key in same] == [cold[key] for key in same]
    assert warm.keys() == cold.keys()
    # What one process has computed is on the other's device.
    assert again["loaded"]["device"] == again["usage"]["cached_tokens"] > 0
    following = ask("-s", "warm", "And this?")
    assert following["usage"]["computed_tokens"] <= 1 + len(ask.turns("warm")[2]["token_ids"])


def answers_in_order(ask: Asker, sessions: Sequence[str], num_each: int, num_cold: int) -> None:
    """Ask in all sessions at once, and look at what was stored."""
    for name in sessions:
        ask("--new", name, f"I am {name}.")
    processes = [
        ask.start("--json", "-s", name, f"question {number} to {name}", *(["--no-attach"] * (number < cold)))
        for number in range(num_each)
        for name, cold in zip(sessions, _spread(num_cold, len(sessions)), strict=True)
    ]
    replies = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        replies.append(json.loads(out))
    for name in sessions:
        turns = ask.turns(name)
        # One branch, nothing interleaved: question and answer in turn, each behind the one before.
        assert [branch["name"] for branch in ask.branches(name)] == ["main"]
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * (num_each + 1)
        assert [turn["parent_id"] for turn in turns[1:]] == [turn["id"] for turn in turns[:-1]]
        asked = {turn["text"] for turn in turns[2::2]}
        assert asked == {f"question {number} to {name}" for number in range(num_each)}
        own = [reply for reply in replies if reply["session"] == turns[0]["session_id"]]
        assert {reply["turn"]: reply["text"] for reply in own} == {
            turn["id"]: turn["text"] for turn in turns[3::2]
        }


def _spread(num: int, over: int) -> list[int]:
    return [num // over + (place < num % over) for place in range(over)]


def test_questions_at_once_are_answered_in_turn_and_nothing_is_lost(ask: Asker) -> None:
    answers_in_order(ask, ["one", "two"], num_each=3, num_cold=0)
    assert [len(ask.turns(name)) for name in ("one", "two")] == [2 * (3 + 1)] * 2


@pytest.mark.slow
def test_fifty_questions_in_ten_sessions_at_once_with_four_engines_beside(ask: Asker) -> None:
    names = [f"session-{number}" for number in range(10)]
    answers_in_order(ask, names, num_each=5, num_cold=4)
    assert [len(ask.turns(name)) for name in names] == [2 * (5 + 1)] * 10


def test_a_closed_pipe_and_signals_stop_the_borrowed_engine_at_once_and_what_was_shown_is_saved(
    ask: Asker,
) -> None:
    ends: list[tuple[str, int]] = []
    for name, act in (("pipe", _close), ("key", _interrupt), ("term", subprocess.Popen.terminate)):
        with ask.start("--new", name, "Tell me a story.", max_tokens=_MANY) as process:
            assert process.stdout is not None
            shown = process.stdout.read(5)
            act(process)
            ends.append((name, process.wait(timeout=PATIENCE_S)))
            assert process.stderr is not None
            complaints = process.stderr.read()
        assert "Traceback" not in complaints
        assert "Exception ignored" not in complaints
        answer = ask.turns(name)[-1]
        assert answer["finish"] == "interrupted"
        assert answer["text"].startswith(shown)
        assert len(answer["token_ids"]) < _MANY // 2
    assert ends == [("pipe", 141), ("key", 130), ("term", 143)]


@pytest.mark.parametrize(
    ("code", "words"),
    [(8, ("--fail-on-length", "--new", "short", "Tell me a story.")), (6, ("--new", "long", "word " * 9000))],
)
def test_a_length_that_ends_an_answer_and_one_that_no_context_holds_have_codes(
    code: int, words: tuple[str, ...], ask: Asker
) -> None:
    with ask.start("--json", *words, max_tokens=3) as process:
        out, err = process.communicate()
    assert process.returncode == code, err
    assert code != 6 or json.loads(out)["error"] == "ContextOverflow"
    assert code != 8 or json.loads(out)["finish_reason"] == "length"


def _close(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    process.stdout.close()


def _interrupt(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGINT)


@contextmanager
def watching(home: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Watch the cache of the engine that a home lends."""
    command = [*_KVCHAT, "cache", "watch", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ_of(home)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_cache_of_a_running_engine_is_watched_from_another_process(shared: Path, ask: Asker) -> None:
    ask("--new", "watched", "What is seen of this? " + "One more word. " * 40)
    with watching(shared, "--json") as process:
        assert process.stdout is not None
        for _ in range(2):
            snapshot = json.loads(process.stdout.readline())
            assert snapshot["computed_tokens"] > 0
            assert {tier["tier"] for tier in snapshot["tiers"]} == {"device", "host", "disk"}
        _interrupt(process)
        assert process.wait(timeout=PATIENCE_S) == 130
    with watching(shared, "--events") as process:
        assert process.stdout is not None
        seen: set[tuple[str, str]] = set()
        numbers = [0]
        while ("seal", "it is full") not in seen or ("save", "it is full") not in seen:
            event = json.loads(process.stdout.readline())
            seen.add((event["kind"], event["reason"]))
            numbers.append(event["number"])
        assert numbers == sorted(set(numbers))
        assert {"hit", "miss"} & {kind for kind, _ in seen}
    environ = {"KVCHAT_HOME": str(shared), "COLUMNS": "80"}
    with terminal(["-m", "kvchat", "cache", "watch"], size=(60, 30), **environ) as panel:
        panel.until_shown("one cell =")
        panel.until_shown("room for")
        panel.type("f")
        panel.until_shown("frozen since")
        panel.type("q")
        assert panel.exit_status() == 0


def test_a_watched_engine_that_ends_and_one_that_is_not_there_are_told(
    home: Path, tiny_model: Path, run: Run, fork_server: ForkServer
) -> None:
    code, _, err = run("cache", "watch", "--json")
    assert (code, "kvchat serve" in err) == (2, True)
    with lending(home, tiny_model, fork_server) as lender, watching(home, "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        lender.kill()
        assert process.stderr is not None
        told = process.stderr.read()
        assert (process.wait(timeout=PATIENCE_S), "has ended" in told) == (1, True), told


def test_a_lender_that_is_killed_costs_no_word_and_the_next_question_is_answered_without_it(
    home: Path, tiny_model: Path, run: Run, fork_server: ForkServer
) -> None:
    ask = Asker(home, tiny_model, run)
    with (
        lending(home, tiny_model, fork_server) as lender,
        ask.start("--new", "demo", "--ndjson", "Tell me a story.", max_tokens=_MANY) as process,
    ):
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline()) for _ in range(6)]
        lender.kill()
        events += map(json.loads, process.stdout)
        assert process.wait(timeout=PATIENCE_S) == 1
    assert [event["event"] in ("done", "error") for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["exit_code"] == 1
    shown = "".join(event["text"] for event in events if event["event"] == "text")
    assert shown
    assert ask.turns("demo")[-1]["text"].startswith(shown)
    assert ask.here("-s", "demo", "Go on.")["finish_reason"] in ("stop", "length")


def test_an_engine_that_nobody_borrows_is_given_up_by_itself(model_dir: Path, home: Path) -> None:
    def scripted(model: str, model_dir: Path, config: EngineConfig) -> ScriptedEngine:
        return ScriptedEngine(lambda prompt: [])

    status = Status(quiet=True)
    with StopSignals() as signals, opened(read_settings(), scripted) as kvchat:
        kvchat.load(None, str(model_dir))
        lend(kvchat, status, signals, idle_s=0.05)
        assert signals.exit_code is None
    assert not list(home.rglob("*.sock"))


def test_a_temporary_engine_is_not_lent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["serve", "--socket-only", "--temp"]) == 2
    assert "--temp" in capsys.readouterr().err
