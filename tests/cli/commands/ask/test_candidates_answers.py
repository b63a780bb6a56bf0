"""`ask -n N`: several answers from one prompt, each a branch."""

import signal
from contextlib import closing
from time import sleep

import pytest

from kvchat.app.config import read_settings
from kvchat.app.open_store import open_store
from kvchat.chat.conversation import Conversation
from kvchat.chat.service import Chat
from kvchat.session.tree import Turn
from tests.cli.command_line import Run

pytestmark = pytest.mark.cpu


@pytest.fixture
def ask(default_model: None, run: Run) -> Run:
    return run.with_words("ask", "--max-tokens", "6")


def branches() -> list[list[str]]:
    """Return the texts on every branch of the session used last, the active branch first."""
    with closing(open_store(read_settings())) as store:
        session = store.list_sessions()[0].session
        found = sorted(store.branches(session.id), key=lambda branch: branch.name != session.active_branch)
        return [[turn.text for turn in store.turns_to(branch.leaf_id)] for branch in found]


def test_each_answer_is_a_branch_and_the_session_goes_on_with_the_first(ask: Run) -> None:
    done = ask.json("-n", "3", "--new", "demo", "hello")
    texts = [answer["text"] for answer in done["answers"]]
    assert len(texts) == 3
    assert len(set(texts)) > 1, "greedy answers would all be the same"
    assert done["text"] == texts[0]
    assert sorted(branches()) == sorted(["hello", text] for text in texts)
    assert branches()[0] == ["hello", texts[0]]
    assert len({answer["turn"] for answer in done["answers"]}) == 3
    ask.json("-s", "demo", "go on")
    assert branches()[0][:3] == ["hello", texts[0], "go on"]


def test_texts_stand_one_after_the_other_with_a_line_between(ask: Run) -> None:
    answers = ask.out("-n", "2", "-q", "hello").split("\n---\n\n")
    assert [answer.rstrip("\n") for answer in answers] == [path[1].rstrip("\n") for path in branches()]


def test_events_say_to_which_answer_they_belong(ask: Run) -> None:
    events = ask.lines("-n", "2", "--ndjson", "hello")
    done = events[-1]
    assert [event["event"] for event in events].count("done") == 1
    for number, answer in enumerate(done["answers"]):
        pieces = [event["text"] for event in events if event.get("sample") == number]
        assert "".join(pieces) == answer["text"]


def test_the_ends_of_all_answers_count(ask: Run) -> None:
    ask.out("-n", "2", "--fail-on-length", "hello", code=8)
    cut_off = branches()
    assert [path[0] for path in cut_off] == ["hello", "hello"]
    ask.out("-n", "2", "--edit", "1", "-c", "hello", code=2)
    ask.out("-n", "2", "-c", code=2)
    ask.out("-n", "9", "hello", code=2)
    assert branches() == cut_off


def test_a_question_that_is_refused_is_taken_back(ask: Run) -> None:
    ask.out("--new", "demo", "hello")
    before = branches()
    ask.out("-n", "2", "-s", "demo", "word " * 9000, code=6)
    assert branches() == before


def test_a_signal_between_the_question_and_its_answers_stops_them(
    ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pose = Chat.pose

    def pose_and_stop(chat: Chat, conversation: Conversation, text: str) -> Turn:
        question = pose(chat, conversation, text)
        signal.raise_signal(signal.SIGINT)
        while not conversation.is_stopping:
            sleep(0.001)
        return question

    monkeypatch.setattr(Chat, "pose", pose_and_stop)
    done = ask.json("-n", "2", "--max-tokens", "200", "hello", code=130)
    assert [answer["finish_reason"] for answer in done["answers"]] == ["cancelled", "cancelled"]


def test_one_seed_gives_the_same_answers_and_they_differ(ask: Run) -> None:
    first, again = (ask.json("-n", "3", "--seed", "5", "hello") for _ in range(2))
    assert [one["text"] for one in first["answers"]] == [one["text"] for one in again["answers"]]
    assert len({one["text"] for one in first["answers"]}) > 1


def test_a_temperature_that_was_not_asked_for_is_said(ask: Run, run: Run) -> None:
    words = ("ask", "--max-tokens", "2", "-n", "2")
    assert "drawn at temperature 0.8 instead of 0" in run(*words, "hello")[2]
    assert "drawn at" not in run(*words, "--temperature", "1", "hello")[2]
