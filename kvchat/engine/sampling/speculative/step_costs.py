"""Step costs: how much longer steps with drafts take, measured at run time.

Where decoding waits for memory a few more rows cost next to nothing, and where it computes each costs as much
as the first; which it is depends on model, weights, kernels, processor and who else uses it. So steps are
timed, and what is compared was measured with equally many sequences and about as long texts.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median

WINDOW = 9
"""Measurements of one kind that count; their median does."""
LEAST = 3
"""Fewer are not believed: the first steps of a kind may compile, allocate or wait."""


class StepCosts:
    """Running estimates for one model. Nothing here knows a clock."""

    def __init__(self) -> None:
        # By the number of sequences and the binary length of that of keys, then by the kind of drafts.
        self._recent: dict[tuple[int, int], dict[int, deque[float]]] = {}

    def observe(self, num_sequences: int, num_keys: int, num_drafted: int, seconds: float) -> None:
        """Note that a step took `seconds`.

        Args:
            num_sequences: sequences of which a token was computed.
            num_keys: tokens of all of them together, which attention reads.
            num_drafted: further tokens.
        """
        if seconds > 0:
            kinds = self._recent.setdefault((num_sequences, num_keys.bit_length()), {})
            kinds.setdefault(_kind(num_drafted), deque(maxlen=WINDOW)).append(seconds)

    def plain_s(self, num_sequences: int, num_keys: int) -> float | None:
        """Return the time of a step without drafts; None where it is not known yet. Pure."""
        known = (_median(kinds, 0) for kinds in self._nearest(num_sequences, num_keys))
        return next((seconds for seconds in known if seconds), None)

    def relative(self, num_sequences: int, num_keys: int, num_drafted: int) -> float | None:
        """Return the time of a step with drafts in times of one without; None where it is not known yet.

        Texts of a length that was not measured count as the nearest one that was. Pure.
        """
        kind = _kind(num_drafted)
        for kinds in self._nearest(num_sequences, num_keys):
            plain, drafted = _median(kinds, 0), _median(kinds, kind)
            if plain and drafted:
                return drafted / plain
        return None

    def _nearest(self, num_sequences: int, num_keys: int) -> Iterator[Mapping[int, deque[float]]]:
        size = num_keys.bit_length()
        sizes = [size for count, size in self._recent if count == num_sequences]
        for near in sorted(sizes, key=lambda known: (abs(known - size), known)):
            yield self._recent[num_sequences, near]


def _kind(num_drafted: int) -> int:
    """Return 0 without drafts, 1 for one token, 2 for two, 3 for 3 and 4, 4 up to 8, and so on."""
    return (num_drafted - 1).bit_length() + 1 if num_drafted else 0


def _median(kinds: Mapping[int, deque[float]], kind: int) -> float | None:
    known = kinds.get(kind, ())
    return median(known) if len(known) >= LEAST else None
