"""The window as a whole, driven by keys, on a scripted engine."""

from pathlib import Path
from threading import Event

import pytest
from textual import events

from kvchat.engine.api.status import EnginePhase
from kvchat.errors import ContextOverflow
from kvchat.session.tree import BranchName, Finish
from kvchat.ui.screens.confirm import ConfirmScreen
from tests.ui.gate import hold
from tests.ui.harness import window
from tests.ui.scripted import Answer, ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


async def test_a_message_is_sent_and_its_answer_shown_with_its_figures(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="By **train**.")) as shown:
        await shown.say_and_wait("How do I get to Oslo?")
        await shown.until_shown("↳ reused 0 of 18 · loaded 0 · computed 18 · 0.20 s to first token")
        assert "38 tok/s · exact" in shown.text
        assert shown.questions == ["How do I get to Oslo?"]
        assert "By train." in shown.text


async def test_the_second_answer_says_what_it_reused(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="one two three")) as shown:
        await shown.say_and_wait("first")
        await shown.say_and_wait("second")
        await shown.until_shown("reused 17 of 30 · loaded 0 · computed 13")
        assert shown.answers[1].turn.usage.cached_tokens == 17


async def test_an_answer_streams_while_it_is_written(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="first and later", hold=hold)) as shown:
        await shown.say("go")
        await shown.until_shown("first")
        assert "later" not in shown.text
        assert "/continue" not in shown.text
        hold.set()
        await shown.until_shown("first and later")


async def test_a_streamed_answer_ends_equal_to_a_full_parse(tmp_path: Path) -> None:
    text = "# Head\n\n*Text* and\n\n- one\n- two\n\n```python\nx = 1\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n"
    async with window(tmp_path, Answer(text=text, piece_len=3)) as shown:
        await shown.say_and_wait("go")
        streamed = shown.conversation_text
        await shown.screen.turns.show(shown.screen.turns.conversation)
        await shown.pilot.pause()
        assert shown.conversation_text == streamed


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


async def test_what_is_typed_while_the_model_loads_is_sent_when_it_is_loaded(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING, detail="loading scripted model")
    async with window(tmp_path, engine=engine) as shown:
        await shown.until_shown("loading scripted model")
        await shown.say("are you there?")
        await shown.until_shown("queued  are you there?")
        assert shown.chat.sent == []
        engine.phase = EnginePhase.READY
        await shown.until(lambda: shown.chat.sent == ["are you there?"])
        await shown.until_shown("Very well.")


async def test_escape_gives_queued_text_back_to_the_prompt(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(tmp_path, engine=engine) as shown:
        await shown.say("first thought")
        await shown.say("second thought")
        await shown.type("third")
        await shown.pilot.press("escape")
        assert shown.screen.prompt.text == "first thought\nsecond thought\nthird"
        assert not shown.screen.turns.queue


async def test_messages_typed_during_an_answer_are_sent_one_after_another(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="one two", hold=hold), Answer(text="done")) as shown:
        await shown.say("a")
        await shown.until_shown("one")
        await shown.say("b")
        await shown.say("c")
        await shown.until_shown("2 queued")
        hold.set()
        await shown.until(lambda: shown.chat.sent == ["a", "b", "c"])
        await shown.until(lambda: len(shown.answers) == 3)
        assert shown.questions == ["a", "b", "c"]


async def test_an_engine_that_fails_gives_the_message_back_and_says_why(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(tmp_path, engine=engine) as shown:
        await shown.say("hello")
        engine.phase = EnginePhase.FAILED
        await shown.until(lambda: shown.screen.prompt.text == "hello")
        await shown.until_shown("the model file is damaged")
        assert shown.questions == shown.chat.sent == []


async def test_a_refused_message_comes_back_to_the_prompt(tmp_path: Path) -> None:
    refusal = ContextOverflow("this conversation is full; start another with /new")
    async with window(tmp_path, Answer(fail=refusal)) as shown:
        await shown.say("one more")
        await shown.until(lambda: shown.screen.prompt.text == "one more")
        await shown.until_shown("this conversation is full")
        assert shown.questions == []


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


async def test_a_fork_opens_its_own_branch_on_the_same_messages(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/fork by boat")
        await shown.until_shown("hello  ›  by boat")
        await shown.until_shown("├")
        assert shown.questions == ["hello"]
        await shown.say_and_wait("only here")
        assert shown.questions == ["hello", "only here"]
        assert len(shown.chat.open("s1", "main").turns) == 2


async def test_a_retry_replaces_the_answer_on_a_new_branch(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="first try"), Answer(text="second try")) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/retry")
        await shown.until_shown("second try")
        assert [view.turn.text for view in shown.answers] == ["second try"]
        assert shown.chat.open("s1", "main").turns[-1].text == "first try"


async def test_an_edited_message_goes_on_from_there(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say_and_wait("tell me of Bergen")
        await shown.say("/edit 2")
        await shown.until(lambda: shown.screen.prompt.text == "hello")
        await shown.say(" again")
        await shown.until(lambda: shown.questions == ["hello again"])
        assert shown.chat.sent[-1] == "hello again"
        told = [notice.message for notice in shown.app._notifications]
        assert "computes 11 tokens, 10 reused; 4 messages (28 tokens) from here on" in " ".join(told)


async def test_a_costly_edit_is_asked_for_once_more_and_can_be_given_up(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/edit")
        shown.screen.prompt.set_text("x" * 600)
        await shown.pilot.press("enter")
        await shown.until(lambda: isinstance(shown.app.screen, ConfirmScreen))
        assert shown.chat.sent == ["hello"]
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.prompt.text == "x" * 600)
        await shown.pilot.press("enter")
        await shown.until(lambda: isinstance(shown.app.screen, ConfirmScreen))
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["x" * 600])


async def test_switching_by_name_shows_the_other_conversation(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        chat.add_session("Oslo", [("By boat?", "Yes.")])

    async with window(tmp_path, prepare=prepare) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == ["By boat?"])
        assert [answer.turn.text for answer in shown.answers] == ["Yes."]


async def test_switching_in_the_list_shows_the_other_conversation(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        chat.add_session("Bergen", [("Rain?", "Yes.")])
        chat.add_session("Oslo", [("By boat?", "Yes.")])

    async with window(tmp_path, prepare=prepare, initial="Oslo") as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.pilot.press("f2", "down", "down", "enter")
        await shown.until(lambda: shown.questions == ["Rain?"])
        assert shown.app.focused is shown.screen.prompt


async def test_an_unknown_session_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/switch nowhere")
        await shown.until_shown("there is no session 'nowhere'")
        assert shown.questions == ["hello"]


async def test_deleting_asks_first(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/delete")
        await shown.until_shown("Delete “hello”?")
        assert "the blocks of s1 would be freed" in shown.text
        await shown.pilot.press("escape")
        await shown.until_gone("Delete “hello”?")
        assert shown.chat.store.sessions
        await shown.say("/delete")
        await shown.until_shown("Delete “hello”?")
        await shown.pilot.press("enter")
        await shown.until(lambda: not shown.chat.store.sessions)
        await shown.until_shown("new conversation")
        assert shown.questions == []


async def test_a_new_conversation_is_stored_with_its_first_message_only(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.questions == [])
        assert len(shown.chat.store.sessions) == 1
        await shown.say_and_wait("something else")
        assert len(shown.chat.store.sessions) == 2


async def test_a_system_prompt_goes_with_a_new_conversation(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/system Answer in verse.")
        await shown.say_and_wait("hello")
        [session] = shown.chat.store.sessions.values()
        assert session.system == "Answer in verse."


async def test_a_conversation_can_be_renamed(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/title Trip to Oslo")
        await shown.until_shown("Trip to Oslo  ›  main")
        assert [session.title for session in shown.chat.store.sessions.values()] == ["Trip to Oslo"]


async def test_an_unknown_command_stays_in_the_prompt(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/forc x")
        await shown.until_shown("did you mean /fork")
        assert shown.screen.prompt.text == "/forc x"
        assert shown.chat.sent == []


async def test_the_palette_lists_and_runs_the_commands(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.pilot.press("ctrl+p")
        await shown.until_shown("/attach FILE")
        await shown.type("retry")
        await shown.until(lambda: "/retry" in shown.text and "/attach" not in shown.text)
        await shown.pilot.press("enter")
        await shown.until(lambda: len(shown.chat.store.paths) == 2)
        assert shown.questions == ["hello"]
        assert shown.screen.prompt.text == ""


async def test_help_opens_and_closes(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.pilot.press("f1")
        await shown.until_shown("// sends a line that begins with /")
        await shown.pilot.press("escape")
        await shown.until_gone("// sends a line that begins with /")
        assert shown.app.screen is shown.screen


async def test_printable_keys_return_to_the_prompt_from_anywhere(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.pilot.press("f2")
        await shown.until(lambda: shown.app.focused is not shown.screen.prompt)
        await shown.type("typed in the list")
        assert shown.screen.prompt.text == "typed in the list"


async def test_keys_that_come_before_the_prompt_are_kept(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        shown.app._is_ready = False
        for character in "abc":
            await shown.app.on_event(events.Key(character, character))
        assert shown.screen.prompt.text == ""
        shown.app.on_ready()
        await shown.until(lambda: shown.screen.prompt.text == "abc")


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


async def test_a_command_with_nothing_to_act_on_says_so(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        for command in ("/retry", "/fork", "/continue", "/edit", "/delete"):
            await shown.say(command)
        await shown.until_shown("nothing has been said here yet")
        assert not shown.chat.store.sessions


async def test_a_branch_is_opened_by_its_name(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/fork by boat")
        await shown.until_shown("›  by boat")
        await shown.say("/switch main")
        await shown.until_shown("›  main")
        assert shown.chat.store.paths.keys() == {("s1", "main"), ("s1", BranchName("by boat"))}
