"""The table of stages is read correctly at every position."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.starter.schedule import (
    BATCH_TOKENS,
    STAGES,
    TOTAL_TOKENS,
    kept_share,
    num_kept_at,
    num_restarts_at,
    setting_at,
)

pytestmark = pytest.mark.pure


def test_every_stage_fills_its_batches() -> None:
    for stage in STAGES:
        for length in stage.lengths:
            assert BATCH_TOKENS % length == 0
            assert length % 128 == 0


def test_the_lengths_of_a_stage_take_turns() -> None:
    stage = replace(STAGES[0], lengths=(256, 512, 256))
    assert [stage.length_at(step) for step in range(5)] == [256, 512, 256, 256, 512]


def test_positions_walk_through_the_stages_in_order() -> None:
    seen = [setting_at(position).stage for position in range(0, TOTAL_TOKENS, BATCH_TOKENS)]
    order = [stage for index, stage in enumerate(seen) if index == 0 or stage is not seen[index - 1]]
    assert order == list(STAGES)


def test_the_rate_warms_up_and_ends_where_the_table_says() -> None:
    assert 0 < setting_at(0).rate < STAGES[0].start_rate / 50
    assert setting_at(TOTAL_TOKENS).rate == STAGES[-1].end_rate
    assert setting_at(TOTAL_TOKENS * 3).stage is STAGES[-1]


def test_the_weights_of_several_endings_are_kept_and_the_last_stage_is_one_of_them() -> None:
    num_kept = sum(stage.is_kept for stage in STAGES)
    assert num_kept == 3
    assert [num_kept_at(position) for position in (0, TOTAL_TOKENS - 1)] == [0, num_kept - 1]
    assert num_kept_at(TOTAL_TOKENS) == num_kept


def test_the_first_ending_counts_whole_until_the_others_take_their_shares() -> None:
    shares = [kept_share(1 + index) for index in range(sum(stage.is_kept for stage in STAGES))]
    assert shares[0] == 1
    assert shares[1:] == [0.4, 0.5]


def test_a_stage_that_starts_from_what_was_kept_warms_up_again() -> None:
    start = 0
    for index, stage in enumerate(STAGES):
        before = num_restarts_at(start - 1)
        assert num_restarts_at(start) == before + stage.starts_from_kept
        if stage.starts_from_kept:
            assert STAGES[index - 1].is_kept
            assert 0 < setting_at(start).rate < stage.start_rate / 50
        elif index:
            assert setting_at(start).rate == pytest.approx(stage.start_rate)
        start += stage.num_tokens
    assert num_restarts_at(start) > 0
