"""Other ways for a conversation, on the starter model: each costs what it says, and nothing said is lost."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import SampleDelta, SamplesFinished, TurnFinished
from kvchat.chat.service import Chat
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.models.locate import locate_model
from kvchat.engine.worker import Worker
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Finish, Turn

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    place = locate_model("starter")
    with closing(Worker("starter", place.path, EngineConfig(dtype="float32", device="cpu"))) as worker:
        worker.start()
        yield worker


@pytest.fixture
def chat(tmp_path: Path, worker: Worker) -> Iterator[Chat]:
    with closing(SessionStore(tmp_path / "sessions.db")) as store:
        template = ChatTemplate.from_dir(locate_model("starter").path)
        sampling = SamplingParams(max_tokens=24)
        yield Chat(store=store, template=template, engine=worker, model="starter", sampling=sampling)


@pytest.fixture
def talk(chat: Chat) -> Conversation:
    conversation = chat.create(system="You are brief. " * 12)
    ask(chat, conversation, "Hello! My name is Ana.")
    ask(chat, conversation, "What is a KV cache?")
    return conversation


def ask(chat: Chat, conversation: Conversation, text: str) -> Turn:
    *_, finished = chat.send(conversation, text)
    assert isinstance(finished, TurnFinished)
    return finished.answer


def samples(chat: Chat, conversation: Conversation, num: int) -> tuple[Turn, ...]:
    events = list(chat.variants.compare(conversation, num, chat.sampling))
    assert isinstance(events[-1], SamplesFinished)
    shown = [
        "".join(event.text for event in events if isinstance(event, SampleDelta) and event.sample == number)
        for number in range(num)
    ]
    answers = events[-1].answers
    assert all(answer.text.startswith(text) for answer, text in zip(answers, shown, strict=True))
    return answers


def test_several_answers_are_decoded_from_one_prompt_and_one_is_taken(chat: Chat, talk: Conversation) -> None:
    before, num_branches = talk.turns, len(chat.store.branches(talk.session.id))
    sampling = SamplingParams(max_tokens=24, temperature=9.0)
    hot = Chat(
        store=chat.store, template=chat.template, engine=chat.engine, model="starter", sampling=sampling
    )
    answers = samples(hot, talk, 3)
    assert len({answer.text for answer in answers}) == 3
    assert {answer.parent_id for answer in answers} == {before[-2].id}
    assert all(answer.finish in (Finish.COMPLETE, Finish.LENGTH) for answer in answers)
    assert answers[0].usage.prompt_tokens == answers[0].usage.cached_tokens + answers[0].usage.computed_tokens
    assert talk.turns == before
    chat.variants.take(talk, answers[1])
    assert talk.turns == (*before[:-1], answers[1])
    assert len(chat.store.branches(talk.session.id)) == num_branches + 1
    assert {turn.id for turn in chat.store.all_turns(talk.session.id)} >= {turn.id for turn in answers}
    ask(chat, talk, "How are you?")
    assert chat.open(talk.session.id).turns == talk.turns


def test_candidates_that_nobody_reads_to_the_end_are_kept_as_interrupted(
    chat: Chat, talk: Conversation
) -> None:
    events = chat.variants.compare(talk, 2, chat.sampling)
    next(events)
    events.close()
    kept = [turn for turn in chat.store.all_turns(talk.session.id) if turn.id not in ids(talk)]
    assert [turn.finish for turn in kept] == [Finish.INTERRUPTED] * 2
    ask(chat, talk, "How are you?")


def test_an_answer_that_was_not_taken_can_be_opened_again(chat: Chat, talk: Conversation) -> None:
    taken, other = samples(chat, talk, 2)
    chat.variants.take(talk, taken)
    opened = chat.open_at(other.id)
    assert opened.turns[-1] == other


def test_the_most_probable_alternative_is_what_a_greedy_answer_said(chat: Chat, talk: Conversation) -> None:
    answer = talk.turns[-1]
    assert answer.token_ids is not None
    texts = chat.variants.tokens.texts(answer)
    for at in (0, 3, len(answer.token_ids) - 1):
        first, *others = chat.variants.tokens.alternatives(talk, answer.id, at)
        assert first.token_id == answer.token_ids[at]
        assert first.text == texts[at]
        assert all(0 <= other.probability <= first.probability <= 1 for other in others)


def test_going_on_from_another_token_keeps_what_came_before_and_the_old_answer(
    chat: Chat, talk: Conversation
) -> None:
    before = talk.turns
    answer = before[-1]
    assert answer.token_ids is not None
    other = chat.variants.tokens.alternatives(talk, answer.id, 2)[1]
    cost = chat.variants.tokens.cost(talk, answer.id, 2)
    *_, finished = chat.variants.tokens.go_on(talk, answer.id, 2, other.token_id, chat.sampling)
    assert isinstance(finished, TurnFinished)
    ids_now = finished.answer.token_ids
    assert ids_now is not None
    assert ids_now[:3] == (*answer.token_ids[:2], other.token_id)
    assert finished.answer.text.startswith(chat.template.tokenizer.decode(ids_now[:3]))
    assert finished.answer.usage.computed_tokens == cost.computed_tokens
    assert chat.open(talk.session.id).turns == (*before[:-1], finished.answer)
    assert chat.store.turns_to(before[-1].id) == before


def test_an_answer_that_is_ended_by_the_choice_needs_no_model(chat: Chat, talk: Conversation) -> None:
    answer = talk.turns[-1]
    end = min(chat.template.end_ids)
    *_, finished = chat.variants.tokens.go_on(talk, answer.id, 2, end, chat.sampling)
    assert isinstance(finished, TurnFinished)
    assert finished.answer.finish is Finish.COMPLETE
    ask(chat, talk, "How are you?")


def test_an_aside_leaves_nothing_behind(chat: Chat, talk: Conversation) -> None:
    turns, branches = chat.store.all_turns(talk.session.id), chat.store.branches(talk.session.id)
    aside = chat.fork(talk, None, "aside")
    ask(chat, aside, "What is a block?")
    assert chat.variants.throw_away(aside, talk)
    assert chat.store.all_turns(talk.session.id) == turns
    assert [one.name for one in chat.store.branches(talk.session.id)] == [one.name for one in branches]
    assert ask(chat, talk, "How are you?").usage.cached_tokens > 0


def test_an_aside_on_which_a_branch_rests_stays(chat: Chat, talk: Conversation) -> None:
    aside = chat.fork(talk, None, "aside")
    ask(chat, aside, "What is a block?")
    chat.fork(aside, None, "kept")
    assert not chat.variants.throw_away(aside, talk)
    assert len(chat.open(talk.session.id, "kept").turns) == len(talk.turns) + 2


def test_what_is_read_ahead_is_not_computed_again_when_it_is_sent(chat: Chat, talk: Conversation) -> None:
    text = "Here is a list. " + "One block has many tokens. " * 20
    ahead = chat.variants.read_ahead(talk, "", text)
    ahead.run()
    ahead.hand_over(talk)
    answer = ask(chat, talk, f"{text}\n\nWhat is it about?")
    assert answer.usage.computed_tokens < 64 + 16 < ahead.num_tokens
    assert len(chat.store.all_turns(talk.session.id)) == 6


def test_tokens_that_are_read_ahead_count_once(chat: Chat, talk: Conversation, worker: Worker) -> None:
    def counted() -> tuple[int, int]:
        snapshot = worker.snapshot()
        assert snapshot is not None
        return snapshot.reused_tokens, snapshot.computed_tokens

    text = "Here is another list. " + "Each block has some tokens. " * 20
    before = counted()
    for more in ("", "One more file.\n"):
        ahead = chat.variants.read_ahead(talk, "", text + more)
        ahead.run()
        ahead.stop()
    ahead.hand_over(talk)
    usage = ask(chat, talk, f"{text}One more file.\n\nWhat is it about?").usage
    reused, computed = (after - then for after, then in zip(counted(), before, strict=True))
    assert reused + computed == usage.prompt_tokens
    assert computed > ahead.num_tokens / 2, "read ahead, they were computed all the same"


def test_reading_ahead_works_before_there_is_a_session(chat: Chat) -> None:
    text = "Here is a list. " + "One block has many tokens. " * 20
    ahead = chat.variants.read_ahead(None, "Be kind.", text)
    ahead.run()
    conversation = chat.create(system="Be kind.")
    ahead.hand_over(conversation)
    assert ask(chat, conversation, f"{text} Now what?").usage.computed_tokens < 80


def ids(conversation: Conversation) -> set[str]:
    return {turn.id for turn in conversation.turns}
