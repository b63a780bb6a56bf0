"""What is remembered of the past: speed, reuse, and moves for a moment."""

from dataclasses import replace

import pytest

from kvchat.engine.api.snapshot import MovedBytes, Tier
from kvchat.ui.state.cache_history import LENGTH, SHOWN_S, History
from tests.ui.scripted_engine import scripted_snapshot

pytestmark = pytest.mark.pure

EMPTY = scripted_snapshot([])


def test_reuse_has_one_sample_for_each_request_and_is_that_requests_own() -> None:
    history = History()
    history.observe(0.0, replace(EMPTY, computed_tokens=100))
    history.observe(0.1, replace(EMPTY, computed_tokens=100))
    recent = history.observe(0.2, replace(EMPTY, computed_tokens=110, reused_tokens=90))
    assert recent.reuses == (0.0, 0.9)
    assert history.observe(0.3, EMPTY).reuses == (0.0, 0.9), "the engine has begun anew"


def test_the_bytes_of_each_tier_are_sampled_every_two_seconds() -> None:
    history, bigger = History(), scripted_snapshot([], disk_bytes=7)
    for step in range(50):
        recent = history.observe(step / 10, EMPTY if step < 30 else bigger)
    assert recent.tier_bytes == {Tier.DEVICE: (0, 0, 0), Tier.DISK: (0, 0, 7)}


def test_rates_are_sampled_twice_a_second_and_only_while_anything_runs() -> None:
    history = History()
    for step in range(40):
        at_work = replace(EMPTY, num_running=int(step < 20), sampled_tokens=2 * min(step, 20))
        recent = history.observe(step / 10, at_work)
    assert recent.rates == (pytest.approx(20.0),) * 4
    assert history.tokens_per_s is None
    for step in range(40, 60 + 5 * LENGTH):
        recent = history.observe(step / 10, replace(EMPTY, num_running=1, sampled_tokens=3 * step))
    assert recent.rates == (pytest.approx(30.0),) * LENGTH


def test_a_move_is_shown_once_for_a_moment_and_says_which_way() -> None:
    history = History()
    assert history.observe(0.0, replace(EMPTY, moved=MovedBytes(to_disk=5))).moving == {}, "before"
    moved = replace(EMPTY, moved=MovedBytes(to_disk=9, from_host=1))
    assert history.observe(1.0, moved).moving == {Tier.DISK: "▼", Tier.HOST: "▲"}
    both = replace(EMPTY, moved=MovedBytes(to_disk=9, from_disk=3, from_host=1))
    assert history.observe(1.5, both).moving == {Tier.DISK: "⇅", Tier.HOST: "▲"}
    assert history.observe(1.5 + SHOWN_S, both).moving == {}
