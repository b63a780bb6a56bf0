"""`/cache format`: what it costs comes first, and nothing is changed while an answer is written."""

from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from kvchat.errors import PoolExhausted
from kvchat.session.kv.provenance import new_origin
from kvchat.ui.screens.confirm import ConfirmScreen
from tests.ui.harness import Window, window
from tests.ui.screens.test_deferred import burst
from tests.ui.scripted import Answer

pytestmark = pytest.mark.tui


async def until_asked(shown: Window) -> None:
    await shown.until(lambda: isinstance(shown.app.screen, ConfirmScreen))


def told(shown: Window) -> list[str]:
    return [notice.message for notice in shown.app._notifications]


async def test_it_says_what_is_saved_and_lost_and_converts_once_that_is_agreed_to(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/cache format int4")
        await until_asked(shown)
        await shown.until_shown("Keep the KV of this conversation in int4?")
        assert "2 MiB would be 1 MiB" in shown.text
        assert "approximate" in shown.text
        await shown.pilot.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, ConfirmScreen))
        assert shown.files.formats == []
        shown.screen.commands.run("/cache format int4")
        await until_asked(shown)
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "int4")])
        await shown.until(lambda: "converted to int4; /cache format exact goes back" in told(shown))
        assert shown.chat.closed == ["s1"]
        await shown.say_and_wait("still here")
        assert shown.questions == ["hello", "still here"]


async def test_a_shadow_says_that_blocks_stay_as_they_were_computed(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        shown.screen.commands.run("/cache format shadow:25%")
        await until_asked(shown)
        await shown.until_shown("and /cache format exact goes")
        assert "approximate" in shown.text
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "shadow:25%")])


async def test_the_way_back_says_what_is_computed_again(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        shown.screen.commands.run("/cache format exact")
        await shown.until(lambda: "its KV is kept as it was computed already" in told(shown))
        conversation = shown.screen.turns.conversation
        namespace = new_origin("int4", "exact", "0" * 64).namespace
        conversation.session = replace(conversation.session, namespace=namespace)
        shown.screen.commands.run("/cache format")
        await shown.until(lambda: any("kept in int4, converted" in words for words in told(shown)))
        shown.screen.commands.run("/cache format exact")
        await until_asked(shown)
        await shown.until_shown("What is computed again: 16 tokens")
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "exact")])
        assert shown.questions == ["hello"]


async def test_it_is_refused_while_an_answer_is_written_and_where_it_cannot_be(tmp_path: Path) -> None:
    gate = Event()
    async with window(tmp_path, Answer(hold=gate)) as shown:
        shown.screen.commands.run("/cache format int4")
        await shown.until(lambda: "nothing has been said here yet" in told(shown))
        await shown.say("hello")
        await shown.until(lambda: shown.screen.turns.is_running)
        shown.screen.commands.run("/cache format int4")
        await shown.until(lambda: any("esc stops it, then choose" in words for words in told(shown)))
        gate.set()
        await shown.until(lambda: not shown.screen.turns.is_running)
        shown.screen.commands.run("/cache format int3")
        await shown.until(lambda: "cache format 'int3' is unknown" in told(shown))
        shown.screen.commands.run("/cache format int2")
        await until_asked(shown)
        await shown.pilot.press("y")
        await shown.until(lambda: "no exact KV of this session is stored" in told(shown))
        assert shown.files.formats == []
        assert shown.questions == ["hello"]


async def begin_format(shown: Window) -> None:
    """Agree to another format, which the machine is still at work on."""
    shown.files.changing.clear()
    shown.screen.commands.run("/cache format int4")
    await until_asked(shown)
    await shown.pilot.press("y")
    await shown.until(lambda: shown.files.formats == [("s1", "int4")])


async def test_one_who_has_gone_to_another_conversation_meanwhile_stays_there(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await begin_format(shown)
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        shown.files.changing.set()
        await shown.until(lambda: "converted to int4; /cache format exact goes back" in told(shown))
        assert shown.screen.turns.conversation is None
        await shown.say_and_wait("something else")
        assert shown.questions == ["something else"]


async def test_a_conversation_that_is_deleted_meanwhile_leaves_the_screen(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await begin_format(shown)
        shown.chat.store.sessions.clear()
        shown.files.changing.set()
        await shown.until(lambda: any("there is no session" in words for words in told(shown)))
        await shown.until(lambda: shown.screen.turns.conversation is None)
        await shown.say_and_wait("something else")
        assert shown.questions == ["something else"]


FULL = PoolExhausted("no room for 9,000 tokens", ("int8", "int4"))


async def test_a_conversation_that_has_outgrown_the_cache_is_offered_a_format_at_its_cost(
    tmp_path: Path,
) -> None:
    async with window(tmp_path, Answer(), Answer(fail=FULL), Answer()) as shown:
        await shown.say_and_wait("hello")
        await shown.say("and a very long one")
        await until_asked(shown)
        await shown.until_shown("The cache has no room for this conversation exactly. Keep")
        assert "its KV in int8?" in shown.text
        assert "2 MiB would be 1 MiB" in shown.text
        assert "approximate" in shown.text
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "int8")])
        await shown.until(lambda: any("enter sends the message again" in words for words in told(shown)))
        assert shown.screen.prompt.text == "and a very long one"
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["hello", "and a very long one"])


async def test_who_declines_keeps_the_exact_cache_and_the_message(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(fail=FULL)) as shown:
        await shown.say("a very long one")
        await until_asked(shown)
        await shown.until_shown("Nothing of it is stored")
        await shown.pilot.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, ConfirmScreen))
        assert shown.files.formats == []
        assert shown.screen.prompt.text == "a very long one"


async def test_who_declines_fewer_bits_is_offered_a_shadow_where_that_has_room(tmp_path: Path) -> None:
    full = PoolExhausted("no room for 9,000 tokens", ("int8", "shadow:25%", "int4"))
    async with window(tmp_path, Answer(), Answer(fail=full), Answer()) as shown:
        await shown.say_and_wait("hello")
        await shown.say("and a very long one")
        await shown.until_shown("its KV in int8?")
        await shown.pilot.press("escape")
        await shown.until_shown("shadow:25%?")
        assert "2 MiB would be 1 MiB" in shown.text
        assert "Its blocks may lie in host memory then" in shown.text
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "shadow:25%")])
        assert shown.screen.prompt.text == "and a very long one"


async def test_fewer_bits_are_offered_where_the_model_cannot_have_a_shadow(tmp_path: Path) -> None:
    full = PoolExhausted("no room for 9,000 tokens", ("shadow:25%", "int4"))
    async with window(tmp_path, Answer(), Answer(fail=full)) as shown:
        shown.files.has_shadows = False
        await shown.say_and_wait("hello")
        await shown.say("and a very long one")
        await until_asked(shown)
        await shown.until_shown("its KV in int4?")
        assert "shadow" not in shown.text


async def test_nothing_is_offered_where_no_format_would_help(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(fail=PoolExhausted("no room at all"))) as shown:
        await shown.say("a very long one")
        await shown.until(lambda: "no room at all" in told(shown))
        await shown.pilot.pause(0.2)
        assert not isinstance(shown.app.screen, ConfirmScreen)


async def test_an_answer_that_broke_off_for_want_of_room_is_offered_the_same(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(fits_in=("int8",))) as shown:
        await shown.say("hello")
        await until_asked(shown)
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "int8")])
        await shown.until(lambda: any("f5 goes on with an answer" in words for words in told(shown)))
        assert shown.files.formats == [("s1", "int8")]


async def test_what_has_been_typed_since_the_message_is_not_covered_by_an_offer(tmp_path: Path) -> None:
    gate = Event()
    async with window(tmp_path, Answer(hold=gate, fits_in=("int8",))) as shown:
        await shown.say("hello")
        await shown.until(lambda: shown.screen.turns.is_running)
        await shown.type("and the")
        gate.set()
        await shown.until_shown("int8? · f9 or /answer")
        assert shown.app.screen is shown.screen
        assert shown.screen.prompt.text == "and the"
        await shown.pilot.press("f9")
        await until_asked(shown)
        await shown.pilot.press("escape")
        assert shown.files.formats == []


async def test_enter_alone_agrees_to_no_offer_that_was_not_asked_for(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(fail=FULL)) as shown:
        await shown.say("a very long one")
        await until_asked(shown)
        dialog = shown.app.screen
        await burst(shown, "\n", monotonic() + 5)  # as if it had been read
        await shown.until_shown("y yes · esc no")
        assert (shown.app.screen, shown.files.formats) == (dialog, [])
        await burst(shown, "y\n", monotonic() + 10)
        await shown.until(lambda: shown.files.formats == [("s1", "int8")])
        assert shown.screen.prompt.text == "a very long one"
