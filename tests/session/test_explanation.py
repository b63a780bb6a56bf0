"""What a model's template has to do with what an answer computed."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.api.events import Usage
from kvchat.session.cache_miss import Explanation, MissReason
from kvchat.session.explanation import explained
from kvchat.session.store import SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import MAIN, Branch, Finish, Session, Turn, path_token_ids
from tests.tiny_models import CHATML, QWEN_THINKING, write_model

pytestmark = pytest.mark.pure


def template_of(tmp_path: Path, source: str) -> ChatTemplate:
    return ChatTemplate.from_dir(write_model(tmp_path / "model", source))


class Talk:
    """One session, said turn by turn."""

    def __init__(self, store: SessionStore, template: ChatTemplate, system: str) -> None:
        self.store = store
        self.template = template
        self.session: Session = store.create_session(title="", system=system, model="m")
        self.branch: Branch = store.branch(self.session.id, MAIN)
        self.turns: list[Turn] = []

    def say(self, text: str, sampled: str, *, cached: int = 0, has_ids: bool = True) -> Turn:
        """Ask, and answer with what was sampled: text, with reasoning before it where that is ended."""
        question = prompts.question(self.template, self.session, self.turns, text)
        prompt = len(path_token_ids([*self.turns, question]) or ())
        thought, _, said = sampled.rpartition("</think>")
        answer = replace(
            prompts.empty_answer(self.template, question),
            token_ids=tuple(self.template.tokenizer.encode(sampled)) if has_ids else None,
            text=said.strip(),
            reasoning=thought.strip(),
            finish=Finish.COMPLETE,
            fingerprint="ab" * 32,
            usage=Usage(prompt_tokens=prompt, cached_tokens=cached, computed_tokens=prompt - cached),
        )
        self.branch = self.store.add_turns(self.branch, (question, answer))
        self.turns += [question, answer]
        return answer

    def why(self, answer: Turn) -> Explanation:
        return explained(self.store, self.template, self.session, self.store.turn(answer.id))


@pytest.mark.parametrize(
    ("source", "thought", "culprit"),
    [(QWEN_THINKING, "Easy.</think>\n\n", MissReason.REWRITTEN), (CHATML, "", MissReason.STARTED_OVER)],
)
def test_a_template_that_leaves_reasoning_out_is_blamed_where_a_conversation_is_rendered_anew(
    store: SessionStore, tmp_path: Path, source: str, thought: str, culprit: MissReason
) -> None:
    talk = Talk(store, template_of(tmp_path, source), "Be kind.")
    talk.say("What is 2 + 2?", f"{thought}4")
    talk.say("And 3 + 3?", f"{thought}6", has_ids=False)
    fed = (path_token_ids(talk.turns[:2]) or ())[:-1]
    probe = prompts.question(talk.template, talk.session, talk.turns, "And 4 + 4?").token_ids or ()
    differing = (at for at, (one, other) in enumerate(zip(fed, probe, strict=False)) if one != other)
    alike = next(differing, len(fed))
    miss = talk.why(talk.say("And 4 + 4?", f"{thought}8", cached=alike)).miss
    assert miss.culprit is culprit
    assert miss.at == alike


def test_an_edited_system_prompt_is_blamed_and_other_first_words_are_not(
    store: SessionStore, tmp_path: Path
) -> None:
    template = template_of(tmp_path, CHATML)
    first = Talk(store, template, "Be kind.")
    assert first.why(first.say("Hello", "Hi")).miss.culprit is MissReason.NONE
    same = Talk(store, template, "Be kind.")
    assert same.why(same.say("Good morning", "Hi", cached=4)).miss.culprit is MissReason.NONE
    edited = Talk(store, template, "Be brief.")
    told = edited.why(edited.say("Hello", "Hi", cached=2))
    assert told.miss.culprit is MissReason.SYSTEM
    assert told.shared.endswith("Be ")
    assert (told.here[:2], told.there[:2]) == ("br", "ki")
    assert edited.why(edited.say("And then?", "Hi", cached=99)).miss.culprit is MissReason.NONE


def test_what_is_wrong_with_another_conversation_or_was_brought_with_one_says_nothing_of_this_one(
    store: SessionStore, tmp_path: Path
) -> None:
    template = template_of(tmp_path, CHATML)
    damaged, brought = Talk(store, template, "Be kind."), Talk(store, template, "Be short.")
    damaged.say("Hello", "Hi")
    brought.say("Hello", "Hi")
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(
            "UPDATE branches SET leaf_id = 'nobody' WHERE session_id = ?", [damaged.session.id]
        )
        connection.commit()
    store.use_blocks_of(brought.session.id, "theirs")
    talk = Talk(store, template, "Be brief.")
    assert talk.why(talk.say("Hello", "Hi", cached=2)).miss.culprit is MissReason.NONE
