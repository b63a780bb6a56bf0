"""What is said to be computed is computed by the starter's engine: edits, undos, exchanges left out."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvchat.app.composition import opened, start_worker
from kvchat.app.config import read_settings
from kvchat.chat.conversation import Conversation
from kvchat.chat.events import EditCost
from kvchat.chat.service import Chat
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.cache_miss import MissReason

pytestmark = pytest.mark.cpu

TALK = (
    "Hello! My name is Ana and I live in Oslo with two cats, a dog and a very old piano that nobody plays.",
    "What is a KV cache?",
    "What is a block?",
    "Why does a sliding layer need less memory?",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@contextmanager
def starter(home: Path) -> Iterator[Chat]:
    settings = read_settings({"paths.data_dir": home / "data", "paths.cache_dir": home / "cache"})
    with opened(settings, start_worker) as kvchat:
        yield kvchat.load(None, "starter")


def ask(chat: Chat, conversation: Conversation, text: str) -> None:
    with closing(chat.send(conversation, text, GREEDY)) as events:
        list(events)


def hold_to(cost: EditCost, conversation: Conversation, num_before: int) -> None:
    """Check what was said of a course of `num_before` tokens against what the next answer computed of it."""
    usage = conversation.turns[-1].usage
    assert cost.reused_tokens + cost.computed_tokens == num_before
    assert max(0, num_before - usage.cached_tokens) == cost.computed_tokens
    assert usage.computed_tokens == usage.prompt_tokens - usage.cached_tokens


def test_what_another_course_costs_is_what_is_then_computed_also_from_disk(tmp_path: Path) -> None:
    with starter(tmp_path) as chat:
        conversation = chat.create(title="demo")
        for text in TALK:
            ask(chat, conversation, text)
        said = conversation.turns

        edit = chat.edit_cost(conversation, said[2].id, "What is a fork?")
        list(chat.edit(conversation, said[2].id, "What is a fork?", GREEDY))
        usage = conversation.turns[-1].usage
        assert (usage.cached_tokens, usage.computed_tokens) == (edit.reused_tokens, edit.computed_tokens)
        assert edit.computed_tokens > 0

        conversation = chat.open("demo", "main")
        undo = chat.plan_undo(conversation, 2)
        cost = chat.revision_cost(conversation, undo)
        assert cost.computed_tokens == 0
        chat.revise(conversation, undo)
        num_kept = len(conversation.token_ids or ())
        ask(chat, conversation, "How are you?")
        hold_to(cost, conversation, num_kept)

        conversation = chat.open("demo", "main")
        assert conversation.turns == said
        drop = chat.plan_drop(conversation, said[2].id)
        cost = chat.revision_cost(conversation, drop)
        assert 0 < cost.computed_tokens < cost.reused_tokens + cost.computed_tokens
        chat.revise(conversation, drop)
        num_kept = len(conversation.token_ids or ())
        ask(chat, conversation, "What is my name?")
        hold_to(cost, conversation, num_kept)
        without = conversation.turns[-1]
        explained = chat.why(conversation, without.id)
        assert explained.miss.culprit is MissReason.DIFFERENT
        assert explained.miss.computed_tokens == cost.computed_tokens + explained.miss.new_tokens - 1
        assert explained.here.startswith(" block?")
        assert explained.there.startswith(" KV cache?")

    with starter(tmp_path) as chat:
        conversation = chat.open("demo", "main")
        drop = chat.plan_drop(conversation, said[2].id)
        cost = chat.revision_cost(conversation, drop)
        assert cost.computed_tokens == 0, "the other branch has computed this course, and it is on disk"
        chat.revise(conversation, drop)
        ask(chat, conversation, "What is my name?")
        hold_to(cost, conversation, num_kept)
        assert conversation.turns[-1].token_ids == without.token_ids
