"""Time left in a prefill, estimated from its speed so far."""

from collections.abc import Callable
from time import monotonic

from kvchat.chat.events import Prefill


class PrefillEta:
    """Tells it from the speed seen so far; one for each prompt."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def left_s(self, prefill: Prefill) -> float | None:
        """Note how far a prompt is, and return the seconds left; None before any speed is known, and behind
        its end.
        """
        now_s = self._clock()
        if self._first is None:
            self._first = now_s, prefill.computed_tokens
        began_s, computed_before = self._first
        computed = prefill.computed_tokens - computed_before
        left = prefill.prompt_tokens - prefill.cached_tokens - prefill.computed_tokens
        return (now_s - began_s) / computed * left if computed > 0 and left > 0 else None
