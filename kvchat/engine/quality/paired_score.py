"""Paired score: points a format loses on questions the exact cache was asked too, with an interval.

Questions about one context stand or fall together, so whole contexts are drawn again: a bootstrap over them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.recall import FormatMarks, Item

CONFIDENCE = 0.95
NUM_DRAWS = 2000
UNSEEN = 3.0
"""Of n contexts without a difference, the share that may differ after all is below this divided by n, at
95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScore:
    """The same questions on the exact cache and in a format.

    Args:
        exact, approximate: share of right answers.
        lost: points, in percent, that the format loses; negative where it gains.
        least_lost, most_lost: ends of the 95 % confidence interval of `lost`.
        num_worse, num_better: questions that only the exact cache, or only the format, answers right.
    """

    num_questions: int
    num_contexts: int
    exact: float
    approximate: float
    lost: float
    least_lost: float
    most_lost: float
    num_worse: int
    num_better: int


def paired_score(
    items: Sequence[Item], exact: FormatMarks, approximate: FormatMarks, kind: str | None = None
) -> PairedScore:
    """Return how a format does beside the exact cache, on the items of one kind (None: on all). Pure."""
    pairs = [
        (truth, given)
        for item, truth, given in zip(items, exact.right, approximate.right, strict=True)
        if kind in (None, item.kind)
    ]
    differences = [sum(truth) - sum(given) for truth, given in pairs]
    sizes = [len(truth) for truth, _ in pairs]
    total = sum(sizes)
    least, most = _interval(differences, sizes)
    flat = [pair for truth, given in pairs for pair in zip(truth, given, strict=True)]
    return PairedScore(
        num_questions=total,
        num_contexts=len(pairs),
        exact=sum(truth for truth, _ in flat) / total,
        approximate=sum(given for _, given in flat) / total,
        lost=100 * sum(differences) / total,
        least_lost=100 * least,
        most_lost=100 * most,
        num_worse=sum(truth and not given for truth, given in flat),
        num_better=sum(given and not truth for truth, given in flat),
    )


def _interval(differences: Sequence[int], sizes: Sequence[int]) -> tuple[float, float]:
    """Return the ends of the interval of the lost share; where nothing differs, what may have been unseen."""
    number = len(differences)
    if not any(differences):
        bound = min(1.0, UNSEEN / number)
        return -bound, bound
    rng = random.Random(0)
    shares = []
    for _ in range(NUM_DRAWS):
        drawn = rng.choices(range(number), k=number)
        shares.append(sum(differences[one] for one in drawn) / sum(sizes[one] for one in drawn))
    shares.sort()
    outside = (1 - CONFIDENCE) / 2
    return shares[int(outside * NUM_DRAWS)], shares[int((1 - outside) * NUM_DRAWS) - 1]
