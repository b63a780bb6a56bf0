"""`/cache format`: what it costs comes first, and nothing is changed while an answer is written."""

from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from kvchat.errors import PoolExhausted
from kvchat.session.kv.provenance import Origin
from kvchat.ui.screens.choices import ConfirmScreen
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer

pytestmark = pytest.mark.tui


async def test_it_says_what_is_saved_and_lost_and_converts_once_that_is_agreed_to(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        for name, words in (("shadow:25%", "and /cache format exact goes"), ("int4", "2 MiB would be 1 MiB")):
            await shown.say(f"/cache format {name}")
            await shown.until_on_top(ConfirmScreen)
            await shown.until_shown(f"Store the KV of all open conversations as {name}?")
            assert words in shown.text
            assert "approximate" in shown.text
            await shown.pilot.press("escape")
            await shown.until_back()
            assert shown.files.formats == []
        shown.screen.commands.run("/cache format int4")
        await shown.until_on_top(ConfirmScreen)
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "int4")])
        await shown.until_told("converted to int4; /cache format exact goes back")
        assert shown.chat.closed == ["s1"]
        await shown.say_and_wait("still here")
        assert shown.questions == ["hello", "still here"]


async def test_the_way_back_says_what_is_computed_again(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        shown.screen.commands.run("/cache format exact")
        await shown.until_told("Format: exact already")
        conversation = shown.screen.turns.conversation
        namespace = Origin(cache_format="int4", source="exact", fingerprint="0" * 64).namespace
        conversation.session = replace(conversation.session, namespace=namespace)
        shown.screen.commands.run("/cache format")
        await shown.until_told("Format: int4, converted")
        shown.screen.commands.run("/cache format exact")
        await shown.until_on_top(ConfirmScreen)
        await shown.until_shown("What is computed again: 16 tokens")
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "exact")])
        assert shown.questions == ["hello"]


async def test_it_is_refused_while_an_answer_is_written_and_where_it_cannot_be(tmp_path: Path) -> None:
    gate = Event()
    async with window(tmp_path, Answer(hold=gate)) as shown:
        await shown.say("hello")
        await shown.until(lambda: shown.screen.turns.is_running)
        shown.screen.commands.run("/cache format int4")
        await shown.until_told("esc stops it, then choose")
        gate.set()
        await shown.until_answered()
        shown.screen.commands.run("/cache format int3")
        await shown.until_told("cache format 'int3' is unknown")
        shown.screen.commands.run("/cache format int2")
        await shown.until_on_top(ConfirmScreen)
        await shown.pilot.press("y")
        await shown.until_told("no exact KV of this session is stored")
        assert shown.files.formats == []
        assert shown.questions == ["hello"]


async def begin_format(shown: Window) -> None:
    """Agree to another format, which the machine is still at work on."""
    shown.files.changing.clear()
    shown.screen.commands.run("/cache format int4")
    await shown.until_on_top(ConfirmScreen)
    await shown.pilot.press("y")
    await shown.until(lambda: shown.files.formats == [("s1", "int4")])


async def test_one_who_has_gone_to_another_conversation_meanwhile_stays_there(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await begin_format(shown)
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        shown.files.changing.set()
        await shown.until_told("converted to int4; /cache format exact goes back")
        assert shown.screen.turns.conversation is None
        await shown.say_and_wait("something else")
        assert shown.questions == ["something else"]


async def test_a_conversation_that_is_deleted_meanwhile_leaves_the_screen(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await begin_format(shown)
        shown.chat.store.sessions.clear()
        shown.files.changing.set()
        await shown.until_told("there is no session")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        await shown.say_and_wait("something else")
        assert shown.questions == ["something else"]


def full(*formats: str) -> Answer:
    """Return an answer that has no room, and would in these formats."""
    return Answer(fail=PoolExhausted("no room for 9,000 tokens", formats))


async def test_an_outgrown_conversation_is_offered_a_format_to_which_enter_is_no_yes(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(), full("int8", "int4"), Answer()) as shown:
        await shown.say_and_wait("hello")
        await shown.say("and a very long one")
        await shown.until_on_top(ConfirmScreen)
        await shown.until_shown("The cache has no room for this conversation exactly. Keep")
        for words in ("its KV in int8?", "2 MiB would be 1 MiB", "approximate"):
            assert words in shown.text
        dialog = shown.app.screen
        await shown.burst("\n", monotonic() + 5)  # as if it had been read
        await shown.until_shown("y yes · esc no")
        assert (shown.app.screen, shown.files.formats) == (dialog, [])
        await shown.burst("y\n", monotonic() + 10)
        await shown.until(lambda: shown.files.formats == [("s1", "int8")])
        await shown.until_told("enter sends the message again")
        assert shown.screen.prompt.text == "and a very long one"
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["hello", "and a very long one"])


async def test_who_declines_fewer_bits_is_offered_a_shadow_or_keeps_the_exact_cache(tmp_path: Path) -> None:
    has_no_room = full("int8", "shadow:25%", "int4")
    async with window(tmp_path, Answer(), has_no_room) as shown:
        await shown.say_and_wait("hello")
        await shown.type("and a very long one")
        for answer in ("escape", "y"):
            await shown.pilot.press("enter")
            await shown.until_shown("its KV in int8?")
            await shown.pilot.press("escape")
            await shown.until_shown("shadow:25%?")
            assert "2 MiB would be 1 MiB" in shown.text
            assert "Its blocks may lie in host memory then" in shown.text
            assert shown.files.formats == []
            await shown.pilot.press(answer)
            await shown.until_back()
            assert shown.screen.prompt.text == "and a very long one"
        await shown.until(lambda: shown.files.formats == [("s1", "shadow:25%")])
        assert shown.screen.prompt.text == "and a very long one"


async def test_fewer_bits_are_offered_where_the_model_cannot_have_a_shadow(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(), full("shadow:25%", "int4")) as shown:
        shown.files.has_shadows = False
        await shown.say_and_wait("hello")
        await shown.say("and a very long one")
        await shown.until_on_top(ConfirmScreen)
        await shown.until_shown("its KV in int4?")
        assert "shadow" not in shown.text


async def test_nothing_is_offered_where_no_format_would_help(tmp_path: Path) -> None:
    async with window(tmp_path, full()) as shown:
        await shown.say("a very long one")
        await shown.until_told("no room for 9,000 tokens")
        await shown.pilot.pause(0.2)
        assert shown.app.screen is shown.screen


async def test_an_answer_without_room_is_offered_one_and_nothing_typed_covered(tmp_path: Path) -> None:
    gate = Event()
    async with window(tmp_path, Answer(hold=gate, fits_in=("int8",))) as shown:
        await shown.say("hello")
        await shown.until(lambda: shown.screen.turns.is_running)
        await shown.type("and the")
        gate.set()
        await shown.until_shown("int8? · f9 opens")
        assert (shown.app.screen, shown.screen.prompt.text) == (shown.screen, "and the")
        await shown.pilot.press("f9")
        await shown.until_on_top(ConfirmScreen)
        await shown.pilot.press("y")
        await shown.until(lambda: shown.files.formats == [("s1", "int8")])
        await shown.until_told("f5 goes on with an answer")
