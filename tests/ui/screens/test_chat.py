"""The window as a whole, driven by keys, on a scripted engine."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.session.tree import BranchName, Finish
from kvchat.ui.screens.choices import ConfirmScreen
from tests.ui.gate import hold
from tests.ui.harness import window
from tests.ui.scripted import Answer, ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


async def test_an_answer_is_shown_with_what_it_reused_and_computed(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="By **train** or boat.")) as shown:
        await shown.say_and_wait("How do I get to Oslo?")
        await shown.until_shown("↳ reused 0 of 18 · loaded 0 · computed 18 · 0.20 s to first token")
        assert "38 tok/s · exact" in shown.text
        assert shown.questions == ["How do I get to Oslo?"]
        assert "By train or boat." in shown.text
        await shown.say_and_wait("second")
        await shown.until_shown("reused 23 of 36 · loaded 0 · computed 13")
        assert shown.answers[1].turn.usage.cached_tokens == 23


async def test_what_is_typed_while_the_model_loads_waits_or_is_taken_back_by_escape(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING, detail="loading scripted model")
    async with window(tmp_path, engine=engine) as shown:
        await shown.until_shown("loading scripted model")
        await shown.say("first thought")
        await shown.say("second thought")
        await shown.type("third")
        await shown.pilot.press("escape")
        assert shown.screen.prompt.text == "first thought\nsecond thought\nthird"
        assert not shown.screen.turns.tab.queue
        shown.screen.prompt.set_text("")
        await shown.say("are you there?")
        await shown.until_shown("queued  are you there?")
        shown.screen.prompt.set_text("\u200e")
        await shown.pilot.press("enter")
        await shown.until_shown("queued  message")
        assert shown.chat.sent == []
        engine.phase = EnginePhase.READY
        await shown.until_sent("are you there?", "\u200e")
        await shown.until_shown("Very well.")


async def test_a_fork_opens_its_own_branch_and_each_is_opened_by_its_name(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/fork by boat")
        await shown.until_shown("hello  ›  by boat")
        await shown.until_shown("├")
        assert shown.questions == ["hello"]
        await shown.say_and_wait("only here")
        assert shown.questions == ["hello", "only here"]
        await shown.say("/switch main")
        await shown.until_shown("›  main")
        assert shown.questions == ["hello"]
        assert shown.chat.store.paths.keys() == {("s1", "main"), ("s1", BranchName("by boat"))}


@pytest.mark.parametrize("command", ["/new", "/clear"])
async def test_a_new_conversation_leaves_the_old_one_and_is_stored_with_its_first_message_only(
    tmp_path: Path, command: str
) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say(command)
        await shown.until(lambda: shown.questions == [])
        assert len(shown.chat.store.sessions) == 1
        await shown.say_and_wait("something else")
        assert len(shown.chat.store.sessions) == 2


async def test_a_name_that_is_not_known_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/switch nowhere")
        await shown.until_shown("there is no session 'nowhere'")
        await shown.say("/forc x")
        await shown.until_shown("did you mean /fork")
        assert shown.screen.prompt.text == "/forc x"
        assert shown.questions == shown.chat.sent == ["hello"]


async def test_letters_go_to_the_prompt_from_anywhere_and_enter_opens_what_is_chosen(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        chat.add_session("Bergen", [("Rain?", "Yes.")])
        chat.add_session("Oslo", [("By boat?", "Yes.")])

    async with window(tmp_path, prepare=prepare, initial="Oslo") as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.pilot.press("f2")
        await shown.until(lambda: shown.app.focused is not shown.screen.prompt)
        await shown.type("typed in the list")
        await shown.pilot.press("f6", "up")
        assert shown.transcript.selected is not None
        await shown.type(" and on the walk")
        assert shown.screen.prompt.text == "typed in the list and on the walk"
        assert shown.transcript.selected is None
        await shown.pilot.press("f2", "down", "enter")
        await shown.until(lambda: shown.questions == ["Rain?"])
        assert [answer.turn.text for answer in shown.answers] == ["Yes."]
        assert shown.app.focused is shown.screen.prompt


async def test_a_command_with_nothing_to_act_on_says_so(tmp_path: Path) -> None:
    commands = ["/retry", "/fork", "/continue", "/edit", "/delete", "/undo", "/why", "/gauge", "/export"]
    async with window(tmp_path) as shown:
        for command in (*commands, "/cache format int4"):
            shown.app.clear_notifications()
            await shown.say(command)
            await shown.until(lambda: shown.told == ["nothing has been said here yet"])
        assert not shown.chat.store.sessions


async def test_an_answer_streams_and_messages_typed_meanwhile_follow_in_order(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="first and later", hold=hold), Answer(text="done")) as shown:
        await shown.say("a")
        await shown.until_shown("first")
        assert "later" not in shown.text
        assert "/continue" not in shown.text
        await shown.say("b")
        await shown.say("c")
        await shown.until_shown("2 queued")
        hold.set()
        await shown.until_shown("first and later")
        await shown.until_sent("a", "b", "c")
        assert shown.questions == ["a", "b", "c"]
        assert [view.turn.text for view in shown.answers] == ["first and later", "done", "done"]


async def test_escape_stops_the_answer_and_offers_to_go_on(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="word " * 40, hold=hold), Answer(text="the rest")) as shown:
        await shown.say("go")
        await shown.until_shown("word")
        await shown.pilot.press("escape")
        hold.set()
        await shown.until_shown("interrupted · f5 or /continue goes on")
        assert shown.answers[-1].turn.finish is Finish.INTERRUPTED
        await shown.pilot.press("f5")
        await shown.until_shown("the rest")
        assert len(shown.answers) == 1
        assert shown.answers[0].turn.text.startswith("word ")


async def test_escape_sequences_and_markup_in_an_answer_are_plain_text(tmp_path: Path) -> None:
    hostile = "[red]not red[/red] \x1b[31mnor this\x1b]0;title\x07 <b>nor this</b> \x9b5m"
    async with window(tmp_path, Answer(text=hostile, piece_len=1)) as shown:
        await shown.say_and_wait("[bold]me[/bold]")
        await shown.until_shown("[red]not red[/red] [31mnor this]0;title <b>nor this</b> 5m")
        assert "[bold]me[/bold]" in shown.text
        assert not {"\x1b", "\x07", "\x9b"} & set(shown.text)


async def test_reasoning_is_folded_until_asked_for(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="42", reasoning="six times seven")) as shown:
        await shown.say_and_wait("go")
        await shown.until_shown("▸ thought for 3 words")
        assert "six times seven" not in shown.text
        await shown.pilot.press("ctrl+t")
        await shown.until_shown("six times seven")


async def test_an_edited_message_goes_on_from_there(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say_and_wait("tell me of Bergen")
        await shown.say("/edit 2")
        await shown.until(lambda: shown.screen.prompt.text == "hello")
        await shown.say(" again")
        await shown.until(lambda: shown.questions == ["hello again"])
        assert shown.chat.sent[-1] == "hello again"
        await shown.until_told("computes 11 tokens, 10 reused; 4 messages (28 tokens) from here on")


async def test_a_costly_edit_is_asked_for_once_more_and_can_be_given_up(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/edit")
        shown.screen.prompt.set_text("x" * 600)
        await shown.pilot.press("enter")
        await shown.until_on_top(ConfirmScreen)
        assert shown.chat.sent == ["hello"]
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.prompt.text == "x" * 600)
        await shown.pilot.press("enter")
        await shown.until_on_top(ConfirmScreen)
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["x" * 600])


async def test_deleting_asks_first_and_tells_of_a_file_that_still_holds_the_words(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/delete")
        await shown.until_shown("Delete “hello”?")
        assert "the blocks of s1 would be freed" in shown.text
        await shown.pilot.press("escape")
        await shown.until_gone("Delete “hello”?")
        assert shown.chat.store.sessions
        shown.chat.store.left_on_disk = ["deleted words may still be in sessions.db.damaged-1"]
        await shown.say("/delete")
        await shown.until_shown("Delete “hello”?")
        await shown.pilot.press("enter")  # the safe answer
        await shown.until_gone("Delete “hello”?")
        assert shown.chat.store.sessions
        await shown.say("/delete")
        await shown.until_shown("y yes · enter or esc no")
        await shown.pilot.press("y")
        await shown.until(lambda: not shown.chat.store.sessions)
        await shown.until_shown("may still be in")
        await shown.until_shown("new conversation")
        assert shown.questions == []


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stop_right_after_enter_counts_for_the_answer_that_has_not_begun(
    tmp_path: Path, begun: bool
) -> None:
    async with window(tmp_path, Answer(text="a long answer")) as shown:
        if begun:
            await shown.say_and_wait("hello")
        gate = hold(shown.chat, "send" if begun else "create")
        await shown.say("go")
        await shown.until(lambda: shown.screen.turns.is_running)
        shown.screen.action_stop()  # as by escape, and surely before the gate
        gate.open()
        await shown.until(lambda: len(shown.answers) == 1 + begun)
        await shown.until(lambda: shown.answers[-1].turn.finish is not Finish.PARTIAL)
        assert shown.chat.sent[-1] == "go"
        assert (shown.answers[-1].turn.text, shown.answers[-1].turn.finish) == ("", Finish.INTERRUPTED)


async def test_quitting_during_an_answer_keeps_what_was_shown(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="word ", pace_s=0.01, never_ends=True)) as shown:
        await shown.say("go")
        await shown.until_shown("word")
        await shown.pilot.press("ctrl+q")
        await shown.until(lambda: not shown.app.is_running)
        last = shown.chat.open("s1").turns[-1]
        assert last.finish is Finish.INTERRUPTED
        assert last.text.startswith("word")
