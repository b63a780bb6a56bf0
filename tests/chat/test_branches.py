"""Continue, retry, edit and fork: what was said stays as it was."""

from contextlib import closing

import pytest

from kvchat.chat.candidates.service import DIFFERING_TEMPERATURE, differing
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import ContextOverflow, UsageError
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, Finish, nested
from tests.chat.desk import REPLY, Desk, shown
from tests.session.turns import exchange

pytestmark = pytest.mark.pure


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
    desk.engine.max_context = 1
    with pytest.raises(ContextOverflow):
        list(desk.chat.continue_answer(conversation))
    assert desk.store.turn(cut.id) == cut
    assert conversation.turns[-1] == cut


def test_retry_answers_again_beside_the_first_answer(desk: Desk) -> None:
    conversation = desk.talk("Hello")
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
    conversation = desk.talk("One", "Two", "Three", system="Be kind.")
    path = conversation.turns
    list(desk.chat.edit(conversation, path[2].id, "Zwei"))
    assert [turn.text for turn in conversation.turns[::2]] == ["One", "Zwei"]
    assert conversation.turns[:2] == path[:2]
    list(desk.chat.edit(conversation, path[0].id, "Eins"))
    assert conversation.turns[0].parent_id is None
    assert desk.seen(conversation).startswith("<|system|>Be kind.<|end|><|user|>Eins<|end|>")
    assert {branch.name for branch in desk.store.branches(conversation.session.id)} == {
        "main",
        "zwei",
        "eins",
    }
    for at in (path[1].id, path[4].id):
        with pytest.raises(UsageError, match="can be edited"):
            list(desk.chat.edit(conversation, at, "x"))


def test_a_fork_shares_the_past_and_the_live_branch(desk: Desk) -> None:
    conversation = desk.talk("One")
    fork = desk.chat.fork(conversation, name="by boat")
    assert fork.turns == conversation.turns
    assert fork.branch.name == "by boat"
    assert fork.engine_sequence not in (None, conversation.engine_sequence)
    list(desk.chat.send(fork, "boat"))
    list(desk.chat.send(conversation, "train"))
    assert "train" not in desk.seen(fork)
    assert "boat" not in desk.seen(conversation)
    assert fork.turns[:2] == conversation.turns[:2]
    with pytest.raises(UsageError, match="by boat"):
        desk.chat.fork(conversation, name="by boat")


def test_a_fork_at_an_earlier_message_can_be_answered_or_asked_on(desk: Desk) -> None:
    conversation = desk.talk("One", "Two")
    at_answer = desk.chat.fork(conversation, conversation.turns[1].id)
    assert at_answer.engine_sequence is None
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


def test_a_fork_is_called_by_the_first_message_on_it_once_and_a_persons_own_name_stays(desk: Desk) -> None:
    conversation = desk.talk("One", title="demo")
    forks = [desk.chat.fork(conversation) for _ in range(3)]
    own = desk.chat.fork(conversation, name="by boat")
    assert [fork.branch.name for fork in forks] == ["main-2", "main-3", "main-4"]
    for fork, text in zip((*forks, own), ("Is it far? It's by rail", "is it far", "?!", "Two"), strict=True):
        list(desk.chat.send(fork, text))
        list(desk.chat.send(fork, "And then?"))
    names = [fork.branch.name for fork in (*forks, own)]
    assert names == ["is-it-far-its-by-rail", "is-it-far", "and-then", "by boat"]
    again = desk.chat.fork(forks[1])
    list(desk.chat.send(again, "is it far"))
    assert again.branch.name == "is-it-far-2"
    assert {branch.name for branch in desk.store.branches(conversation.session.id)} == {
        *(MAIN, again.branch.name),
        *names,
    }
    assert desk.chat.open("demo").branch == again.branch


def test_a_numbered_branch_that_another_store_goes_on_with_keeps_its_name(desk: Desk) -> None:
    """A script that has read `main-2` finds it there also after the next message."""
    fork = desk.chat.fork(desk.talk("One", title="demo"))
    with closing(SessionStore(desk.store.path)) as other:
        branch = other.branch(fork.session.id, fork.branch.name)
        assert exchange(other, branch, "Two", "2").name == "main-2"


def test_an_answer_that_is_being_written_elsewhere_is_not_built_upon(desk: Desk) -> None:
    conversation = desk.talk("One", title="demo")
    answering = desk.chat.send(conversation, "Two")
    next(answering)
    other = desk.chat.open("demo")
    assert [turn.text for turn in other.turns] == ["One", REPLY]
    list(desk.chat.send(other, "Beside"))
    assert other.branch.name == "main-2"
    list(answering)
    assert [turn.text for turn in desk.chat.open("demo", "main").turns] == ["One", REPLY, "Two", REPLY]


def test_branches_stand_behind_the_one_that_they_leave_with_all_their_tokens(desk: Desk) -> None:
    conversation = desk.talk("One", "Two", title="demo")
    boat = desk.chat.fork(conversation, conversation.turns[1].id, "boat")
    list(desk.chat.send(boat, "By boat"))
    list(desk.chat.send(night := desk.chat.fork(boat, name="night"), "At night"))
    list(desk.chat.send(day := desk.chat.fork(boat, name="day"), "By day"))
    list(desk.chat.send(bus := desk.chat.fork(conversation, name="bus"), "By bus"))
    list(desk.chat.send(empty := desk.chat.fork(bus, name="empty"), "Now"))
    desk.chat.fork(bus, name="again")
    session_id = conversation.session.id
    found = list(nested(desk.store.branches(session_id), desk.store.outline(session_id)))
    assert [(branch.name, depth) for branch, depth, _ in found] == [
        ("bus", 0),
        ("again", 1),
        ("empty", 1),
        ("boat", 0),
        ("day", 1),
        ("night", 1),
        ("main", 0),
    ]
    for branch, _, num_tokens in found:
        if branch.name == "again":
            branch = bus.branch
        known = {one.branch.name: one for one in (conversation, boat, night, day, bus, empty)}[branch.name]
        assert num_tokens == sum(len(turn.token_ids or ()) for turn in known.turns)


def test_another_answer_is_sampled_where_the_settings_would_give_the_same_again(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    list(desk.chat.retry(conversation))
    exactly_so = SamplingParams(max_tokens=4)
    list(desk.chat.retry(conversation, exactly_so))
    first, again, as_asked = (request.sampling for request in desk.engine.requests)
    assert (first.temperature, again.temperature, as_asked.temperature) == (0.0, DIFFERING_TEMPERATURE, 0.0)
    assert desk.chat.retry_temperature == DIFFERING_TEMPERATURE


def test_the_first_answer_to_a_question_is_sampled_as_the_settings_say(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    unanswered = desk.chat.fork(conversation, conversation.turns[0].id)
    list(desk.chat.retry(unanswered))
    assert desk.engine.requests[-1].sampling.temperature == 0.0


def test_a_seed_gives_the_same_answer_and_a_temperature_of_ones_own_stays() -> None:
    sampling = differing(SamplingParams(temperature=0.3, seed=7, beam_width=None))
    assert (sampling.temperature, sampling.seed, sampling.n) == (0.3, None, 1)


def test_answers_are_sampled_in_another_way_from_the_next_one_on(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    desk.chat.use_sampling(SamplingParams(temperature=0.3, max_tokens=9))
    list(desk.chat.send(conversation, "Hello again"))
    list(desk.chat.retry(conversation))
    first, second, again = (request.sampling for request in desk.engine.requests)
    assert (first.temperature, second.temperature, again.temperature) == (0.0, 0.3, 0.3)
    assert desk.chat.retry_temperature is None
