"""What an edit costs is known before it is done."""

import pytest

from kvchat.errors import UsageError
from tests.chat.desk import Desk

pytestmark = pytest.mark.pure


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
