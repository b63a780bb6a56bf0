"""`--when-full compress`: a conversation that has outgrown an exact cache goes on in fewer bits."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.cli.compressing import compressed_format
from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.errors import PoolExhausted
from kvchat.session.origin import origin_of
from kvchat.session.store import SessionStore
from kvchat.session.tree import Finish, Session, Turn
from tests.cli.secret_home import Run

pytestmark = pytest.mark.cpu

ROOM = ("--kv-device-bytes", "1000KiB")
"""Of 1,344 exact tokens of the tiny model, 2,431 in int8 and 3,135 in int4; `WORDS` are ten."""
WORDS = "remember the sea "


@pytest.fixture
def ask(run: Run, tiny_model: Path) -> Run:
    def one(*words: str) -> tuple[int, str, str]:
        return run("ask", "-m", str(tiny_model), "--max-tokens", "8", *ROOM, *words)

    return one


def stored(home: Path) -> dict[str, int]:
    """Return the bytes of blocks on disk by the name of what computed them."""
    with closing(BlockCatalog(home / "cache", sealer=None)) as catalog:
        return {name.hex(): usage.num_bytes for name, usage in catalog.usages().items()}


def session_of(home: Path, title: str) -> tuple[Session, tuple[Turn, ...]]:
    with closing(SessionStore(home / "data" / "sessions.db")) as store:
        session = store.find(title)
        return session, tuple(store.all_turns(session.id))


def test_a_conversation_that_would_not_fit_goes_on_labelled_and_nothing_of_another_changes(
    ask: Run, home: Path
) -> None:
    assert ask("--new", "other", WORDS * 40)[0] == 0
    assert ask("--new", "demo", WORDS * 60)[0] == 0
    other, turns = session_of(home, "other")
    (before,) = stored(home).items()
    longer = WORDS * 80
    code, _, told = ask("-s", "demo", longer)
    assert code == 6, "the default is what it was"
    assert "--cache-format int8" in told
    assert len(session_of(home, "demo")[1]) == 2, "the question was taken back"
    code, out, told = ask("--json", "-s", "demo", "--when-full", "compress", longer)
    assert code == 0, told
    answer = json.loads(out)
    assert answer["exact"] is False
    (notice,) = answer["notices"]
    assert notice in told
    assert "kept in int8" in notice
    assert "exact goes back" in notice
    assert answer["usage"]["cached_tokens"] > 64, "what was stored has been converted"
    demo, _ = session_of(home, "demo")
    origin = origin_of(demo.namespace)
    assert origin is not None
    assert (origin.cache_format, origin.source) == ("int8", "exact")
    assert session_of(home, "other") == (other, turns)
    left = stored(home)
    assert left.keys() == {before[0], origin.fingerprint}
    code, out, _ = ask("--json", "-s", "other", "and?")
    again = json.loads(out)
    assert again["exact"] is True
    assert again["usage"]["prompt_tokens"] - again["usage"]["cached_tokens"] < 16, "its blocks are all there"


def test_a_first_message_that_does_not_fit_is_computed_in_the_format(ask: Run, home: Path) -> None:
    code, out, told = ask("--ndjson", "--new", "demo", "--when-full", "compress:int4", WORDS * 140)
    assert code == 0, told
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds.index("notice") < kinds.index("prefill")
    assert kinds.count("done") == 1 == kinds[-1:].count("done")
    (notice,) = (event for event in events if event["event"] == "notice")
    assert notice["cache_format"] == "int4"
    assert "computed in that format" in notice["message"]
    assert events[-1]["exact"] is False
    session, turns = session_of(home, "demo")
    assert session.namespace == "", "its blocks have the format's own names"
    assert [turn.exact for turn in turns[1:]] == [False]


def test_an_answer_that_outgrows_the_cache_is_finished_in_fewer_bits(ask: Run, home: Path) -> None:
    words = WORDS * 130
    code, out, told = ask("--new", "demo", "--max-tokens", "200", words)
    assert (code, "the cache is full" in told) == (1, True)
    code, out, told = ask("--json", "--new", "again", "--max-tokens", "200", "--when-full", "compress", words)
    assert code == 0, told
    answer = json.loads(out)
    assert answer["finish_reason"] == "length"
    (cut, whole) = (session_of(home, title)[1][-1] for title in ("demo", "again"))
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
    _, before = session_of(home, "demo")
    code, _, told = ask("-s", "demo", "--when-full", "compress", WORDS * 260)
    assert code == 6
    assert "int8 or fp8 would not make it fit" in told
    code, _, told = ask("-s", "demo", "--strict-cache", "--when-full", "compress", WORDS * 140)
    assert code == 6, "what must not be computed again is not compressed"
    session, turns = session_of(home, "demo")
    assert (session.namespace, turns) == ("", before)


@pytest.mark.parametrize(
    ("fits_in", "when_full", "found"),
    [
        (("int8", "int4"), "evict", None),
        (("int8", "fp8", "int4", "int2"), "compress", "int8"),
        (("fp8",), "compress", "fp8"),
        (("int8", "int4", "int2"), "compress:int2", "int2"),
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
