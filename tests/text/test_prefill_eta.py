"""How long the rest of a prompt takes, told from the speed seen so far."""

import pytest

from kvchat.chat.service import Prefill
from kvchat.engine.api.events import Loaded
from kvchat.text.prefill_eta import PrefillEta
from tests.hand_clock import HandClock

pytestmark = pytest.mark.pure


def test_the_time_left_follows_the_speed_since_the_first_look_and_not_what_was_computed_before() -> None:
    clock = HandClock()
    pace = PrefillEta(clock)
    left = []
    for passed_s, computed in ((0, 500), (2, 1000), (2, 1750), (2, 2000)):
        clock.now_s += passed_s
        at = Prefill(prompt_tokens=2100, cached_tokens=100, computed_tokens=computed, loaded=Loaded())
        left.append(pace.left_s(at))
    assert left == [None, 4.0, pytest.approx(0.8), None]
