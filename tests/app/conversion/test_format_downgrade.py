"""`--when-full compress`: a conversation that has outgrown an exact cache goes on in fewer bits."""

from pathlib import Path

import pytest

from kvchat.app.conversion.format_downgrade import compressed_format
from kvchat.errors import PoolExhausted
from kvchat.session.kv.provenance import origin_of
from kvchat.session.tree import Finish
from tests.cli.command_line import Run
from tests.cli.homes import block_bytes, session_of, turns_of
from tests.cli.little_room import ROOM, WORDS, go_on

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("quick_children")]


@pytest.fixture
def ask(ask: Run) -> Run:
    """Ask where there is little room."""
    return ask.with_words(*ROOM)


def test_a_conversation_that_would_not_fit_goes_on_labelled_and_nothing_of_another_changes(
    ask: Run, home: Path
) -> None:
    assert ask("--new", "other", WORDS * 40)[0] == 0
    assert ask("--new", "demo", WORDS * 60)[0] == 0
    other, turns = session_of(home, "other"), turns_of(home, "other")
    (before,) = block_bytes(home).items()
    longer = WORDS * 80
    code, _, told = ask("-s", "demo", longer)
    assert code == 6, "the default is what it was"
    assert "--cache-format int8" in told
    assert len(turns_of(home)) == 2, "the question was taken back"
    _, notice = go_on(ask, "--when-full", "compress", longer)
    assert "kept in int8" in notice
    assert "exact goes back" in notice
    origin = origin_of(session_of(home).namespace)
    assert origin is not None
    assert (origin.cache_format, origin.source) == ("int8", "exact")
    assert (session_of(home, "other"), turns_of(home, "other")) == (other, turns)
    left = block_bytes(home)
    assert left.keys() == {before[0], origin.fingerprint}
    again = ask.json("-s", "other", "and?")
    assert again["exact"] is True
    assert again["usage"]["prompt_tokens"] - again["usage"]["cached_tokens"] < 16, "its blocks are all there"


def test_a_first_message_that_does_not_fit_is_computed_in_the_format(ask: Run, home: Path) -> None:
    events = ask.lines("--ndjson", "--new", "demo", "--when-full", "compress:int4", WORDS * 140)
    kinds = [event["event"] for event in events]
    assert kinds.index("notice") < kinds.index("prefill")
    assert kinds.count("done") == 1 == kinds[-1:].count("done")
    (notice,) = (event for event in events if event["event"] == "notice")
    assert notice["cache_format"] == "int4"
    assert "computed in that format" in notice["message"]
    assert events[-1]["exact"] is False
    assert session_of(home).namespace == "", "its blocks have the format's own names"
    assert [turn.exact for turn in turns_of(home)[1:]] == [False]


def test_an_answer_that_outgrows_the_cache_is_finished_in_fewer_bits(ask: Run, home: Path) -> None:
    words = WORDS * 130
    assert "the cache is full" in ask.err("--new", "demo", "--max-tokens", "200", words, code=1)
    answer = ask.json("--new", "again", "--max-tokens", "200", "--when-full", "compress", words)
    assert answer["finish_reason"] == "length"
    (cut, whole) = (turns_of(home, title)[-1] for title in ("demo", "again"))
    assert cut.token_ids is not None
    assert whole.token_ids is not None
    assert len(whole.token_ids) == 200 > len(cut.token_ids)
    assert whole.token_ids[: len(cut.token_ids)] == cut.token_ids, "what was written exactly stays"
    assert whole.finish is Finish.LENGTH
    assert whole.exact is False
    assert answer["text"] == whole.text


def test_where_even_that_does_not_fit_it_is_refused_as_clearly_and_nothing_changes(
    ask: Run, home: Path
) -> None:
    assert ask("--new", "demo", WORDS * 20)[0] == 0
    before = turns_of(home)
    assert "int8 or fp8 would not make it fit" in ask.err(
        "-s", "demo", "--when-full", "compress", WORDS * 260, code=6
    )
    code, _, _ = ask("-s", "demo", "--strict-cache", "--when-full", "compress", WORDS * 140)
    assert code == 6, "what must not be computed again is not compressed"
    assert (session_of(home).namespace, turns_of(home)) == ("", before)


@pytest.mark.parametrize(
    ("fits_in", "when_full", "found"),
    [
        (("int8", "int4"), "evict", None),
        (("int8", "fp8", "int4", "int2"), "compress", "int8"),
        (("fp8",), "compress", "fp8"),
        (("int8", "int4", "int2"), "compress:int2", "int2"),
        (("int8", "shadow:25%"), "compress", "int8"),
        (("int8", "shadow:25%"), "evict", None),
        (("int8", "shadow:25%", "int4"), "shadow", "shadow:25%"),
        (("shadow:25%",), "shadow:2048", "shadow:2048"),
        ((), "shadow:1024:forced", "shadow:1024:forced"),
    ],
)
def test_what_is_taken_is_what_loses_nothing_measurable_or_what_was_named(
    fits_in: tuple[str, ...], when_full: str, found: str | None
) -> None:
    assert compressed_format(PoolExhausted("full", fits_in), when_full) == found


@pytest.mark.parametrize(
    ("fits_in", "when_full"), [((), "compress"), (("int4", "int2"), "compress"), (("int2",), "compress:int4")]
)
def test_what_does_not_make_room_is_not_taken(fits_in: tuple[str, ...], when_full: str) -> None:
    with pytest.raises(PoolExhausted, match=r"full; .* would not make it fit") as caught:
        compressed_format(PoolExhausted("full", fits_in), when_full)
    assert caught.value.fits_in == fits_in
