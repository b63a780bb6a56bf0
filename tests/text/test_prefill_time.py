"""How long the rest of a prompt takes, told from the speed seen so far."""

import pytest

from kvchat.chat.service import Prefill
from kvchat.engine.api.events import Loaded
from kvchat.text.prefill_time import PrefillTime

pytestmark = pytest.mark.pure


class Clock:
    """Stands still between two looks at a prompt."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_left_follows_the_speed_since_the_first_look() -> None:
    clock = Clock()
    pace = PrefillTime(clock)
    left = []
    for passed_s, computed in ((0, 0), (2, 500), (2, 1500), (2, 2000)):
        clock.now_s += passed_s
        at = Prefill(prompt_tokens=2100, cached_tokens=100, computed_tokens=computed, loaded=Loaded())
        left.append(pace.left_s(at))
    assert left == [None, 6.0, pytest.approx(4 / 3), None]


def test_what_was_computed_before_the_first_look_counts_as_no_speed() -> None:
    clock = Clock()
    pace = PrefillTime(clock)
    first = Prefill(prompt_tokens=1000, cached_tokens=0, computed_tokens=600, loaded=Loaded())
    assert pace.left_s(first) is None
    clock.now_s += 1
    second = Prefill(prompt_tokens=1000, cached_tokens=0, computed_tokens=700, loaded=Loaded())
    assert pace.left_s(second) == pytest.approx(3.0)
