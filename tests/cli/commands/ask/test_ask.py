"""One question from the first option to the exit code, with an engine that follows a script."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import sleep

import pytest
from tokenizers import Tokenizer

from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.chat.engine_client import EngineClient
from kvchat.cli.commands.ask.ask import answer
from kvchat.cli.commands.ask.options import AskOptions
from kvchat.cli.commands.ask.prompt import read_prompt
from kvchat.engine.api.config import EngineConfig
from kvchat.errors import ContextOverflow, EngineFailed, ModelUnreadable, StorageError
from kvchat.session.tree import Finish, Turn
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.pure


class Asker:
    """Asks with a scripted engine and remembers with what the engine was made."""

    def __init__(self, model_dir: Path, reply: str) -> None:
        self.model_dir = model_dir
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        ids = [*tokenizer.encode(reply).ids, tokenizer.token_to_id("<|end|>")]
        self.engine = ScriptedEngine(lambda prompt: ids)
        self.asked_for: list[tuple[str, Path, EngineConfig]] = []

    def __call__(self, question: str = "hello", **options: object) -> int:
        values = AskOptions(**{"model": str(self.model_dir)} | options)  # type: ignore[arg-type]
        prompt = read_prompt([question], [], None)
        return answer(values, values.settings(), prompt, self._make)

    def _make(self, model: str, model_dir: Path, config: EngineConfig) -> EngineClient:
        self.asked_for.append((model, model_dir, config))
        return self.engine


@pytest.fixture
def ask(model_dir: Path) -> Asker:
    return Asker(model_dir, "Hello, Ana.")


def stored() -> list[Sequence[Turn]]:
    """Return the turns of every session, last used first."""
    with closing(open_store(read_settings())) as store:
        return [store.all_turns(summary.session.id) for summary in store.list_sessions()]


def after_first_token(ask: Asker, act: Callable[[], None]) -> None:
    """Do something as soon as the engine has sampled. Two more tokens come then, and no end by itself."""
    ask.engine.at_token = {1: act}
    ask.engine.held_after = 3


def test_standard_output_is_the_answer_alone(ask: Asker, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask() == 0
    told = capsys.readouterr()
    assert told.out == "Hello, Ana.\n"
    assert "reused 0 of" in told.err
    assert "resume with: kvchat " in told.err


def test_no_stats_leaves_the_way_back_and_quiet_leaves_nothing(
    ask: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(no_stats=True)
    assert capsys.readouterr().err.startswith("resume with: kvchat ")
    ask(quiet=True)
    assert capsys.readouterr() == ("Hello, Ana.\n", "")


def test_json_is_one_object_with_text_usage_and_identities(
    ask: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(new="demo", json=True)
    done = json.loads(capsys.readouterr().out)
    assert (done["v"], done["event"], done["text"]) == (1, "done", "Hello, Ana.")
    assert (done["finish_reason"], done["exact"]) == ("stop", True)
    usage = done["usage"]
    assert usage["cached_tokens"] + usage["computed_tokens"] == usage["prompt_tokens"] > 0
    assert sum(done["loaded"].values()) == usage["cached_tokens"]
    [turns] = stored()
    assert (done["session"], done["turn"]) == (turns[-1].session_id, turns[-1].id)


def test_ndjson_tells_events_as_they_come_and_ends_with_done(
    ask: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(ndjson=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [event["event"] for event in events]
    assert names[:2] == ["start", "prefill"]
    assert events[0]["title"] == "hello"
    prompt = {"prompt_tokens", "cached_tokens", "computed_tokens", "loaded"}
    assert events[1].keys() == {"v", "event"} | prompt
    assert names.count("done") == 1
    assert names[-1] == "done"
    assert "".join(event["text"] for event in events if event["event"] == "text") == "Hello, Ana."
    assert "text" not in events[-1]
    assert all(event["v"] == 1 for event in events)


def test_a_named_session_goes_on_where_it_was(ask: Asker) -> None:
    ask("one", new="demo")
    ask("two", session="demo")
    ask("three", continue_last=True)
    [turns] = stored()
    assert [turn.text for turn in turns if turn.role == "user"] == ["one", "two", "three"]
    first, second, third = (request.token_ids for request in ask.engine.requests)
    assert second[: len(first)] == first
    assert third[: len(second)] == second


def test_a_session_goes_on_with_its_own_model_from_any_directory(
    ask: Asker, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_dir.parent)
    ask(model="model", new="demo")
    monkeypatch.chdir("/")
    ask(model=None, session="demo")
    assert [(name, path) for name, path, _ in ask.asked_for] == [(str(model_dir), model_dir)] * 2


def test_a_model_that_does_not_load_leaves_no_empty_session(ask: Asker) -> None:
    ask.engine.fails = ModelUnreadable("the weights are damaged")
    with pytest.raises(ModelUnreadable):
        ask(new="demo")
    assert stored() == []


def test_a_question_that_is_too_long_leaves_no_empty_session(ask: Asker) -> None:
    ask.engine = ScriptedEngine(lambda prompt: [], max_context=50)
    with pytest.raises(ContextOverflow):
        ask("word " * 100, new="demo")
    assert stored() == []


def test_an_engine_that_dies_exits_with_its_reason_and_keeps_what_was_said(ask: Asker) -> None:
    ask.engine.dies_after = 2
    with pytest.raises(EngineFailed, match="scripted"):
        ask("remember this")
    [[question, partial]] = stored()
    assert question.text == "remember this"
    assert partial.finish is Finish.ERROR
    assert len(partial.token_ids or ()) == 2


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_model_saves_the_partial_answer_and_exits(
    ask: Asker, capsys: pytest.CaptureFixture[str], number: int, exit_code: int
) -> None:
    before = signal.getsignal(number)
    after_first_token(ask, lambda: os.kill(os.getpid(), number))
    assert ask(json=True) == exit_code
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "cancelled"
    [[_, partial]] = stored()
    assert partial.finish is Finish.INTERRUPTED
    assert "Hello, Ana.".startswith(partial.text)
    assert partial.text not in ("", "Hello, Ana.")
    assert signal.getsignal(number) is before


def test_a_signal_while_the_model_loads_exits_and_leaves_no_empty_session(ask: Asker) -> None:
    class Interrupting(ScriptedEngine):
        def info(self):  # type: ignore[no-untyped-def]
            os.kill(os.getpid(), signal.SIGINT)
            sleep(5)
            return super().info()

    ask.engine = Interrupting(lambda prompt: [])
    assert ask() == 130
    assert stored() == []


@pytest.mark.parametrize("options", [{}, {"json": True}, {"ndjson": True}], ids=["text", "json", "ndjson"])
def test_a_closed_pipe_stops_the_model_within_a_step_and_keeps_what_was_computed(
    ask: Asker, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    pipe = os.fdopen(write_end, "w")
    monkeypatch.setattr(sys, "stdout", pipe)
    after_first_token(ask, lambda: os.close(read_end))
    assert ask(**options) == 141
    with suppress(BrokenPipeError):
        pipe.close()
    [[_, partial]] = stored()
    assert partial.finish is Finish.INTERRUPTED
    assert 0 < len(partial.token_ids or ()) < len("Hello, Ana.")


def test_an_answer_that_is_cut_off_exits_8_only_if_asked_to(
    ask: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(max_tokens="2") == 0
    assert "cut off by its length" in capsys.readouterr().err
    assert ask(max_tokens="2", fail_on_length=True, json=True) == 8
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "length"


def test_sampling_options_reach_the_engine_and_the_more_specific_one_counts(ask: Asker) -> None:
    ask(temperature=0.5, option=["top_k=7", "seed=3", "temperature=0.9"])
    sampling = ask.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.9, 7, 3)


def terminal_events(out: str) -> list[str]:
    """Return the events that end an answer, and see that one is the last line."""
    names = [json.loads(line)["event"] for line in out.splitlines()]
    assert names[-1] in ("done", "error")
    return [name for name in names if name in ("done", "error")]


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_a_signal_before_the_answer_begins_ends_with_one_event(
    ask: Asker, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(model: str, model_dir: Path, config: EngineConfig) -> EngineClient:
        signal.raise_signal(signal.SIGINT)
        return ask.engine

    values = AskOptions(model=str(ask.model_dir), **{form: True})  # type: ignore[arg-type]
    assert answer(values, values.settings(), "hello", interrupted) == 130
    out = capsys.readouterr().out
    assert terminal_events(out) == ["error"]
    assert json.loads(out)["exit_code"] == 130


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_what_fails_behind_the_answer_adds_no_second_end(
    ask: Asker, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise StorageError("the tails cannot be saved")

    ask.engine.close = fail  # type: ignore[method-assign]
    assert ask(**{form: True}) == 1
    told = capsys.readouterr()
    assert terminal_events(told.out) == ["done"]
    assert "the tails cannot be saved" in told.err


def test_temp_keeps_nothing(ask: Asker, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(temp=True) == 0
    assert "resume with" not in capsys.readouterr().err
    assert ask.asked_for[0][2].cache_dir is None
    assert not list(home.rglob("*.db"))
    assert stored() == []


def test_temp_has_no_word_on_disk_while_it_is_answered_either(
    ask: Asker, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kills the process in the middle leaves nothing that can be read."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    seen: list[bytes] = []

    def look() -> None:
        files = [file for top in (place, home) for file in top.rglob("*") if file.is_file()]
        seen.append(b"".join(file.read_bytes() for file in files))

    ask.engine.at_token = {1: look}
    assert ask("my secret words", temp=True) == 0
    assert len(seen) == 1
    assert b"secret" not in seen[0]
    assert b"SQLite" not in seen[0]


def test_an_empty_session_that_was_there_survives_a_refused_question(ask: Asker) -> None:
    with closing(open_store(read_settings())) as store:
        store.create_session(title="prepared", system="Be brief.")
    ask.engine = ScriptedEngine(lambda prompt: [], max_context=50)
    with pytest.raises(ContextOverflow):
        ask("word " * 100, session="prepared")
    with closing(open_store(read_settings())) as store:
        (left,) = [one.session for one in store.list_sessions()]
    assert (left.title, left.system) == ("prepared", "Be brief.")
