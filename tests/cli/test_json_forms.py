"""`--json` and `--ndjson` with all that is printed: one thing is one line in both, many are a line each."""

import json
from collections.abc import Callable
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kvchat.app.composition import opened
from kvchat.app.config import KEYS, read_settings
from kvchat.cli.commands.serve import lend
from kvchat.cli.output.signals import StopSignals
from kvchat.cli.output.streams import Output, Status
from kvchat.cli.parser.command_table import COMMANDS
from kvchat.engine.api.config import EngineConfig
from kvchat.session.packs import PackStore
from tests.cli.command_line import Run
from tests.cli.commands.pack.test_pack import make_pack
from tests.cli.secret_home import CHEAP, Give, make_talk, paths_of
from tests.scripted_engine import ScriptedEngine
from tests.terminal import ROOT

pytestmark = pytest.mark.pure

WITHOUT = {"resume", "man", "config edit"}
"""The window, the manual page and an editor print nothing that a program would read."""


Lines = Callable[..., list[Any]]


@pytest.fixture
def lines(run: Run) -> Lines:
    return run.lines


@pytest.fixture
def talk(home: Path) -> None:
    """A conversation called `about it`, of three questions and answers."""
    make_talk(home, "it")


def test_every_command_that_prints_takes_both_forms() -> None:
    taken = {one.words: {field.name for field in fields(one.takes)} for one in COMMANDS}
    assert {words for words, names in taken.items() if not {"json", "ndjson"} <= names} == WITHOUT


@pytest.mark.parametrize(
    "words",
    [
        "sessions last",
        "sessions rename about about",
        "sessions fork about",
        "cache status",
        "cache path",
        "cache gc",
        "cache evict --all",
        "config path",
        "config schema",
        "config set model here",
        "config set --unset model",
        "encrypt status",
        "models show starter",
        "plan starter",
    ],
)
def test_one_thing_is_one_line_of_the_same_shape_in_both(words: str, talk: None, lines: Lines) -> None:
    [whole] = lines(*words.split(), "--json")
    [line] = lines(*words.split(), "--ndjson")
    assert isinstance(line, dict)
    assert line.keys() == whole.keys()
    if "fork" not in words:  # each has a name of its own
        assert line == whole


def test_a_conversation_is_a_line_for_each_message(talk: None, lines: Lines) -> None:
    [whole] = lines("sessions", "show", "about it", "--json")
    assert lines("sessions", "show", "about it", "--ndjson") == whole["turns"]
    assert [turn["role"] for turn in whole["turns"]] == ["user", "assistant"] * 3


def test_settings_are_a_line_each(lines: Lines) -> None:
    [whole] = lines("config", "show", "--json", "--temperature", "0.5")
    shown = lines("config", "show", "--ndjson", "--temperature", "0.5")
    assert [one["name"] for one in shown] == list(KEYS)
    assert {one.pop("name"): one for one in shown} == whole["settings"]
    assert whole["settings"]["sampling.temperature"] == {"value": 0.5, "from": "flag"}


def test_what_is_done_to_several_is_a_line_for_each(talk: None, lines: Lines, home: Path) -> None:
    [pinned] = lines("sessions", "pin", "about it", "--ndjson")
    assert (pinned["title"], pinned["pinned"]) == ("about it", True)
    assert lines("sessions", "unpin", "about it", "--json") == [[pinned | {"pinned": False}]]
    for name in ("one", "two", "three"):
        PackStore(paths_of(home).packs_dir, None).put(make_pack(name, "some rules"))
    assert lines("pack", "rm", "one", "two", "--ndjson") == [{"name": "one"}, {"name": "two"}]
    assert lines("pack", "rm", "three", "--json") == [[{"name": "three"}]]


def test_imported_sessions_are_a_line_each(lines: Lines) -> None:
    bundle = str(ROOT / "sessions" / "first-steps.kvchat")
    [one] = lines("import", bundle, "--no-kv", "--ndjson")
    [[same]] = lines("import", bundle, "--no-kv", "--json")
    assert one["title"] == "first-steps"
    assert one.keys() == same.keys()


def test_a_setting_says_where_it_was_written_and_what_overrules_it(
    lines: Lines, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_TOP_K", "3")
    file = str(home / "config.toml")
    assert lines("config", "set", "sampling.top_k", "40", "--json") == [
        {"name": "sampling.top_k", "value": 40, "file": file, "overruled_by": "KVCHAT_TOP_K"}
    ]
    assert lines("config", "set", "sampling.top_k", "--unset", "--json") == [
        {"name": "sampling.top_k", "value": None, "file": file, "overruled_by": None}
    ]


def test_turning_encryption_on_and_off_says_what_opens_it_now(
    talk: None, lines: Lines, passphrase: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_by = [{"encrypted": True, "opened_by": "passphrase"}]
    passphrase("open sesame")
    assert lines("encrypt", "on", *CHEAP, "--json") == opened_by
    passphrase("open sesame")
    monkeypatch.setenv("KVCHAT_NEW_PASSPHRASE", "open again")
    assert lines("encrypt", "change", *CHEAP, "--ndjson") == opened_by
    passphrase("open again")
    assert lines("encrypt", "off", "--ndjson") == [{"encrypted": False, "opened_by": None}]


def test_an_engine_that_is_lent_says_so_to_a_program(model_dir: Path) -> None:
    def scripted(model: str, model_dir: Path, config: EngineConfig) -> ScriptedEngine:
        return ScriptedEngine(lambda prompt: [])

    stdout = StringIO()
    with StopSignals() as signals, opened(read_settings(), scripted) as kvchat:
        kvchat.load(None, str(model_dir))
        lend(kvchat, Status(quiet=True), signals, 0.05, Output(stdout))
    told = json.loads(stdout.getvalue())
    assert (type(told["model"]), told["idle_s"]) == (str, 0.05)


@pytest.mark.parametrize(
    "words", ["sessions show nobody", "cache status --remote nowhere", "config set no x"]
)
def test_a_failure_is_one_line_too(words: str, run: Run) -> None:
    code, out, err = run(*words.split(), "--ndjson")
    event = json.loads(out)
    assert (event["event"], event["exit_code"]) == ("error", code)
    assert event["message"] in err


def test_what_stands_behind_two_dashes_asks_for_no_json(run: Run) -> None:
    code, out, _ = run("ask", "-s", "nobody", "--", "what", "is", "--json")
    assert (code, out) == (5, "")
