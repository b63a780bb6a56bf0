"""Other ways for a conversation, by keys: at a message, several at once, at a token, aside."""

import asyncio
from pathlib import Path
from threading import Event

import pytest

from kvchat.ui.screens.actions import ActionsScreen
from kvchat.ui.screens.compare import CompareScreen
from kvchat.ui.screens.tokens import TokensScreen
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer, ScriptedChat

pytestmark = pytest.mark.tui


def talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [("By boat?", "By train."), ("How long?", "Seven hours or so.")])


def two_talks(chat: ScriptedChat) -> None:
    talk(chat)
    chat.add_session("Bergen", [("By bus?", "By air.")])


async def opened(shown: Window) -> None:
    await shown.until(lambda: shown.questions == ["By boat?", "How long?"])


async def test_walking_to_a_message_and_forking_behind_it(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.pilot.press("f6", "up", "up")
        assert shown.transcript.selected is shown.transcript.views[1]
        await shown.pilot.press("enter")
        await shown.until_shown("kvchat: By train.")
        assert "shares 17 tokens (" in shown.text
        await shown.pilot.press("f")
        await shown.until(lambda: shown.questions == ["By boat?"])
        assert [view.turn.text for view in shown.answers] == ["By train."]
        assert len(shown.chat.store.paths) == 2


async def test_forking_before_a_message_puts_it_into_the_prompt(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.pilot.press("f6", "up", "enter")
        await shown.until(lambda: isinstance(shown.app.screen, ActionsScreen))
        await shown.pilot.press("f")
        await shown.until(lambda: shown.questions == ["By boat?"])
        assert shown.screen.prompt.text == "How long?"


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


async def test_a_fork_says_what_it_shares_before_it_is_made_and_after(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/fork by ferry")
        price = "shares 36 tokens (384 KiB) · computes nothing"
        after = ("", f"on branch by ferry: {price}; what is new is its own")
        told = await told_until(shown, after)
        assert ("fork", price) in told[: told.index(after)]


async def test_an_aside_says_what_it_shares_and_what_goes_with_it(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="A fjord is a bay."), prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/aside What is a fjord?")
        await told_until(shown, ("aside", "shares 36 tokens (384 KiB) · computes nothing"))
        await shown.until_shown("A fjord is a bay.")
        await shown.until(lambda: not shown.screen.turns.is_running)
        await shown.say("/aside")
        await told_until(shown, ("", "the aside is gone, with 22 tokens (384 KiB)"))
        assert shown.questions == ["By boat?", "How long?"]


async def test_a_message_in_the_middle_is_changed_from_its_menu(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.pilot.press("f6", "up", "up", "up", "enter")
        await shown.until(lambda: isinstance(shown.app.screen, ActionsScreen))
        await shown.pilot.press("e")
        await shown.until(lambda: shown.screen.prompt.text == "By boat?")
        await shown.until_shown("editing")
        assert shown.screen.revisions.editing.text == "By boat?"


async def test_typing_leaves_the_walk_and_reaches_the_prompt(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.pilot.press("f6", "up")
        await shown.type("and by car?")
        assert shown.screen.prompt.text == "and by car?"
        assert shown.transcript.selected is None


async def test_answers_are_compared_and_one_is_taken(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/retry 3")
        await shown.until_shown("enter takes it")
        assert all(f"answer number {number}" in shown.text for number in (1, 2, 3))
        assert "once for all 3 answers" in shown.text
        await shown.pilot.press("2", "enter")
        await shown.until(lambda: [view.turn.text for view in shown.answers][-1] == "answer number 2")
        assert shown.chat.open("Oslo", "main").turns[-1].text == "Seven hours or so."


async def test_answering_again_is_priced_in_tokens_and_bytes_before_it_is_done(tmp_path: Path) -> None:
    price = "shares 30 tokens (384 KiB) · computes 1 token"
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.until_shown("one cell =")
        await shown.pilot.press("f6", "enter")
        await shown.until_shown("answer again")
        lines = shown.text.splitlines()
        assert price in next(line for line in lines if "answer again" in line)
        assert "the same, once for all" in next(line for line in lines if "three answers, compared" in line)
        await shown.pilot.press("escape")
        await shown.say("/retry")
        await shown.until(lambda: any(note.message == price for note in shown.app._notifications))
        await shown.until_shown("Very well.")
        await shown.until(lambda: not shown.screen.turns.is_running)
        assert shown.screen.turns.conversation.branch.name.startswith("retry")


async def test_comparing_can_be_stopped_and_left(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(60, 24)) as shown:
        await opened(shown)
        shown.chat.variants.hold = hold
        await shown.say("/retry 2")
        await shown.until_shown("esc stops them all")
        await shown.pilot.press("escape")
        hold.set()
        await shown.until_shown("esc keeps the old answer")
        await shown.pilot.press("escape")
        await shown.until(lambda: not isinstance(shown.app.screen, CompareScreen))
        assert [view.turn.text for view in shown.answers][-1] == "Seven hours or so."


async def test_a_text_begun_beside_compared_answers_keeps_its_digits_and_keys_until_esc(
    tmp_path: Path,
) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/retry 3")
        await shown.until_shown("enter takes it")
        screen = shown.app.screen
        await shown.type("at 27:15x")
        await shown.pilot.press("backspace", "left", "left", "3", "enter")
        await shown.until(lambda: shown.screen.prompt.text == "at 27:315")
        await shown.until_shown("esc goes back to the answers")
        await shown.pilot.press("escape", "2")
        await shown.until_shown("▸ 2")
        assert (shown.app.screen, shown.screen.prompt.text) == (screen, "at 27:315")
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.app.screen is shown.screen)


@pytest.mark.parametrize("number", ["0", "9", "300"])
async def test_only_a_few_answers_can_be_compared(tmp_path: Path, number: str) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say(f"/retry {number}")
        await shown.until(lambda: bool(shown.app._notifications))
        assert shown.app.screen is shown.screen


async def test_an_answer_is_opened_as_tokens_and_gone_on_from_another(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
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


async def test_the_tokens_can_be_left_without_a_choice(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/tokens 2")
        await shown.until(lambda: isinstance(shown.app.screen, TokensScreen))
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.app.screen is shown.screen)
        assert len(shown.chat.store.paths) == 1


async def test_an_aside_is_thrown_away_when_it_is_left(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="A fjord is a bay."), prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord is a bay.")
        await shown.until_shown("thrown away when you leave")
        await shown.until(lambda: not shown.screen.turns.is_running)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.questions == ["By boat?", "How long?"])
        assert len(shown.chat.store.paths) == 1


async def test_what_an_aside_was_begun_in_stays_open_behind_it_like_any_other(tmp_path: Path) -> None:
    """It would hold its blocks for ever: nobody else knows that it is open."""
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        back = shown.screen.turns.conversation
        await shown.say("/aside What is a fjord?")
        await shown.until(lambda: shown.screen.turns.conversation is not back)
        assert list(shown.screen.conversations._kept) == [back]
        await shown.until(lambda: not shown.screen.turns.is_running)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.turns.conversation is back)
        assert list(shown.screen.conversations._kept) == []


async def test_an_aside_is_gone_after_switching_to_another_session(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/aside What is a fjord?")
        await shown.until(lambda: shown.questions[-1:] == ["What is a fjord?"])
        await shown.until(lambda: not shown.screen.turns.is_running)
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.questions == [])
        assert len(shown.chat.store.paths) == 1


async def leave_answered_aside(shown: Window) -> None:
    await opened(shown)
    await shown.say("/aside What is a fjord?")
    await shown.until_shown("A fjord")
    await shown.pilot.press("ctrl+n")
    await shown.until(lambda: shown.questions == [])


async def test_an_aside_left_while_it_is_answered_goes_when_its_answer_ends(tmp_path: Path) -> None:
    hold = Event()
    answer = Answer(text="A fjord is a bay.", piece_len=8, hold=hold)
    async with window(tmp_path, answer, prepare=talk, initial="Oslo") as shown:
        await leave_answered_aside(shown)
        assert "thrown away when you leave" not in shown.text.splitlines()[0]
        await shown.pilot.press("escape")
        await shown.pilot.pause(0.1)
        assert len(shown.chat.store.paths) == 2  # its answer still writes
        hold.set()
        await shown.until(lambda: len(shown.chat.store.paths) == 1)
        assert shown.questions == []


async def test_another_session_has_an_aside_of_its_own_while_one_is_answered_behind(tmp_path: Path) -> None:
    hold = Event()
    answers = [Answer(text="A fjord is a bay.", piece_len=8, hold=hold), Answer(text="A sound is a strait.")]
    async with window(tmp_path, *answers, prepare=two_talks, initial="Oslo") as shown:
        await leave_answered_aside(shown)
        await shown.say("/switch Bergen")
        await shown.until(lambda: shown.questions == ["By bus?"])
        await shown.say("/aside What is a sound?")
        await shown.until_shown("A sound is a strait.")
        await shown.until(lambda: not shown.screen.turns.is_running)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.questions == ["By bus?"])
        hold.set()
        await shown.until(lambda: len(shown.chat.store.paths) == 2)
        assert not any("sound" in turn.text for path in shown.chat.store.paths.values() for turn in path)


async def test_opening_the_asides_own_line_keeps_it(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="A fjord is a bay."), prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord is a bay.")
        await shown.until(lambda: not shown.screen.turns.is_running)
        here = shown.screen.turns.conversation
        assert here is not None
        shown.screen.conversations.open_with(
            lambda: asyncio.to_thread(shown.chat.open, here.session.id, here.branch.name)  # a fresh object
        )
        await shown.until_at_rest()
        assert len(shown.chat.store.paths) == 2
        assert shown.questions[-1:] == ["What is a fjord?"]
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.questions == ["By boat?", "How long?"])
        assert len(shown.chat.store.paths) == 1


async def test_quitting_inside_an_aside_throws_it_away(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="A fjord is a bay."), prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord is a bay.")
        await shown.until(lambda: not shown.screen.turns.is_running)
        shown.screen.quit()
        assert len(shown.chat.store.paths) == 1


async def test_quitting_while_an_aside_is_answered_throws_it_away(tmp_path: Path) -> None:
    answer = Answer(text="A fjord is a bay. ", piece_len=8, pace_s=0.05, never_ends=True)
    async with window(tmp_path, answer, prepare=talk, initial="Oslo") as shown:
        await opened(shown)
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord is")
        shown.screen.quit()
        assert len(shown.chat.store.paths) == 1
