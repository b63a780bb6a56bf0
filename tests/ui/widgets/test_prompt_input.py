"""Typing: lines, commands, pastes, history."""

from pathlib import Path

import pytest
from textual import events

from kvchat.ui.commands import COMMANDS
from kvchat.ui.screens.choices import NoteScreen
from tests.ui.harness import Window, talk_window, window

pytestmark = pytest.mark.tui


async def test_enter_sends_what_is_said_and_other_keys_make_lines(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("one")
        await shown.pilot.press("ctrl+j")
        await shown.type("two")
        await shown.pilot.press("shift+enter")
        await shown.type("three")
        assert shown.screen.prompt.size.height == 3
        await shown.pilot.press("enter")
        await shown.until_sent("one\ntwo\nthree")
        assert shown.screen.prompt.text == ""
        await shown.say("  ")
        await shown.pilot.pause(0.1)
        shown.screen.prompt.set_text("")
        await shown.say("//help")
        await shown.until_sent("one\ntwo\nthree", "/help")
        shown.screen.prompt.set_text("//usr")  # not typed
        await shown.pilot.press("enter")
        await shown.until_sent("one\ntwo\nthree", "/help", "//usr")
        assert shown.app.screen is shown.screen


def press_at_once(shown: Window, *keys: str) -> None:
    """Press keys that have all come before the window looks at the first."""
    for key in keys:
        shown.screen.prompt.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_a_command_and_a_message_for_what_it_opens_may_come_in_one_burst(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        press_at_once(shown, "/", "n", "e", "w", "enter", "h", "i", "enter")
        await shown.until_sent("hello", "hi")
        assert len(shown.chat.store.sessions) == 2
        press_at_once(shown, *"/switch none", "enter", *"for none", "enter")
        await shown.until(lambda: shown.screen.prompt.text == "for none")
        await shown.pilot.pause()
        assert shown.chat.sent == ["hello", "hi"]


async def test_what_is_half_typed_is_below_the_history_and_a_change_there_stays(tmp_path: Path) -> None:
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


async def test_keys_that_come_in_one_burst_act_in_their_order(tmp_path: Path) -> None:
    """As typed while the window was busy: what is typed behind a key that erases is not erased."""
    async with window(tmp_path) as shown:
        await shown.type("old words")
        press_at_once(shown, "ctrl+u", *"new", "left", "x")
        await shown.until(lambda: shown.screen.prompt.text == "nexw")
        press_at_once(shown, "ctrl+a", "ctrl+k", "/", "n", "backspace", "backspace", "o", "h", "enter")
        await shown.until_sent("oh")
        press_at_once(shown, "/", "down", "tab")
        await shown.until(lambda: shown.screen.prompt.text.strip() not in ("", "/", "/help"))
        await shown.pilot.pause()
        assert shown.screen.prompt.text.startswith("/")


async def test_a_paste_is_one_message_and_no_command_also_from_the_history(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.paste("/quit")
        await shown.pilot.press("enter")
        await shown.until_sent("/quit")
        await shown.pilot.press("up", "enter")
        await shown.until_sent("/quit", "/quit")
        await shown.paste("first\r\nsecond\rthird\x1b[31m")
        assert len(shown.chat.sent) == 2
        await shown.pilot.press("enter")
        await shown.until_sent("/quit", "/quit", "first\nsecond\nthird[31m")
        assert shown.app.is_running


async def test_commands_are_offered_chosen_completed_and_put_away_by_escape(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/s")
        await shown.until_shown("▸ /switch")
        await shown.pilot.press("escape")
        await shown.until_gone("▸ /switch")
        assert shown.screen.prompt.text == "/s"
        await shown.pilot.press("backspace")
        await shown.type("s")
        await shown.until_shown("▸ /switch")
        await shown.pilot.press("down")
        await shown.until_shown("▸ /search")
        await shown.pilot.press("tab")
        assert shown.screen.prompt.text == "/search"


async def test_a_list_of_commands_says_that_there_are_more_and_scrolls_to_them(tmp_path: Path) -> None:
    num = len(COMMANDS)
    async with window(tmp_path, size=(80, 24)) as shown:
        await shown.type("/")
        await shown.until_shown(f"↑↓ 1–5 of {num}")
        await shown.pilot.press("up")
        await shown.until_shown(f"↑↓ {num - 4}–{num} of {num}")
        assert f"▸ {COMMANDS[-1].usage}" in shown.text
        await shown.type("de")
        await shown.until_shown("▸ /detach")
        assert "↑↓" not in shown.text


async def test_a_command_that_needs_a_word_waits_for_it_and_takes_a_pasted_one(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/ti")
        assert shown.screen.prompt.text == "/title "
        await shown.paste("From a paste")
        await shown.pilot.press("enter")
        await shown.until_shown("From a paste  ›  main")
        assert shown.chat.sent == ["hello"]


async def test_a_command_of_the_history_lets_the_walk_go_on(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/title Oslo")
        await shown.until(lambda: shown.screen.prompt.text == "")
        await shown.pilot.press("up")
        assert shown.screen.prompt.text == "/title Oslo"
        assert not shown.screen.prompt.is_completing
        await shown.pilot.press("up")
        assert shown.screen.prompt.text == "hello"
        await shown.pilot.press("down", "backspace")
        assert shown.screen.prompt.text == "/title Osl"


async def test_whatever_is_put_into_the_prompt_leaves_the_draft_a_key_up_away(tmp_path: Path) -> None:
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
        shown.screen.prompt.write("an earlier message")
        assert shown.screen.prompt.text == "an earlier message"
        await shown.pilot.press("up")
        assert shown.screen.prompt.text == "Very well.x"


async def test_neither_one_command_of_the_history_nor_several_catch_up_and_down(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/why")
        await shown.until_on_top(NoteScreen)
        await shown.pilot.press("escape")
        await shown.until_back()
        await shown.type("/s")
        await shown.pilot.press("escape", "enter")
        await shown.until_told("there is no /s")
        shown.screen.prompt.set_text("")
        walked = []
        for key in ("up", "up", "up", "down", "down"):
            await shown.pilot.press(key)
            walked.append(shown.screen.prompt.text)
        assert walked == ["/s", "/why", "hello", "/why", "/s"]
        assert not shown.screen.query_one("#commands").display


async def test_commands_are_listed_after_the_palette_has_been_open_too(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.pilot.press("ctrl+p")
        await shown.until(lambda: shown.app.screen is not shown.screen)
        await shown.pilot.press("escape")
        await shown.until_back()
        await shown.say("/search hello")
        await shown.until(lambda: shown.screen.focused is not shown.screen.prompt)
        await shown.pilot.press("escape")
        await shown.type("/")
        await shown.until_shown("▸ /new [title]")
