"""The line under an answer, read as text."""

from dataclasses import replace

import pytest

from kvchat.chat.service import Prefill
from kvchat.engine.api.events import LoadChoice, Loaded, LoadEstimate, Timings, Usage
from kvchat.session.tree import Finish, Role, SessionId, Turn, TurnId
from kvchat.text.answer_footer import ending_text, footer_parts, loading_parts, progress_parts, wrap_parts

pytestmark = pytest.mark.pure

ANSWER = Turn(
    id=TurnId("t"),
    session_id=SessionId("s"),
    parent_id=None,
    role=Role.ASSISTANT,
    text="Yes.",
    token_ids=(1, 2),
    finish=Finish.COMPLETE,
    created_at=0.0,
    usage=Usage(prompt_tokens=1260, cached_tokens=1204, computed_tokens=56, completion_tokens=2),
    loaded=Loaded(device=1204),
    timings=Timings(ttft_s=0.2, total_s=1.0, decode_tokens_per_s=38.2),
)


def footer(turn: Turn) -> str:
    return " · ".join(footer_parts(turn))


def test_it_says_what_was_reused_loaded_and_computed_and_how_fast() -> None:
    assert footer(ANSWER) == (
        "reused 1,204 of 1,260 · loaded 0 · computed 56 · 0.20 s to first token · 38 tok/s · exact"
    )


def test_it_names_the_tiers_that_blocks_were_loaded_from() -> None:
    resumed = replace(ANSWER, loaded=Loaded(device=100, host=104, disk=1000))
    assert "loaded 104 from host + 1,000 from disk" in footer(resumed)


def test_it_says_how_many_guesses_were_right_where_any_were() -> None:
    guessed = replace(ANSWER, usage=replace(ANSWER.usage, drafted_tokens=1030, accepted_tokens=612))
    assert "38 tok/s · 612 of 1,030 guesses right · exact" in footer(guessed)


def test_it_says_nothing_of_guesses_that_were_all_wrong() -> None:
    guessed = replace(ANSWER, usage=replace(ANSWER.usage, drafted_tokens=30, accepted_tokens=0))
    assert "right" not in footer(guessed)


def test_it_marks_an_approximate_answer() -> None:
    assert footer(replace(ANSWER, exact=False)).endswith("· approximate")


def test_it_says_nothing_of_an_answer_that_never_reached_the_engine() -> None:
    assert footer(replace(ANSWER, usage=Usage(), loaded=Loaded(), timings=Timings())) == ""


def test_it_marks_imported_and_damaged_answers() -> None:
    assert footer(replace(ANSWER, token_ids=None)).endswith("imported text")
    assert "damaged" in footer(replace(ANSWER, damaged=True))


@pytest.mark.parametrize("finish", [Finish.INTERRUPTED, Finish.LENGTH, Finish.PARTIAL, Finish.ERROR])
def test_an_answer_that_ended_early_offers_to_go_on(finish: Finish) -> None:
    assert "f5 or /continue goes on" in ending_text(finish)


def test_a_complete_answer_offers_nothing() -> None:
    assert ending_text(Finish.COMPLETE) == ""


def test_progress_counts_what_is_computed_of_what_is_new() -> None:
    prefill = Prefill(prompt_tokens=1260, cached_tokens=1204, computed_tokens=20, loaded=Loaded())
    assert progress_parts(prefill) == ("reused 1,204 of 1,260", "computing 20 of 56")


def test_progress_has_a_bar_and_the_time_left_once_that_is_known() -> None:
    prefill = Prefill(prompt_tokens=1260, cached_tokens=1200, computed_tokens=15, loaded=Loaded())
    assert progress_parts(prefill, 3.14) == (
        "reused 1,200 of 1,260",
        "computing 15 of 60",
        "▕██      ▏ 3.1 s left",
    )


def test_lines_break_between_parts_only() -> None:
    assert wrap_parts(footer_parts(ANSWER), 50) == (
        "reused 1,204 of 1,260 · loaded 0 · computed 56",
        "0.20 s to first token · 38 tok/s · exact",
    )


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (LoadChoice.LOAD, "loading, about 2.0 s · computing it again would take 9.0 s"),
        (LoadChoice.COMPUTE, "computing it again, about 2.0 s · loading would take 3.0 s"),
        (LoadChoice.BOTH, "loading and computing at once, about 2.0 s · loading alone would take 3.0 s"),
    ],
)
def test_it_says_before_a_wait_how_long_it_will_be(choice: LoadChoice, text: str) -> None:
    estimate = LoadEstimate(choice=choice, load_s=3.0, compute_s=9.0, expected_s=2.0)
    assert " · ".join(loading_parts(estimate)) == text


def test_it_says_nothing_about_a_wait_that_nobody_notices() -> None:
    estimate = LoadEstimate(choice=LoadChoice.LOAD, load_s=0.5, compute_s=9.0, expected_s=0.5)
    assert loading_parts(estimate) == ()
