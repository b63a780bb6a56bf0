"""Acceptance rate of draft tokens, by the length of the match they come from.

Every token that is chosen says whether its guess would have been right, also where nothing was drafted, so
the estimate costs no step and is never out of date.
"""

MEMORY = 0.96
"""What the last guess counts for, the next one counts so much less: about 25 of them decide."""
PRIOR_WEIGHT = 3.0
"""A new estimate begins as if it had seen so many guesses turn out as those of others."""
PRIORS = (0.3, 0.4, 0.55, 0.7, 0.8, 0.9)
"""What is assumed before anything was seen, for `_kind` 0, 1, ..."""


class AcceptanceRate:
    """A moving estimate for one sequence.

    Args:
        others: estimate over all sequences, which is followed until there is one of its own; this one is told
            of everything that is seen here.
    """

    def __init__(self, others: "AcceptanceRate | None" = None) -> None:
        self._others = others
        self._right = [0.0] * len(PRIORS)
        self._seen = [0.0] * len(PRIORS)

    def observe(self, match_len: int, is_right: bool) -> None:
        """Note whether the token that was expected behind `match_len` agreeing ones came."""
        kind = _kind(match_len)
        if not self._seen[kind]:
            self._right[kind] = PRIOR_WEIGHT * self.probability(match_len)
            self._seen[kind] = PRIOR_WEIGHT
        self._right[kind] = MEMORY * self._right[kind] + is_right
        self._seen[kind] = MEMORY * self._seen[kind] + 1
        if self._others is not None:
            self._others.observe(match_len, is_right)

    def probability(self, match_len: int) -> float:
        """Return how probably the token expected behind `match_len` agreeing ones comes. Pure."""
        kind = _kind(match_len)
        if self._seen[kind]:
            return self._right[kind] / self._seen[kind]
        return PRIORS[kind] if self._others is None else self._others.probability(match_len)


def _kind(match_len: int) -> int:
    """Return 0 for 2 agreeing tokens, 1 for 3, 2 for 4 and 5, 3 up to 9, 4 up to 17, 5 for more."""
    if match_len <= 3:
        return max(0, match_len - 2)
    return min((match_len - 2).bit_length(), len(PRIORS) - 1)
