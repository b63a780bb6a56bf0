"""`--when-full shadow`: a conversation that has outgrown an exact cache is looked at through a shadow."""

import json
from pathlib import Path

import pytest

from kvchat.app.config import read_settings
from kvchat.app.conversion.format_downgrade import compressed_format, wanted_formats, wanted_shadow
from kvchat.app.retention.session_removal import SessionService
from kvchat.errors import ConfigError, PoolExhausted
from tests.cli.command_line import Run
from tests.cli.homes import block_bytes, session_of, turns_of
from tests.cli.little_room import ROOM, WORDS, go_on

pytestmark = pytest.mark.cpu

SHADOW = "shadow:25%:forced"
"""The tiny model's keys are too narrow for one that gains something."""


@pytest.fixture
def ask(ask: Run) -> Run:
    """Ask where there is little room."""
    return ask.with_words(*ROOM)


def test_a_conversation_that_would_not_fit_goes_on_labelled_and_its_blocks_stay_exact(
    ask: Run, home: Path
) -> None:
    assert ask("--new", "demo", WORDS * 60)[0] == 0
    (before,) = block_bytes(home)
    longer = WORDS * 80
    assert ask("-s", "demo", longer)[0] == 6, "the default is what it was"
    _, notice = go_on(ask, "--when-full", SHADOW, longer)
    assert f"looked at through {SHADOW}" in notice
    assert "kvchat cache gauge" in notice
    assert session_of(home).namespace == ""
    assert [turn.exact for turn in turns_of(home) if turn.role == "assistant"] == [True, False]
    assert block_bytes(home).keys() == {before}, "nothing is kept in another format"
    go_on(ask, "--when-full", SHADOW, "and?")


def test_an_answer_that_outgrows_the_cache_is_finished_through_a_shadow(ask: Run, home: Path) -> None:
    words = ("--max-tokens", "200", WORDS * 130)
    out = ask.out("--json", "--new", "demo", "--when-full", SHADOW, *words)
    last = turns_of(home)[-1]
    assert last.token_ids is not None
    assert (len(last.token_ids), last.exact) == (200, False)
    assert json.loads(out)["finish_reason"] == "length"


def test_where_the_model_gains_nothing_it_is_refused_as_clearly_and_nothing_changes(
    ask: Run, home: Path
) -> None:
    assert ask("--new", "demo", WORDS * 20)[0] == 0
    before = turns_of(home)
    assert "shadow:25% would not make it fit" in ask.err(
        "-s", "demo", "--when-full", "shadow", WORDS * 140, code=6
    )
    assert turns_of(home) == before


def test_a_shadow_is_not_what_a_nearly_full_disk_is_compressed_to() -> None:
    assert wanted_formats("shadow") == wanted_formats("evict") == ()
    assert wanted_shadow("compress:int4") is None
    with pytest.raises(PoolExhausted, match="full; shadow:25% would not make it fit"):
        compressed_format(PoolExhausted("full", ("int8",)), "shadow")


def test_a_shadow_is_configured_as_it_is_written_elsewhere(home: Path) -> None:
    def read(value: str) -> str:
        return read_settings(environ={"KVCHAT_HOME": str(home), "KVCHAT_WHEN_FULL": value}).when_full

    for good in ("shadow", "shadow:2048", "shadow:10%", "shadow:25%:forced"):
        assert read(good) == good
    for bad in ("shadow:", "shadow:90%", "shadow:few", "shadows"):
        with pytest.raises(ConfigError):
            read(bad)


def test_a_cache_larger_than_memory_is_refused_with_the_most_that_fits_and_leaves_no_session(
    ask: Run, store: SessionService
) -> None:
    error = ask.json("--new", "demo", "--kv-device-bytes", "900TiB", "hello", code=6)
    assert (error["event"], error["error"], error["exit_code"]) == ("error", "OutOfMemory", 6)
    assert "give at most" in error["message"]
    assert not store.list_sessions()
