from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, pthread_kill
from threading import Thread, main_thread
from time import monotonic, sleep

import pytest

from kvchat.chat import Chat, ChatEvent, Prefill, TextDelta, TurnFinished, TurnStarted
from kvchat.conversation import Conversation
from kvchat.engine.api.events import Event
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import (
    ContextOverflow,
    EngineFailed,
    ModelUnreadable,
    SessionNotFound,
    StorageError,
    UsageError,
)
from kvchat.session.store import SessionStore
from kvchat.session.template import ChatTemplate
from kvchat.session.tree import Finish, Role
from tests.scripted_engine import ScriptedEngine, ScriptedHandle
from tests.tiny_models import CHATML, QWEN_THINKING, STARTER, write_model

pytestmark = pytest.mark.pure

REPLY = "Hello, Grüße! The answer is no."


class Desk:
    """A chat with everything around it, on one database."""

    def __init__(self, home: Path, template: ChatTemplate, reply: str = REPLY) -> None:
        self.store = SessionStore(home / "sessions.db")
        self.template = template
        self.reply = reply
        self.engine = ScriptedEngine(self.script)
        self.chat = Chat(store=self.store, template=template, engine=self.engine, model="tiny")

    def script(self, prompt: tuple[int, ...]) -> list[int]:
        """Say the reply, from where the prompt has got to if it holds the beginning of it."""
        return [*self.template.tokenizer.encode(self.reply), min(self.template.end_ids)]

    def seen(self, conversation: Conversation) -> str:
        return self.template.tokenizer.decode(conversation.token_ids or (), keep_control=True)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate.from_dir(write_model(tmp_path_factory.mktemp("model"), STARTER))


@pytest.fixture
def desk(tmp_path: Path, template: ChatTemplate) -> Iterator[Desk]:
    desk = Desk(tmp_path, template)
    yield desk
    desk.store.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + 20
    while not is_so():
        assert monotonic() < deadline
        sleep(0.01)


def shown(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and not event.reasoning)


def test_a_turn_is_told_from_question_to_end(desk: Desk) -> None:
    conversation = desk.chat.create("demo", "Be kind.")
    events = list(desk.chat.send(conversation, "My name is Ana."))
    started, prefill, *_, finished = events
    assert isinstance(started, TurnStarted)
    assert started.question is not None
    assert started.question.text == "My name is Ana."
    assert isinstance(prefill, Prefill)
    assert isinstance(finished, TurnFinished)
    assert (finished.error, finished.answer.finish) == (None, Finish.COMPLETE)
    assert shown(events) == finished.answer.text == REPLY
    assert (finished.answer.model, finished.answer.fingerprint) == ("tiny", "ab" * 32)
    assert finished.answer.usage.completion_tokens == len(finished.answer.token_ids or ())
    assert conversation.turns[-1] == finished.answer
    assert desk.store.turns_to(conversation.branch.leaf_id) == conversation.turns


def test_what_the_model_sees_only_ever_grows(desk: Desk) -> None:
    """Trap 29: no id that the model saw changes, whatever comes after."""
    conversation = desk.chat.create(system="Be kind.")
    list(desk.chat.send(conversation, "One"))
    first = desk.engine.requests[0].token_ids + (conversation.turns[-1].token_ids or ())
    list(desk.chat.send(conversation, "Two"))
    second = desk.engine.requests[1].token_ids
    assert second[: len(first)] == first
    assert desk.seen(conversation) == (
        f"<|system|>Be kind.<|end|><|user|>One<|end|><|assistant|>{REPLY}<|end|>"
        f"<|user|>Two<|end|><|assistant|>{REPLY}<|end|>"
    )


def test_the_next_turn_continues_the_live_branch_and_close_lets_go_of_it(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "One"))
    live = conversation.engine_branch
    assert live is not None
    list(desk.chat.send(conversation, "Two"))
    assert desk.engine.requests[1].branch == live
    assert [request.owner for request in desk.engine.requests] == [conversation.session.id] * 2
    desk.chat.close(conversation)
    assert desk.engine.live == {}
    assert conversation.engine_branch is None


def test_everything_is_stored_before_it_is_shown(desk: Desk) -> None:
    conversation = desk.chat.create()
    so_far, num_deltas = "", 0
    other = SessionStore(desk.store.path)
    for event in desk.chat.send(conversation, "Hello"):
        if isinstance(event, TurnStarted):
            assert not desk.engine.requests
            assert [turn.text for turn in other.turns_to(event.answer.id)] == ["Hello", ""]
        if isinstance(event, TextDelta):
            so_far += event.text
            num_deltas += 1
            stored = other.turn(conversation.turns[-1].id)
            assert stored.text.startswith(so_far)
            assert desk.template.tokenizer.decode(stored.token_ids or ()).startswith(so_far)
    assert num_deltas >= 2
    other.close()


def test_a_new_process_goes_on_exactly_where_the_last_one_ended(desk: Desk, tmp_path: Path) -> None:
    conversation = desk.chat.create("demo")
    list(desk.chat.send(conversation, "One"))
    desk.chat.close(conversation)
    desk.store.close()
    later = Desk(tmp_path, desk.template)
    opened = later.chat.open("demo")
    assert opened.turns == conversation.turns
    assert opened.token_ids == conversation.token_ids
    list(later.chat.send(opened, "Two"))
    assert later.engine.requests[0].token_ids[: len(conversation.token_ids or ())] == conversation.token_ids
    assert opened.branch.name == "main"
    later.store.close()


def test_conversations_that_take_turns_never_mix(desk: Desk) -> None:
    """Trap 28: interleaved conversations see their own tokens only."""
    one, two = desk.chat.create("one"), desk.chat.create("two")
    for at in range(3):
        list(desk.chat.send(one, f"apple {at}"))
        list(desk.chat.send(two, f"pear {at}"))
    assert "pear" not in desk.seen(one)
    assert "apple" not in desk.seen(two)
    assert desk.seen(two).count("pear") == 3


def test_an_abandoned_answer_is_stopped_and_kept_as_interrupted(desk: Desk) -> None:
    desk.engine.step_s = 0.02
    conversation = desk.chat.create()
    with closing(desk.chat.send(conversation, "Hello")) as events:
        text = ""
        for event in events:
            text += event.text if isinstance(event, TextDelta) else ""
            if text:
                break
    assert desk.engine.handles[0].cancelled.is_set()
    kept = desk.store.turns_to(conversation.branch.leaf_id)[-1]
    assert kept.finish is Finish.INTERRUPTED
    assert kept.text.startswith(text)
    assert desk.engine.live == {}
    assert not conversation.is_busy
    assert conversation.turns[-1] == kept
    assert shown(list(desk.chat.send(conversation, "Go on"))) == REPLY


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, BrokenPipeError, SystemExit])
def test_an_answer_is_kept_whatever_ends_its_reader(desk: Desk, interrupt: type[BaseException]) -> None:
    desk.engine.step_s = 0.02
    conversation = desk.chat.create()

    def read() -> None:
        with closing(desk.chat.send(conversation, "Hello")) as events:
            for event in events:
                if isinstance(event, TextDelta):
                    raise interrupt

    with pytest.raises(interrupt):
        read()
    kept = desk.store.turns_to(conversation.branch.leaf_id)[-1]
    assert kept.finish is Finish.INTERRUPTED
    assert kept.text
    assert not conversation.is_busy


class InterruptingHandle(ScriptedHandle):
    """Sends an interrupt to the main thread after some steps, as Ctrl-C does, while that thread waits."""

    num_steps = 0

    def take_events(self, timeout_s: float) -> tuple[Event, ...]:
        events = super().take_events(timeout_s)
        self.num_steps += 1
        if self.num_steps == 4:
            pthread_kill(main_thread().ident or 0, SIGINT)
            sleep(0.1)
        return events


def test_an_interrupt_while_waiting_for_the_engine_keeps_what_was_sampled(desk: Desk) -> None:
    desk.engine.handle_class = InterruptingHandle
    desk.engine.step_s = 0.02
    conversation = desk.chat.create()
    with pytest.raises(KeyboardInterrupt):
        list(desk.chat.send(conversation, "Hello"))
    kept = desk.store.turns_to(conversation.branch.leaf_id)[-1]
    assert kept.finish is Finish.INTERRUPTED
    assert len(kept.token_ids or ()) >= 4


def test_sampled_tokens_are_stored_though_nobody_reads(desk: Desk) -> None:
    conversation = desk.chat.create()
    with closing(desk.chat.send(conversation, "Hello")) as events:
        for event in events:
            if isinstance(event, TextDelta):
                break
        wait_until(lambda: desk.store.turn(conversation.turns[-1].id).text == REPLY)
    # The engine had ended the answer, so it is complete, seen or not.
    assert desk.store.turns_to(conversation.branch.leaf_id)[-1].finish is Finish.COMPLETE


def test_stop_from_another_thread_ends_the_answer_as_interrupted(desk: Desk) -> None:
    desk.engine.step_s = 0.02
    conversation = desk.chat.create()
    events: list[ChatEvent] = []
    for event in desk.chat.send(conversation, "Hello"):
        events.append(event)
        if isinstance(event, TextDelta) and shown(events):
            stopper = Thread(target=desk.chat.stop, args=(conversation,))
            stopper.start()
            stopper.join()
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert (finished.answer.finish, finished.error) == (Finish.INTERRUPTED, None)
    assert shown(events) == finished.answer.text
    assert finished.answer.text != REPLY
    live = conversation.engine_branch
    list(desk.chat.send(conversation, "Again"))
    assert desk.engine.requests[-1].branch == live


def test_stop_before_the_engine_has_the_request_never_starts_it(desk: Desk) -> None:
    conversation = desk.chat.create()
    events = []
    for event in desk.chat.send(conversation, "Hello"):
        events.append(event)
        if isinstance(event, TurnStarted):
            desk.chat.stop(conversation)
    assert not desk.engine.requests
    assert events[-1].answer.finish is Finish.INTERRUPTED
    assert shown(list(desk.chat.send(conversation, "Again"))) == REPLY


def test_closing_a_conversation_that_is_being_answered_stops_it_and_leaves_no_branch(desk: Desk) -> None:
    desk.engine.step_s = 0.02
    conversation = desk.chat.create()
    for event in desk.chat.send(conversation, "Hello"):
        if isinstance(event, TextDelta):
            desk.chat.close(conversation)
    assert desk.engine.live == {}
    assert conversation.turns[-1].finish is Finish.INTERRUPTED


def test_a_second_message_waits_for_its_turn(desk: Desk) -> None:
    conversation = desk.chat.create()
    first = desk.chat.send(conversation, "Hello")
    next(first)
    assert conversation.is_busy
    with pytest.raises(UsageError, match="still being answered"):
        next(desk.chat.send(conversation, "And?"))
    list(first)
    assert not conversation.is_busy


def test_an_answer_cut_by_its_length_is_continued_token_by_token(desk: Desk) -> None:
    conversation = desk.chat.create()
    full = desk.script(())
    list(desk.chat.send(conversation, "Hello", SamplingParams(max_tokens=4)))
    cut = conversation.turns[-1]
    assert (cut.finish, len(cut.token_ids or ())) == (Finish.LENGTH, 4)
    before = conversation.token_ids
    desk.script = lambda prompt: full[4:]
    desk.engine._script = desk.script
    events = list(desk.chat.continue_answer(conversation))
    assert desk.engine.requests[1].token_ids == before
    grown = conversation.turns[-1]
    assert (grown.id, grown.finish, grown.text) == (cut.id, Finish.COMPLETE, REPLY)
    assert grown.token_ids == tuple(full)
    assert cut.text + shown(events) == REPLY
    with pytest.raises(UsageError, match="no answer to continue"):
        list(desk.chat.continue_answer(conversation))


def test_a_character_that_was_cut_in_half_is_whole_after_the_continuation(desk: Desk) -> None:
    desk.reply = "a😀b"
    full = desk.script(())
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "Hello", SamplingParams(max_tokens=3)))
    assert conversation.turns[-1].text == "a"
    desk.engine._script = lambda prompt: full[3:]
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text == "a😀b"


def test_a_refused_continuation_leaves_the_answer_as_it_was(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "Hello", SamplingParams(max_tokens=4)))
    cut = conversation.turns[-1]
    desk.engine._max_context = 1
    with pytest.raises(ContextOverflow):
        list(desk.chat.continue_answer(conversation))
    assert desk.store.turn(cut.id) == cut
    assert conversation.turns[-1] == cut


def test_retry_answers_again_beside_the_first_answer(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "Hello"))
    first = conversation.turns
    desk.reply = "Another answer."
    list(desk.chat.retry(conversation))
    assert conversation.branch.name == "main-2"
    assert conversation.turns[0] == first[0]
    assert conversation.turns[1].text == "Another answer."
    assert desk.engine.requests[1].token_ids == first[0].token_ids
    assert desk.chat.open(conversation.session.id, "main").turns == first
    assert desk.chat.open(conversation.session.id).turns == conversation.turns


def test_edit_asks_anew_in_place_of_an_earlier_question(desk: Desk) -> None:
    conversation = desk.chat.create(system="Be kind.")
    for text in ("One", "Two", "Three"):
        list(desk.chat.send(conversation, text))
    path = conversation.turns
    list(desk.chat.edit(conversation, path[2].id, "Zwei"))
    assert [turn.text for turn in conversation.turns[::2]] == ["One", "Zwei"]
    assert conversation.turns[:2] == path[:2]
    list(desk.chat.edit(conversation, path[0].id, "Eins"))
    assert conversation.turns[0].parent_id is None
    assert desk.seen(conversation).startswith("<|system|>Be kind.<|end|><|user|>Eins<|end|>")
    assert {branch.name for branch in desk.store.branches(conversation.session.id)} == {
        "main",
        "main-2",
        "main-3",
    }
    for at in (path[1].id, path[4].id):
        with pytest.raises(UsageError, match="can be edited"):
            list(desk.chat.edit(conversation, at, "x"))


def test_a_fork_shares_the_past_and_the_live_branch(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "One"))
    fork = desk.chat.fork(conversation, name="by boat")
    assert fork.turns == conversation.turns
    assert fork.branch.name == "by boat"
    assert fork.engine_branch not in (None, conversation.engine_branch)
    list(desk.chat.send(fork, "boat"))
    list(desk.chat.send(conversation, "train"))
    assert "train" not in desk.seen(fork)
    assert "boat" not in desk.seen(conversation)
    assert fork.turns[:2] == conversation.turns[:2]
    with pytest.raises(UsageError, match="by boat"):
        desk.chat.fork(conversation, name="by boat")


def test_a_fork_at_an_earlier_message_can_be_answered_or_asked_on(desk: Desk) -> None:
    conversation = desk.chat.create()
    for text in ("One", "Two"):
        list(desk.chat.send(conversation, text))
    at_answer = desk.chat.fork(conversation, conversation.turns[1].id)
    assert at_answer.engine_branch is None
    assert at_answer.turns == conversation.turns[:2]
    at_question = desk.chat.fork(conversation, conversation.turns[2].id)
    list(desk.chat.retry(at_question))
    assert len(at_question.turns) == 4
    assert at_question.turns[:3] == conversation.turns[:3]
    again = desk.chat.fork(conversation, conversation.turns[2].id)
    list(desk.chat.send(again, "Three"))
    assert desk.seen(again).endswith(
        f"<|user|>Two<|end|><|assistant|><|end|><|user|>Three<|end|><|assistant|>{REPLY}<|end|>"
    )


def test_a_question_too_long_for_the_model_is_given_back(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "One"))
    before = (conversation.turns, conversation.branch.leaf_id, desk.store.all_turns(conversation.session.id))
    desk.engine._max_context = 60
    with pytest.raises(ContextOverflow):
        list(desk.chat.send(conversation, "word " * 200))
    assert not conversation.is_busy
    assert (
        conversation.turns,
        conversation.branch.leaf_id,
        desk.store.all_turns(conversation.session.id),
    ) == before
    with pytest.raises(ContextOverflow):
        list(desk.chat.edit(conversation, conversation.turns[0].id, "word " * 200))
    assert conversation.turns == before[0]
    assert [branch.name for branch in desk.store.branches(conversation.session.id)] == ["main"]
    assert shown(list(desk.chat.send(conversation, "ok"))) == REPLY


def test_an_engine_that_dies_ends_the_turn_with_what_there_was(desk: Desk) -> None:
    desk.engine.dies_after = 5
    conversation = desk.chat.create()
    events = list(desk.chat.send(conversation, "Hello"))
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert finished.answer.finish is Finish.ERROR
    assert "restart" in (finished.error or "")
    assert shown(events) == finished.answer.text
    assert len(finished.answer.token_ids or ()) == 5
    assert conversation.engine_branch is None
    desk.engine.dies_after = None
    full = desk.script(())
    desk.engine._script = lambda prompt: full[5:]
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text == REPLY


@pytest.mark.parametrize("error", [EngineFailed("dead"), ModelUnreadable("cannot be read")])
def test_a_question_survives_a_model_that_does_not_load(desk: Desk, error: Exception) -> None:
    desk.engine.fails = error
    conversation = desk.chat.create()
    if isinstance(error, EngineFailed):
        assert list(desk.chat.send(conversation, "Hello"))[-1].error == "dead"
    else:
        with pytest.raises(ModelUnreadable):
            list(desk.chat.send(conversation, "Hello"))
    asked, answer = desk.chat.open(conversation.session.id).turns
    assert (asked.text, answer.finish, answer.text) == ("Hello", Finish.ERROR, "")
    desk.engine.fails = None
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text == REPLY


def test_a_full_disk_stops_the_answer_and_everything_shown_is_stored(desk: Desk) -> None:
    desk.reply = "word " * 20_000
    desk.engine.step_tokens = 2_000
    conversation = desk.chat.create()
    with desk.store._database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 12}")
    text = []

    def read() -> None:
        events = desk.chat.send(conversation, "Hello", SamplingParams(max_tokens=None))
        text.extend(event.text for event in events if isinstance(event, TextDelta))

    with pytest.raises(StorageError, match="free some space"):
        read()
    shown_text = "".join(text)
    assert shown_text
    assert desk.engine.handles[0].cancelled.is_set()
    assert not conversation.is_busy
    (_, kept) = desk.chat.open(conversation.session.id).turns
    assert kept.text.startswith(shown_text)
    assert kept.finish in (Finish.INTERRUPTED, Finish.ERROR)
    with desk.store._database.read() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    desk.engine._script = lambda prompt: []
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text.startswith(shown_text)


def test_a_session_deleted_under_an_answer_ends_it_with_a_message(desk: Desk) -> None:
    conversation = desk.chat.create()

    def read() -> None:
        for event in desk.chat.send(conversation, "Hello"):
            if isinstance(event, TextDelta):
                desk.store.delete_session(conversation.session.id)

    with pytest.raises(SessionNotFound, match="deleted"):
        read()
    assert desk.engine.live == {}


def test_a_live_branch_that_the_engine_has_lost_costs_nothing_but_time(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "One"))
    desk.engine.live.clear()
    assert shown(list(desk.chat.send(conversation, "Two"))) == REPLY
    assert [request.branch is None for request in desk.engine.requests] == [True, False, True]
    assert conversation.engine_branch in desk.engine.live


def test_delete_removes_the_session_and_lets_go_of_its_branch(desk: Desk) -> None:
    conversation = desk.chat.create("demo")
    list(desk.chat.send(conversation, "Hello"))
    desk.chat.delete(conversation)
    assert desk.engine.live == {}
    with pytest.raises(SessionNotFound):
        desk.chat.open("demo")


def test_the_end_of_turn_of_the_template_ends_an_answer_that_the_engine_would_go_on_with(desk: Desk) -> None:
    end = min(desk.template.end_ids)
    desk.engine._script = lambda prompt: [*desk.template.tokenizer.encode("Yes."), end, 50, 51, 52]
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "Hello"))
    assert desk.engine.requests[0].sampling.stop_token_ids == (end,)
    assert (conversation.turns[-1].text, (conversation.turns[-1].token_ids or ())[-1]) == ("Yes.", end)


def test_another_tokenizer_starts_over_from_the_texts_and_is_exact_from_there(
    desk: Desk, tmp_path: Path
) -> None:
    conversation = desk.chat.create("demo", "Be kind.")
    list(desk.chat.send(conversation, "One"))
    other = ChatTemplate.from_dir(write_model(tmp_path / "other", CHATML))
    second = Desk(tmp_path, other)
    opened = second.chat.open("demo")
    with pytest.raises(UsageError, match="no answer to continue"):
        list(second.chat.continue_answer(opened))
    list(second.chat.send(opened, "Two"))
    assert [turn.starts_over for turn in opened.turns] == [False, False, True, False]
    assert opened.turns[:2] == conversation.turns
    assert second.seen(opened) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nOne<|im_end|>\n"
        f"<|im_start|>assistant\n{REPLY}<|im_end|>\n<|im_start|>user\nTwo<|im_end|>\n<|im_start|>assistant\n"
        f"{REPLY}<|im_end|>"
    )
    before = opened.token_ids or ()
    list(second.chat.send(opened, "Three"))
    assert second.engine.requests[-1].token_ids[: len(before)] == before
    back = desk.chat.open("demo")
    list(desk.chat.retry(back))
    assert back.turns[-2].starts_over
    assert back.turns[-2].text == "Three"
    second.store.close()


def test_a_damaged_turn_costs_its_ids_and_not_the_conversation(desk: Desk) -> None:
    conversation = desk.chat.create("demo")
    list(desk.chat.send(conversation, "One"))
    with desk.store._database.write() as connection:
        connection.execute("UPDATE turns SET token_ids = x'00' WHERE role = 'assistant'")
    opened = desk.chat.open("demo")
    assert [turn.damaged for turn in opened.turns] == [False, True]
    list(desk.chat.send(opened, "Two"))
    assert opened.turns[2].starts_over
    assert REPLY in desk.seen(opened)


def test_reasoning_is_shown_and_stored_apart_and_the_rewrite_is_told(tmp_path: Path) -> None:
    thinking = ChatTemplate.from_dir(write_model(tmp_path / "model", QWEN_THINKING))
    desk = Desk(tmp_path, thinking, "<think>\nHello you\n</think>\n\nThe answer is no.")
    conversation = desk.chat.create()
    events = list(desk.chat.send(conversation, "One"))
    answer = conversation.turns[-1]
    assert (answer.reasoning, answer.text) == ("Hello you\n", "The answer is no.")
    assert shown(events) == answer.text
    assert [notice for notice in desk.chat.notices(conversation) if "rewrite the past" in notice]
    list(desk.chat.send(conversation, "Two"))
    assert "<think>\nHello you\n</think>" in desk.seen(conversation)
    desk.store.close()


def test_a_model_without_template_stops_at_its_stop_string(tmp_path: Path) -> None:
    plain = ChatTemplate.from_dir(write_model(tmp_path / "model", None))
    desk = Desk(tmp_path, plain)
    desk.engine._script = lambda prompt: plain.tokenizer.encode(" Hello there\nUser: and I ramble on")
    conversation = desk.chat.create()
    events = list(desk.chat.send(conversation, "Hi"))
    assert shown(events) == "Hello there"
    assert conversation.turns[-1].finish is Finish.COMPLETE
    list(desk.chat.send(conversation, "And?"))
    text = plain.tokenizer.decode(desk.engine.requests[1].token_ids)
    assert text == "User: Hi\nAssistant: Hello there\nUser: And?\nAssistant:"
    desk.store.close()


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_message_is_refused(desk: Desk, text: str) -> None:
    conversation = desk.chat.create()
    with pytest.raises(UsageError, match="empty"):
        list(desk.chat.send(conversation, text))
    assert conversation.turns == ()
    assert not conversation.is_busy


@pytest.mark.parametrize("verb", [Chat.retry, Chat.continue_answer])
def test_an_empty_conversation_has_nothing_to_answer(desk: Desk, verb: Callable) -> None:
    with pytest.raises(UsageError, match="send a message"):
        list(verb(desk.chat, desk.chat.create()))


def test_two_open_conversations_on_one_branch_become_two_branches(desk: Desk, tmp_path: Path) -> None:
    conversation = desk.chat.create("demo")
    list(desk.chat.send(conversation, "One"))
    other = desk.chat.open("demo")
    list(desk.chat.send(conversation, "left"))
    list(desk.chat.send(other, "right"))
    assert (conversation.branch.name, other.branch.name) == ("main", "main-2")
    assert [turn.text for turn in conversation.turns[::2]] == ["One", "left"]
    assert [turn.text for turn in other.turns[::2]] == ["One", "right"]


def test_an_answer_that_is_being_written_elsewhere_is_not_built_upon(desk: Desk) -> None:
    conversation = desk.chat.create("demo")
    list(desk.chat.send(conversation, "One"))
    answering = desk.chat.send(conversation, "Two")
    next(answering)
    other = desk.chat.open("demo")
    assert [turn.text for turn in other.turns] == ["One", REPLY]
    list(desk.chat.send(other, "Beside"))
    assert other.branch.name == "main-2"
    list(answering)
    assert [turn.text for turn in desk.chat.open("demo", "main").turns] == ["One", REPLY, "Two", REPLY]


def test_roles_alternate_on_every_path(desk: Desk) -> None:
    conversation = desk.chat.create()
    for text in ("One", "Two"):
        list(desk.chat.send(conversation, text))
    assert [turn.role for turn in conversation.turns] == [Role.USER, Role.ASSISTANT] * 2
    assert replace(conversation.branch, updated_at=0) == replace(
        desk.store.branch(conversation.session.id, "main"), updated_at=0
    )
