"""`--json` and `--ndjson` with all that is printed: one thing is one line in both, many are a line each."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from kvchat.app.config import KEYS
from kvchat.cli.parser.command_table import COMMANDS
from kvchat.session.packs import PackStore
from tests.cli.command_line import Run
from tests.cli.commands.pack.test_pack import make_pack
from tests.cli.secret_home import make_talk, paths_of
from tests.terminal import ROOT

pytestmark = pytest.mark.pure

WITHOUT = {"resume", "man", "config edit"}
"""The window, the manual page and an editor print nothing that a program would read."""


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
def test_one_thing_is_one_line_of_the_same_shape_in_both(words: str, talk: None, run: Run) -> None:
    [whole] = run.lines(*words.split(), "--json")
    [line] = run.lines(*words.split(), "--ndjson")
    assert isinstance(line, dict)
    assert line.keys() == whole.keys()
    if "fork" not in words:  # each has a name of its own
        assert line == whole


def test_a_conversation_is_a_line_for_each_message(talk: None, run: Run) -> None:
    [whole] = run.lines("sessions", "show", "about it", "--json")
    assert run.lines("sessions", "show", "about it", "--ndjson") == whole["turns"]
    assert [turn["role"] for turn in whole["turns"]] == ["user", "assistant"] * 3


def test_settings_are_a_line_each(run: Run) -> None:
    [whole] = run.lines("config", "show", "--json", "--temperature", "0.5")
    shown = run.lines("config", "show", "--ndjson", "--temperature", "0.5")
    assert [one["name"] for one in shown] == list(KEYS)
    assert {one.pop("name"): one for one in shown} == whole["settings"]
    assert whole["settings"]["sampling.temperature"] == {"value": 0.5, "from": "flag"}


def test_what_is_done_to_several_is_a_line_for_each(talk: None, run: Run, home: Path) -> None:
    [pinned] = run.lines("sessions", "pin", "about it", "--ndjson")
    assert (pinned["title"], pinned["pinned"]) == ("about it", True)
    assert run.lines("sessions", "unpin", "about it", "--json") == [[pinned | {"pinned": False}]]
    for name in ("one", "two", "three"):
        PackStore(paths_of(home).packs_dir, None).put(make_pack(name, "some rules"))
    assert run.lines("pack", "rm", "one", "two", "--ndjson") == [{"name": "one"}, {"name": "two"}]
    assert run.lines("pack", "rm", "three", "--json") == [[{"name": "three"}]]


def test_imported_sessions_are_a_line_each(run: Run) -> None:
    bundle = str(ROOT / "sessions" / "first-steps.kvchat")
    [one] = run.lines("import", bundle, "--no-kv", "--ndjson")
    [[same]] = run.lines("import", bundle, "--no-kv", "--json")
    assert one["title"] == "first-steps"
    assert one.keys() == same.keys()


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
