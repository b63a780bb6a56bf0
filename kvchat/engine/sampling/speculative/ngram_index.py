"""N-gram index: where the end of a growing sequence occurred before, and what followed.

People quote, edit and list, and models repeat what they read; then what followed the last time is a good
guess at what follows now. The index keeps one place: the one that the last tokens have agreed with for
longest without a break, as match models of data compressors do. Only when a token differs from the one
expected there is a new place looked up, by the last three tokens, else by the last two. Each token costs the
same however long the sequence is.

Source: Saxena 2023, prompt lookup decoding; Mahoney's lpaq for keeping the place.
"""

from collections.abc import Iterable

NGRAM_LENS = (3, 2)
"""Tokens by which a place is looked up, longest first."""
MOST_TOKENS = 2**15
"""So many of the last tokens can be found again at least, and at most twice as many."""


class NgramIndex:
    """The index of one sequence.

    Args:
        most_tokens: bounds the memory: at most four n-grams are kept for each, about 150 bytes apiece.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tokens: list[int] = []
        self._source = 0
        self.match_len = 0
        """How many of the last tokens agree with those before the place; 0: there is none."""
        # Ends of the latest occurrences. When the young ones are many enough, the old ones are forgotten.
        self._young: dict[tuple[int, ...], int] = {}
        self._old: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def expected(self) -> int | None:
        """The token that followed at the place; None where there is no place."""
        return self._tokens[self._source] if self.match_len else None

    def feed(self, token_ids: Iterable[int]) -> None:
        """Take the sequence's next tokens."""
        for token in token_ids:
            if token == self.expected:
                self._source += 1
                self.match_len += 1
            else:
                self.match_len = 0
            self._tokens.append(token)
            self._look_up()

    def draft(self, num_tokens: int) -> tuple[int, ...]:
        """Return as many tokens as wanted that would follow if the sequence went on as it did at the place,
        repeating itself where it is reached; nothing without a place. Pure.
        """
        if not self.match_len:
            return ()
        found = self._tokens[self._source : self._source + num_tokens]
        period = len(found)
        return tuple(found[number % period] for number in range(num_tokens))

    def _look_up(self) -> None:
        """Index the n-grams that end here, and find a place for the next token if there is none."""
        end = len(self._tokens)
        for length in NGRAM_LENS:
            if end < length:
                continue
            ngram = tuple(self._tokens[-length:])
            if not self.match_len:
                found = self._young.get(ngram) or self._old.get(ngram)
                if found:
                    self._source, self.match_len = found, length
            self._young[ngram] = end
        if len(self._young) >= len(NGRAM_LENS) * self._most_tokens:
            self._old, self._young = self._young, {}
