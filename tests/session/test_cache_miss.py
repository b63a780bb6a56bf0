"""Why an answer computed more than was new: the first token that differs, and the culprit."""

from dataclasses import replace

import pytest

from kvchat.engine.api.events import Loaded, Usage
from kvchat.errors import UsageError
from kvchat.session.cache_miss import MissReason, explain
from kvchat.session.tree import Finish, Role, SessionId, Stored, Turn, TurnId, path_token_ids

pytestmark = pytest.mark.pure

MODEL, OTHER = "aa" * 32, "bb" * 32


class Talk:
    """A tree of turns that grows; tokens are numbers."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def say(
        self, parent: Turn | None, asked: list[int], *, cached: int, model: str = MODEL, over: bool = False
    ) -> Turn:
        """Add a question and its answer, of which `cached` tokens of the prompt were reused."""
        number = len(self.turns)
        question = self._turn(f"q{number}", parent, Role.USER, asked)
        question = replace(question, starts_over=over)
        prompt = len(path_token_ids([*self.path(parent), question]) or ())
        answer = replace(
            self._turn(f"a{number}", question, Role.ASSISTANT, [900 + number, 901 + number]),
            fingerprint=model,
            usage=Usage(prompt_tokens=prompt, cached_tokens=cached, computed_tokens=prompt - cached),
        )
        self.turns += [question, answer]
        return answer

    def path(self, turn: Turn | None) -> list[Turn]:
        by_id = {one.id: one for one in self.turns}
        path: list[Turn] = []
        while turn is not None:
            path.insert(0, turn)
            turn = by_id.get(turn.parent_id) if turn.parent_id else None
        return path

    def _turn(self, name: str, parent: Turn | None, role: Role, ids: list[int]) -> Turn:
        return Turn(
            id=TurnId(name),
            session_id=SessionId("s"),
            parent_id=parent.id if parent else None,
            role=role,
            text="",
            token_ids=tuple(ids),
            finish=Finish.COMPLETE,
            created_at=0.0,
        )


def test_an_answer_that_computed_only_what_was_new_has_no_culprit() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = talk.say(first, [4, 5], cached=4)
    retried = talk.say(first, [4, 5], cached=6)
    for answer in (first, second, retried):
        miss = explain(talk.turns, answer)
        assert (miss.culprit, miss.here, miss.there) == (MissReason.NONE, (), ())
    assert explain(talk.turns, second).new_tokens == 3


def test_where_something_earlier_was_changed_the_first_differing_token_is_shown_with_both_sides() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = talk.say(first, [4, 5], cached=4)
    talk.say(second, [6, 7], cached=8)
    copied = replace(second, id=TurnId("copy"), parent_id=first.id, usage=Usage(), token_ids=(4, 44, 45))
    talk.turns.append(copied)
    answer = talk.say(copied, [8], cached=6)
    miss = explain(talk.turns, answer)
    assert (miss.culprit, miss.at) == (MissReason.DIFFERENT, 6)
    assert (miss.shared, miss.here, miss.there[:1]) == ((1, 2, 3, 900, 901, 4), (44, 45, 8), (5,))
    assert (miss.computed_tokens, miss.new_tokens) == (3, 2)


def test_a_question_that_another_conversation_has_asked_counts_as_new_only_where_it_was_computed() -> None:
    talk = Talk()
    answer = talk.say(None, [1, 2, 3], cached=2)
    assert explain(talk.turns, answer).new_tokens == 1


def test_an_answer_that_goes_on_after_its_cache_was_lost_had_been_computed_before() -> None:
    talk = Talk()
    answer = talk.say(None, [1, 2, 3], cached=0)
    answer = talk.turns[-1] = replace(
        answer, usage=Usage(prompt_tokens=5, cached_tokens=1, computed_tokens=4)
    )
    miss = explain(talk.turns, answer, system_len=1, others=((MODEL, (1, 7, 8)),))
    assert (miss.culprit, miss.at, miss.new_tokens) == (MissReason.NOT_KEPT, 1, 1)
    assert (miss.here, miss.there) == ((2, 3, 900, 901), ())


def test_what_was_computed_before_and_not_reused_was_not_kept() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = talk.say(first, [4, 5], cached=0)
    miss = explain(talk.turns, second)
    assert (miss.culprit, miss.at, miss.here[:2], miss.there) == (MissReason.NOT_KEPT, 0, (1, 2), ())


def test_a_state_that_is_missing_behind_what_was_cached_is_named() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = replace(talk.say(first, [4, 5], cached=0), loaded=Loaded(stateless=4), stored=Stored.NOTHING)
    talk.turns[-1] = second
    assert explain(talk.turns, second).culprit is MissReason.NO_STATE


@pytest.mark.parametrize(
    ("stored", "culprit"),
    [
        (Stored.NOTHING, MissReason.EVICTED),
        (Stored.LOADED, MissReason.EVICTED),
        (Stored.COMPUTED, MissReason.FASTER),
        (Stored.BOTH, MissReason.FASTER),
        (None, MissReason.NOT_KEPT),
    ],
)
def test_what_was_given_up_and_what_was_faster_to_compute_are_told_apart_where_that_was_noted(
    stored: Stored | None, culprit: MissReason
) -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = replace(talk.say(first, [4, 5], cached=2), stored=stored)
    talk.turns[-1] = second
    assert explain(talk.turns, second).culprit is culprit


def test_a_system_prompt_that_was_edited_is_the_culprit() -> None:
    talk = Talk()
    talk.say(None, [1, 2, 3, 4, 50], cached=0)
    edited = talk.say(None, [1, 2, 9, 4, 50], cached=2)
    other_words = talk.say(None, [1, 2, 9, 4, 60], cached=4)
    retried = replace(edited, usage=replace(edited.usage, computed_tokens=8, prompt_tokens=5))
    miss = explain(talk.turns, retried, system_len=4)
    assert (miss.culprit, miss.here[0], miss.there[0]) == (MissReason.SYSTEM, 9, 3)
    assert explain(talk.turns, retried).culprit is MissReason.DIFFERENT
    said = replace(other_words, usage=replace(other_words.usage, computed_tokens=8))
    assert explain(talk.turns, said, system_len=4).culprit is MissReason.DIFFERENT


def test_a_template_that_writes_the_past_in_another_way_is_the_culprit_where_it_was_rendered_anew() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = talk.say(first, [1, 2, 3, 9, 10, 11, 12], cached=3, over=True)
    third = talk.say(second, [13], cached=3)
    assert explain(talk.turns, second, system_len=1, rewrites=True).culprit is MissReason.REWRITTEN
    assert explain(talk.turns, second, system_len=1).culprit is MissReason.STARTED_OVER
    assert explain(talk.turns, third, system_len=1, rewrites=True).culprit is MissReason.NOT_KEPT


def test_blocks_of_another_model_serve_no_other() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0, model=OTHER)
    second = talk.say(first, [4, 5], cached=0)
    assert explain(talk.turns, second).culprit is MissReason.MODEL
    assert explain(talk.turns, talk.say(second, [6], cached=8)).culprit is MissReason.NONE


def test_a_conversation_that_was_rendered_anew_says_so() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    second = talk.say(first, [1, 7, 8, 9, 10, 11, 12], cached=1, over=True)
    third = talk.say(second, [13], cached=8)
    miss = explain(talk.turns, second)
    assert (miss.culprit, miss.at, miss.here[0], miss.there[0]) == (MissReason.STARTED_OVER, 1, 7, 2)
    assert explain(talk.turns, third).culprit is MissReason.NONE


def test_what_was_not_computed_here_cannot_be_explained() -> None:
    talk = Talk()
    first = talk.say(None, [1, 2, 3], cached=0)
    for turn in (replace(first, usage=Usage()), replace(first, token_ids=None), talk.turns[0]):
        talk.turns[1] = turn if turn.id == first.id else first
        with pytest.raises(UsageError, match="not computed here"):
            explain(talk.turns, turn)
