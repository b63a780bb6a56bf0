"""Why an answer computed what it did, as it is read."""

import pytest

from kvchat.session.cache_miss import CacheMiss, Explanation, MissReason
from kvchat.text.cache_miss import why_words

pytestmark = pytest.mark.pure


def words(culprit: MissReason, here: str = "", there: str = "", **guesses: int) -> str:
    miss = CacheMiss(
        culprit=culprit,
        prompt_tokens=1367,
        cached_tokens=324,
        new_tokens=8,
        at=324,
        here=(1,) if here else (),
        there=(2,) if there else (),
        **guesses,
    )
    return why_words(Explanation(miss=miss, shared="<|user|>What is ", here=here, there=there))


def test_both_sides_are_shown_from_the_first_token_that_differs() -> None:
    assert words(MissReason.DIFFERENT, here="a\n\x1b[1mfork?", there="eviction?") == (
        "reused    324 of 1,367 tokens\n"
        "computed  1,043 tokens, 8 of them new\n\n"
        "Something earlier was changed or left out; what follows it had never been computed.\n\n"
        "at token  324\n"
        "here      “… <|user|>What is ▸a [1mfork? …”\n"
        "before    “… <|user|>What is ▸eviction? …”"
    )


def test_guesses_are_told_where_any_were_made() -> None:
    told = words(MissReason.NONE, drafted_tokens=20, accepted_tokens=12).splitlines()
    assert told[2] == "answer    12/20 draft tokens accepted"


def test_each_culprit_has_a_sentence_of_its_own() -> None:
    told = {culprit: words(culprit).splitlines()[3] for culprit in MissReason}
    assert len(set(told.values())) == len(MissReason)
    assert all(sentence.endswith(".") for sentence in told.values())
    assert "faster than loading" in told[MissReason.FASTER]
    assert "no tier had it any more" in told[MissReason.EVICTED]
    assert "system prompt" in told[MissReason.SYSTEM]
    assert "template writes what was said in another way" in told[MissReason.REWRITTEN]
