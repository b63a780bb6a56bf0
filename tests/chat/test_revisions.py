"""A conversation without its end, or without its middle, or changed: what is shared, what stays, the cost."""

from dataclasses import replace

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.chat.revision import checkpoints
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import UsageError
from kvchat.session.template.message_files import with_files
from kvchat.session.tree import Finish, Role
from tests.chat.desk import REPLY, Desk

pytestmark = pytest.mark.pure

ANSWERED = f"<|assistant|>{REPLY}<|end|>"


def paths(desk: Desk, conversation: Conversation) -> dict[str, list[str]]:
    """Return the questions on each branch."""
    return {
        branch.name: [turn.text for turn in desk.store.turns_to(branch.leaf_id) if turn.role is Role.USER]
        for branch in desk.store.branches(conversation.session.id)
    }


def test_undo_goes_on_before_the_last_exchange_and_the_branch_keeps_it(desk: Desk) -> None:
    conversation = desk.talk("One", "Two", "Three")
    before = conversation.turns
    desk.chat.revise(conversation, desk.chat.plan_undo(conversation))
    assert conversation.turns == before[:4]
    assert paths(desk, conversation) == {"main": ["One", "Two", "Three"], "main-2": ["One", "Two"]}
    assert desk.engine.live == {}
    list(desk.chat.send(conversation, "Drei"))
    assert paths(desk, conversation)["drei"] == ["One", "Two", "Drei"]
    assert desk.chat.open(conversation.session.id).turns == conversation.turns


def test_several_exchanges_are_taken_back_at_once_and_no_more_than_there_are(desk: Desk) -> None:
    conversation = desk.talk("One", "Two", "Three")
    plan = desk.chat.plan_undo(conversation, 2)
    assert [turn.text for turn in plan.dropped] == ["Two", REPLY, "Three", REPLY]
    for num in (0, 4):
        with pytest.raises(UsageError, match="3 messages of yours"):
            desk.chat.plan_undo(conversation, num)


def test_an_exchange_in_the_middle_is_left_out_and_what_followed_follows(desk: Desk) -> None:
    conversation = desk.talk("One", "Two", "Three", system="Be kind.")
    before = conversation.turns
    plan = desk.chat.plan_drop(conversation, before[2].id)
    assert (plan.dropped, plan.kept) == (before[2:4], before[:2])
    desk.chat.revise(conversation, plan)
    assert desk.seen(conversation) == (
        f"<|system|>Be kind.<|end|><|user|>One<|end|>{ANSWERED}<|user|>Three<|end|>{ANSWERED}"
    )
    assert paths(desk, conversation) == {"main": ["One", "Two", "Three"], "main-2": ["One", "Three"]}
    assert desk.chat.open(conversation.session.id, "main").turns == before
    assert desk.chat.open(conversation.session.id).turns == conversation.turns
    copied = conversation.turns[-1]
    assert (copied.text, copied.token_ids) == (before[-1].text, before[-1].token_ids)
    assert copied.usage.prompt_tokens == 0
    list(desk.chat.send(conversation, "Four"))
    assert desk.engine.requests[-1].sequence is None


def test_without_the_first_exchange_the_next_one_opens_the_conversation(desk: Desk) -> None:
    conversation = desk.talk("One", "Two", system="Be kind.")
    desk.chat.revise(conversation, desk.chat.plan_drop(conversation, conversation.turns[0].id))
    assert conversation.turns[0].parent_id is None
    assert desk.seen(conversation) == f"<|system|>Be kind.<|end|><|user|>Two<|end|>{ANSWERED}"


def test_an_answer_that_was_cut_off_is_closed_where_another_question_follows_it(desk: Desk) -> None:
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "One", SamplingParams(max_tokens=3)))
    cut = conversation.turns[-1]
    for text in ("Two", "Three"):
        list(desk.chat.send(conversation, text))
    desk.chat.revise(conversation, desk.chat.plan_drop(conversation, conversation.turns[2].id))
    assert cut.finish is Finish.LENGTH
    assert desk.seen(conversation) == (
        f"<|user|>One<|end|><|assistant|>{cut.text}<|end|><|user|>Three<|end|>{ANSWERED}"
    )


def test_what_cannot_be_left_out_is_told_and_nothing_changes(desk: Desk) -> None:
    conversation = desk.talk("One", "Two")
    answer = conversation.turns[1]
    with pytest.raises(UsageError, match="message of yours"):
        desk.chat.plan_drop(conversation, answer.id)
    plan = desk.chat.plan_undo(conversation)
    list(desk.chat.send(conversation, "Three"))
    with pytest.raises(UsageError, match="gone on since"):
        desk.chat.revise(conversation, plan)
    events = desk.chat.send(conversation, "Four")
    next(events)
    with pytest.raises(UsageError, match="still being answered"):
        desk.chat.revise(conversation, desk.chat.plan_undo(conversation))
    list(events)
    assert paths(desk, conversation) == {"main": ["One", "Two", "Three", "Four"]}


def test_others_may_go_on_behind_a_system_prompt_and_behind_the_files_of_a_message(desk: Desk) -> None:
    message = with_files([("notes.txt", "A long text. " * 20)], "What does it say?")
    conversation = desk.talk(message, "And?", system="Be brief. " * 20)
    session, turns = conversation.session, conversation.turns
    ids = turns[0].token_ids or ()
    behind_system, behind_file = (
        desk.template.tokenizer.decode(ids[:end], keep_control=True)
        for end in checkpoints(desk.template, session, (), turns[0].text)
    )
    assert behind_system.count("Be brief.") == 20
    assert "notes.txt" not in behind_system
    assert behind_file.count("A long text.") == 20
    assert "What" not in behind_file
    assert checkpoints(desk.template, session, turns[:2], turns[2].text) == ()


def test_the_cost_of_an_edit_is_that_of_its_prompt_and_nothing_is_changed_by_asking(desk: Desk) -> None:
    conversation = desk.talk("Hello", "What is a KV cache?", "My name is Ana.")
    turns, branches = conversation.turns, desk.store.branches(conversation.session.id)
    edited = turns[2]
    cost = desk.chat.edit_cost(conversation, edited.id, "What is a block?")
    assert (conversation.turns, desk.store.branches(conversation.session.id)) == (turns, branches)
    assert cost.left_turns == 4
    assert cost.left_tokens == sum(len(turn.token_ids or ()) for turn in turns[2:])
    list(desk.chat.edit(conversation, edited.id, "What is a block?"))
    prompt = desk.engine.requests[-1].token_ids
    assert cost.reused_tokens + cost.computed_tokens == len(prompt)
    num_before = sum(len(turn.token_ids or ()) for turn in turns[:2])
    assert num_before <= cost.reused_tokens < len(prompt)


def test_an_edit_that_cannot_be_done_has_no_cost(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    question, answer = conversation.turns
    with pytest.raises(UsageError, match="empty"):
        desk.chat.edit_cost(conversation, question.id, " ")
    with pytest.raises(UsageError, match="message of yours"):
        desk.chat.edit_cost(conversation, answer.id, "Hello?")


def test_several_answers_to_a_first_message_keep_the_same_places_as_one(desk: Desk) -> None:
    info = desk.engine.info()
    desk.engine.info = lambda: replace(info, keeps_states=True)  # type: ignore[method-assign]
    conversation = desk.talk("Hello", system="Be brief. " * 20)
    list(desk.chat.variants.compare(conversation, 2, SamplingParams()))
    first, second = (request.checkpoints for request in desk.engine.requests[-2:])
    assert first == second != ()


def test_what_is_read_ahead_keeps_the_same_places_as_the_message(desk: Desk) -> None:
    info, system = desk.engine.info(), "Be brief. " * 20
    desk.engine.info = lambda: replace(info, keeps_states=True)  # type: ignore[method-assign]
    desk.chat.variants.read_ahead(None, system, "Hello").run()
    desk.talk("Hello", system=system)
    ahead, sent = desk.engine.requests[-2:]
    assert ahead.checkpoints == sent.checkpoints != ()
