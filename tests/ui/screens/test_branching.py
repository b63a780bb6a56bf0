"""Other ways for a conversation, by keys: at a message, at a token, aside."""

import asyncio
from pathlib import Path
from threading import Event

import pytest

from kvchat.ui.screens.tokens import TokensScreen
from tests.ui.harness import Window, talk, talk_window
from tests.ui.scripted import Answer, ScriptedChat

pytestmark = pytest.mark.tui

QUESTIONS = ["By boat?", "How long?"]
FJORD = Answer(text="A fjord is a bay.")


def two_talks(chat: ScriptedChat) -> None:
    talk(chat)
    chat.add_session("Bergen", [("By bus?", "By air.")])


async def test_a_message_that_is_walked_to_is_forked_behind_or_before_or_changed(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.pilot.press("f6", "up", "up")
        assert shown.transcript.selected is shown.transcript.views[1]
        await shown.pilot.press("enter")
        await shown.until_shown("kvchat: By train.")
        assert "shares 17 tokens (" in shown.text
        await shown.pilot.press("f")
        await shown.until(lambda: shown.questions == QUESTIONS[:1])
        assert [view.turn.text for view in shown.answers] == ["By train."]
        await shown.say("/switch main")
        await shown.until(lambda: shown.questions == QUESTIONS)
        await shown.pilot.press("f6", "up", "enter")
        await shown.until_shown("you: How long?")
        await shown.pilot.press("f")
        await shown.until(lambda: (shown.questions, shown.screen.prompt.text) == (["By boat?"], "How long?"))
        assert len(shown.chat.store.paths) == 3
        shown.screen.prompt.set_text("")
        await shown.say("/switch main")
        await shown.until(lambda: shown.questions == QUESTIONS)
        await shown.pilot.press("f6", "up", "up", "up", "enter")
        await shown.until_shown("you: By boat?")
        await shown.pilot.press("e")
        await shown.until_shown("editing")
        assert shown.screen.prompt.text == shown.screen.revisions.editing.text == "By boat?"


async def told_until(shown: Window, last: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what was told, by title and words, once `last` is among it; it does not stand for long."""
    told: list[tuple[str, str]] = []

    def is_told() -> bool:
        for notice in shown.app._notifications:
            if (notice.title, notice.message) not in told:
                told.append((notice.title, notice.message))
        return last in told

    await shown.until(is_told)
    return told


async def ask_aside(shown: Window) -> None:
    await shown.say("/aside What is a fjord?")
    await shown.until_shown("A fjord is a bay.")
    await shown.until_answered()


async def test_a_fork_and_an_aside_each_say_once_what_they_share(tmp_path: Path) -> None:
    price = "shares 36 tokens (384 KiB) · nothing recomputed"
    async with talk_window(tmp_path, FJORD) as shown:
        await shown.until_shown("one cell =")
        await shown.until_told("36 of 36 tokens cached")
        shown.app.clear_notifications()
        await shown.say("/fork by ferry")
        forked = ("branch by ferry", f"{price} · original kept on main")
        await told_until(shown, forked)
        await shown.until_at_rest()
        assert await told_until(shown, forked) == [forked]
        await ask_aside(shown)
        told = await told_until(shown, ("aside", price))
        assert told == [forked, ("aside", price)]
        await shown.say("/aside")
        await told_until(shown, ("", "the aside is gone, with 22 tokens (384 KiB)"))
        assert shown.questions == QUESTIONS


async def test_answering_again_is_priced_and_said_to_be_sampled_before_it_is_done(tmp_path: Path) -> None:
    price = "shares 30 tokens (384 KiB) · computes 1 token"
    async with talk_window(tmp_path) as shown:
        await shown.until_shown("one cell =")
        await shown.pilot.press("f6", "enter")
        await shown.until_shown("answer again, at 0.8")
        lines = shown.text.splitlines()
        assert price in next(line for line in lines if "answer again" in line)
        assert "the same, once for all" in next(line for line in lines if "three answers, compared" in line)
        await shown.pilot.press("escape")
        await shown.say("/retry")
        await shown.until_told(price)
        await shown.until_told("sampled at temperature 0.8")
        await shown.until_shown("Very well.")
        await shown.until_answered()
        assert shown.screen.turns.conversation.branch.name.startswith("retry")
        assert [view.turn.text for view in shown.answers] == ["By train.", "Very well."]
        assert shown.chat.open("Oslo", "main").turns[-1].text == "Seven hours or so."


async def test_an_answer_is_opened_as_tokens_and_left_or_gone_on_from_another(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.say("/tokens 2")
        await shown.until_on_top(TokensScreen)
        await shown.pilot.press("escape")
        await shown.until_back()
        assert len(shown.chat.store.paths) == 1
        await shown.say("/tokens")
        await shown.until_shown("75.00%")
        assert "■ ends here" in shown.text
        await shown.pilot.press("right", "right")
        await shown.until_shown("shares 32 tokens")
        await shown.pilot.press("down")
        # The pilot would wait for what the closed screen was still to do.
        shown.app.simulate_key("enter")
        while shown.app.screen is not shown.screen:
            await asyncio.sleep(0.02)
        await shown.until(lambda: [view.turn.text for view in shown.answers][-1] == "Seven hours 900")
        assert shown.chat.open("Oslo", "main").turns[-1].text == "Seven hours or so."


async def test_an_aside_is_thrown_away_however_it_is_left(tmp_path: Path) -> None:
    """What it was begun in stays open behind it: nobody else knows of its blocks, which it would hold."""
    async with talk_window(tmp_path, FJORD) as shown:
        back = shown.screen.turns.conversation
        await ask_aside(shown)
        await shown.until_shown("deleted when you leave")
        assert list(shown.screen.conversations._kept) == [back]
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.turns.conversation is back)
        assert (shown.questions, list(shown.screen.conversations._kept)) == (QUESTIONS, [])
        assert len(shown.chat.store.paths) == 1
        await ask_aside(shown)
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.questions == [] and len(shown.chat.store.paths) == 1)
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == QUESTIONS)
        await ask_aside(shown)
        shown.screen.quit()
        assert len(shown.chat.store.paths) == 1


async def test_an_aside_left_while_it_is_answered_goes_at_its_end_and_hinders_none(tmp_path: Path) -> None:
    hold = Event()
    answers = [Answer(text="A fjord is a bay.", piece_len=8, hold=hold), Answer(text="A sound is a strait.")]
    async with talk_window(tmp_path, *answers, prepare=two_talks) as shown:
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.questions == [])
        assert "deleted when you leave" not in shown.text.splitlines()[0]
        await shown.pilot.press("escape")
        await shown.pilot.pause(0.1)
        assert len(shown.chat.store.paths) == 3  # its answer still writes
        await shown.say("/switch Bergen")
        await shown.until(lambda: shown.questions == ["By bus?"])
        await shown.say("/aside What is a sound?")
        await shown.until_shown("A sound is a strait.")
        await shown.until_answered()
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.questions == ["By bus?"])
        hold.set()
        await shown.until(lambda: len(shown.chat.store.paths) == 2)
        assert not any("sound" in turn.text for path in shown.chat.store.paths.values() for turn in path)


async def test_opening_the_asides_own_line_keeps_it(tmp_path: Path) -> None:
    async with talk_window(tmp_path, FJORD) as shown:
        await ask_aside(shown)
        here = shown.screen.turns.conversation
        assert here is not None
        shown.screen.conversations.open_with(
            lambda: asyncio.to_thread(shown.chat.open, here.session.id, here.branch.name)  # a fresh object
        )
        await shown.until_at_rest()
        assert len(shown.chat.store.paths) == 2
        assert shown.questions[-1:] == ["What is a fjord?"]
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.questions == QUESTIONS)
        assert len(shown.chat.store.paths) == 1


async def test_quitting_while_an_aside_is_answered_throws_it_away(tmp_path: Path) -> None:
    answer = Answer(text="A fjord is a bay. ", piece_len=8, pace_s=0.05, never_ends=True)
    async with talk_window(tmp_path, answer) as shown:
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord is")
        shown.screen.quit()
        assert len(shown.chat.store.paths) == 1
