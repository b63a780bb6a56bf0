"""The line under an answer, read as text."""

from dataclasses import replace
from typing import Any

import pytest

from kvchat.engine.api.events import LoadChoice, Loaded, LoadEstimate, Timings, Usage
from kvchat.session.tree import Finish, Turn
from kvchat.text.answer_footer import (
    PrefillEta,
    ending_text,
    footer_parts,
    loading_parts,
    progress_parts,
    wrap_parts,
)
from tests.hand_clock import HandClock
from tests.ui.records import ANSWER, prefilled

pytestmark = pytest.mark.pure

USAGE = Usage(prompt_tokens=1260, cached_tokens=1204, computed_tokens=56, completion_tokens=2)
TOLD = replace(
    ANSWER,
    usage=USAGE,
    loaded=Loaded(device=1204),
    timings=Timings(ttft_s=0.2, total_s=1.0, decode_tokens_per_s=38.2),
)


def footer(turn: Turn) -> str:
    return " · ".join(footer_parts(turn))


def test_it_says_what_was_reused_loaded_and_computed_and_how_fast() -> None:
    assert footer(TOLD) == (
        "reused 1,204 of 1,260 · loaded 0 · computed 56 · 0.20 s to first token · 38 tok/s · exact"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loaded": Loaded(device=100, host=104, disk=1000)}, "loaded 104 from host + 1,000 from disk"),
        (
            {"usage": replace(USAGE, drafted_tokens=1030, accepted_tokens=612)},
            "612/1,030 draft tokens accepted",
        ),
        ({"usage": replace(USAGE, drafted_tokens=30, accepted_tokens=0)}, "38 tok/s · exact"),
        ({"exact": False}, "· approximate"),
        ({"token_ids": None}, "imported text"),
        ({"damaged": True}, "damaged"),
    ],
)
def test_it_names_tiers_guesses_that_were_right_and_what_is_not_as_it_was_computed(
    changes: dict[str, Any], words: str
) -> None:
    assert words in footer(replace(TOLD, **changes))


def test_it_says_nothing_of_an_answer_that_never_reached_the_engine() -> None:
    assert footer(ANSWER) == ""


def test_any_answer_that_is_not_complete_offers_to_go_on() -> None:
    for finish in Finish:
        ended = replace(TOLD, finish=finish)
        assert ("f5 or /continue goes on" in ending_text(ended)) is (finish is not Finish.COMPLETE)


def test_an_answer_that_fills_the_context_offers_what_makes_room_and_nothing_else() -> None:
    full = replace(TOLD, finish=Finish.LENGTH)
    limit = full.usage.prompt_tokens + full.usage.completion_tokens
    assert "/continue" in ending_text(full, max_context=limit + 1)
    words = ending_text(full, max_context=limit)
    assert "/continue" not in words
    assert "context is full" in words
    assert "/drop" in words
    assert ending_text(TOLD, max_context=limit) == ""


def test_progress_counts_what_is_computed_of_what_is_new_and_has_the_time_left_once_that_is_known() -> None:
    prefill = prefilled(1260, cached=1200, computed=15)
    counts = ("reused 1,200 of 1,260", "computing 15 of 60")
    assert progress_parts(prefill) == counts
    assert progress_parts(prefill, 3.14) == (*counts, "▕██      ▏ 3.1 s left")


def test_lines_break_between_parts_only() -> None:
    assert wrap_parts(footer_parts(TOLD), 50) == (
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
def test_it_says_before_a_wait_that_is_noticed_how_long_it_will_be(choice: LoadChoice, text: str) -> None:
    estimate = LoadEstimate(choice=choice, load_s=3.0, compute_s=9.0, expected_s=2.0)
    assert " · ".join(loading_parts(estimate)) == text
    assert loading_parts(replace(estimate, expected_s=0.5)) == ()


def test_the_time_left_follows_the_speed_since_the_first_look_and_not_what_was_computed_before() -> None:
    clock = HandClock()
    pace = PrefillEta(clock)
    left = []
    for passed_s, computed in ((0, 500), (2, 1000), (2, 1750), (2, 2000)):
        clock.now_s += passed_s
        at = prefilled(2100, cached=100, computed=computed)
        left.append(pace.left_s(at))
    assert left == [None, 4.0, pytest.approx(0.8), None]
