"""Typing: lines, commands, pastes, history."""

from pathlib import Path

import pytest
from textual import events

from tests.ui.harness import Window, window

pytestmark = pytest.mark.tui


async def paste(shown: Window, text: str) -> None:
    shown.app.post_message(events.Paste(text))
    await shown.pilot.pause()


async def test_enter_sends_and_other_keys_make_lines(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("one")
        await shown.pilot.press("ctrl+j")
        await shown.type("two")
        await shown.pilot.press("shift+enter")
        await shown.type("three")
        assert shown.screen.prompt.size.height == 3
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.chat.sent == ["one\ntwo\nthree"])
        assert shown.screen.prompt.text == ""


def press_at_once(shown: Window, *keys: str) -> None:
    """Press keys that have all come before the window looks at the first."""
    for key in keys:
        shown.screen.prompt.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_a_command_and_its_enter_may_come_in_one_burst(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        press_at_once(shown, "/", "n", "e", "w", "enter", "h", "i", "enter")
        await shown.until(lambda: shown.chat.sent == ["hello", "hi"])
        assert len(shown.chat.store.sessions) == 2


async def test_a_message_for_a_conversation_that_does_not_open_is_not_sent_to_another(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        press_at_once(shown, *"/switch none", "enter", *"hi", "enter")
        await shown.until(lambda: shown.screen.prompt.text == "hi")
        await shown.pilot.pause()
        assert shown.chat.sent == ["hello"]


async def test_what_is_no_command_any_more_is_sent_though_its_keys_come_in_one_burst(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        press_at_once(shown, "/", "n", "backspace", "backspace", "o", "h", "enter")
        await shown.until(lambda: shown.chat.sent == ["oh"])
        assert shown.screen.prompt.text == ""


async def test_a_choice_that_was_moved_to_in_a_burst_is_taken(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        press_at_once(shown, "/", "down", "tab")
        await shown.until(lambda: shown.screen.prompt.text.strip() not in ("", "/", "/help"))
        await shown.pilot.pause()
        assert shown.screen.prompt.text.startswith("/")


async def test_an_empty_message_is_not_sent(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("  ")
        await shown.pilot.pause(0.1)
        assert not shown.screen.turns.is_running
        assert shown.chat.sent == []


async def test_a_paste_is_text_even_if_it_looks_like_a_command(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await paste(shown, "/quit")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.chat.sent == ["/quit"])
        assert shown.app.is_running


async def test_a_paste_of_many_lines_is_one_message(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await paste(shown, "first\r\nsecond\rthird\x1b[31m")
        assert shown.chat.sent == []
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.chat.sent == ["first\nsecond\nthird[31m"])


async def test_a_pasted_name_does_not_complete_a_typed_slash(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/")
        await paste(shown, "quit")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.chat.sent == ["/quit"])
        assert shown.app.is_running


async def test_an_argument_may_be_pasted(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.type("/title ")
        await paste(shown, "From a paste")
        await shown.pilot.press("enter")
        await shown.until_shown("From a paste  ›  main")
        assert shown.chat.sent == ["hello"]


async def test_a_doubled_slash_sends_one(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("//help")
        await shown.until(lambda: shown.chat.sent == ["/help"])
        assert shown.app.screen is shown.screen


async def test_a_slash_inside_a_line_is_text(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("a/b")
        await shown.until(lambda: shown.chat.sent == ["a/b"])
        assert shown.screen.prompt.text == ""


async def test_commands_are_offered_chosen_and_completed(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/s")
        await shown.until_shown("▸ /stop")
        await shown.pilot.press("down")
        await shown.until_shown("▸ /switch")
        await shown.pilot.press("tab")
        assert shown.screen.prompt.text == "/switch"


async def test_enter_on_an_offered_command_that_needs_a_word_waits_for_it(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/ti")
        assert shown.screen.prompt.text == "/title "
        await shown.say("Oslo")
        await shown.until_shown("Oslo  ›  main")


async def test_escape_closes_the_offer_and_keeps_the_line(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/s")
        await shown.until_shown("▸ /stop")
        await shown.pilot.press("escape")
        await shown.until_gone("▸ /stop")
        assert shown.screen.prompt.text == "/s"


async def test_earlier_messages_come_back_with_up_and_leave_with_down(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("first")
        await shown.say_and_wait("second")
        await shown.pilot.press("up", "up")
        assert shown.screen.prompt.text == "first"
        await shown.pilot.press("down")
        assert shown.screen.prompt.text == "second"
        await shown.pilot.press("down")
        assert shown.screen.prompt.text == ""


async def test_a_pasted_command_stays_text_in_the_history(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await paste(shown, "/quit")
        await shown.pilot.press("enter")
        await shown.until(lambda: len(shown.answers) == 1 and not shown.screen.turns.is_running)
        await shown.pilot.press("up", "enter")
        await shown.until(lambda: shown.chat.sent == ["/quit", "/quit"])
        assert shown.app.is_running


async def test_a_text_put_into_the_prompt_leaves_the_draft_a_key_up_away(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("half a thought")
        shown.screen.prompt.write("an earlier message")
        assert shown.screen.prompt.text == "an earlier message"
        await shown.pilot.press("up")
        assert shown.screen.prompt.text == "half a thought"


async def test_keys_that_come_in_one_burst_act_in_their_order(tmp_path: Path) -> None:
    """As typed while the window was busy: what is typed behind a key that erases is not erased."""
    async with window(tmp_path) as shown:
        await shown.type("old words")
        burst = [("ctrl+u", "\x15"), *((letter, letter) for letter in "new"), ("left", None), ("x", "x")]
        for key, character in burst:
            shown.app.post_message(events.Key(key, character))
        await shown.until(lambda: shown.screen.prompt.text == "nexw")
        assert shown.chat.sent == []


async def test_what_is_half_typed_is_below_the_history_and_what_is_changed_there_stays(
    tmp_path: Path,
) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("first")
        await shown.say_and_wait("second")
        await shown.type("half")
        await shown.pilot.press("up", "x", "up", "down")
        assert shown.screen.prompt.text == "secondx"
        await shown.pilot.press("down")
        assert shown.screen.prompt.text == "half"
        await shown.pilot.press("up", "up", "enter")
        await shown.until(lambda: shown.chat.sent[2:] == ["first"])
        await shown.pilot.press("up", "up", "up")
        assert shown.screen.prompt.messages == ("first", "second", "secondx", "half", "first")


async def test_an_edit_and_a_chosen_command_leave_the_draft_a_key_up_away(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.type("half")
        shown.screen.revisions.begin_edit(shown.transcript.last_answer.turn)
        await shown.pilot.press("up")
        assert shown.screen.prompt.text == "half"
        await shown.pilot.press("down", "x", "escape", "up")
        assert shown.screen.prompt.text == "Very well.x"
        shown.screen.prompt.restore_command("/title ")
        await shown.pilot.press("up")
        assert shown.screen.prompt.text == "Very well.x"
