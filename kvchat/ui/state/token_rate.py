"""Current token rate."""

from collections import deque

_WINDOW_S = 2.0
_MIN_SPAN_S = 0.3


class TokenRate:
    """A rate over the last two seconds of observed token counts."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, now_s: float, num_tokens: int) -> None:
        """Note that `num_tokens` have been there at `now_s`; a smaller count than before starts over."""
        if self._seen and num_tokens < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now_s, num_tokens))
        while now_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    def reset(self) -> None:
        self._seen.clear()

    @property
    def tokens_per_s(self) -> float | None:
        """The rate, or None while too little was seen."""
        if not self._seen:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        span_s = last_s - first_s
        return (last - first) / span_s if span_s >= _MIN_SPAN_S and last > first else None
