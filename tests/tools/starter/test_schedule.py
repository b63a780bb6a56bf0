"""The table of stages is read correctly at every position."""

from __future__ import annotations

import pytest

from tools.starter.schedule import BATCH_TOKENS, STAGES, TOTAL_TOKENS, setting_at

pytestmark = pytest.mark.pure


def test_every_stage_fills_its_batches() -> None:
    for stage in STAGES:
        for length in stage.lengths:
            assert BATCH_TOKENS % length == 0
            assert length % 128 == 0


def test_positions_walk_through_the_stages_in_order() -> None:
    seen = [setting_at(position).stage for position in range(0, TOTAL_TOKENS, BATCH_TOKENS)]
    order = [stage for index, stage in enumerate(seen) if index == 0 or stage is not seen[index - 1]]
    assert order == list(STAGES)
