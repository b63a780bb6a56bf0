"""An answer on approximate KV says so, wherever it is shown, and never becomes exact again."""

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import TurnFinished
from kvchat.cli.commands.ask.answer_writers import describe_cost, done_event
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.tree import Turn
from kvchat.text.answer_footer import footer_parts
from tests.chat.desk import Desk

pytestmark = pytest.mark.pure


def ask(desk: Desk, conversation: Conversation, text: str) -> Turn:
    *_, finished = desk.chat.send(conversation, text)
    assert isinstance(finished, TurnFinished)
    return finished.answer


def listed(desk: Desk) -> list[bool]:
    return [summary.is_exact for summary in desk.store.list_sessions()]


def test_an_answer_says_on_which_kv_it_was_sampled(desk: Desk) -> None:
    conversation = desk.chat.create()
    exact = ask(desk, conversation, "One")
    assert (footer_parts(exact)[-1], listed(desk)) == ("exact", [True])
    desk.engine.is_exact = False
    about = ask(desk, conversation, "Two")
    assert (footer_parts(about)[-1], listed(desk)) == ("approximate", [False])
    assert done_event(about, conversation.session)["exact"] is False
    assert "approximate" in describe_cost(about, conversation.session)
    desk.engine.is_exact = True
    assert ask(desk, conversation, "Three").exact
    assert listed(desk) == [False]
    assert [turn.exact for turn in desk.store.turns_to(conversation.branch.leaf_id)] == [
        *(True, True),
        *(True, False),
        *(True, True),
    ]


@pytest.mark.parametrize("first", [True, False])
def test_an_answer_of_which_a_part_was_approximate_stays_so(desk: Desk, first: bool) -> None:
    desk.engine.is_exact = first
    conversation = desk.chat.create()
    list(desk.chat.send(conversation, "One", SamplingParams(max_tokens=3)))
    assert conversation.turns[-1].exact is first
    desk.engine.is_exact = not first
    list(desk.chat.continue_answer(conversation))
    assert not conversation.turns[-1].exact
