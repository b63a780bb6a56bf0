"""What the index of repeats finds, beside a search through the whole text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.sampling.speculative.ngram_proposer import NGRAM_LENS, NgramIndex

pytestmark = pytest.mark.pure

texts = st.lists(st.integers(0, 3), max_size=60)


class Search:
    """The same by searching: nothing is kept but the text and the place."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.source: int | None = None
        self.match_len = 0

    def feed(self, token: int) -> None:
        if self.source is not None and self.text[self.source] == token:
            self.source += 1
            self.match_len += 1
            self.text.append(token)
            return
        self.text.append(token)
        self.source, self.match_len = None, 0
        for length in NGRAM_LENS:
            place = latest(self.text, length)
            if place is not None:
                self.source, self.match_len = place, length
                return

    def draft(self, num_tokens: int) -> tuple[int, ...]:
        if self.source is None:
            return ()
        text = list(self.text)
        for number in range(num_tokens):
            text.append(text[self.source + number])
        return tuple(text[len(self.text) :])


def latest(text: Sequence[int], length: int) -> int | None:
    """Return where what followed the latest earlier occurrence of the last `length` tokens stands."""
    if len(text) < length:
        return None
    wanted = text[len(text) - length :]
    ends = [end for end in range(length, len(text)) if text[end - length : end] == wanted]
    return ends[-1] if ends else None


@given(text=texts, num_tokens=st.integers(0, 12))
def test_it_finds_what_a_search_finds(text: list[int], num_tokens: int) -> None:
    index, search = NgramIndex(), Search()
    for token in text:
        index.feed((token,))
        search.feed(token)
        assert index.match_len == search.match_len
        assert index.draft(num_tokens) == search.draft(num_tokens)
        assert index.expected == next(iter(search.draft(1)), None)
    assert len(index) == len(text)


@given(text=texts, cut=st.integers(0, 60))
def test_it_does_not_matter_how_a_text_is_fed(text: list[int], cut: int) -> None:
    at_once, in_parts = NgramIndex(), NgramIndex()
    at_once.feed(text)
    in_parts.feed(text[:cut])
    in_parts.feed(text[cut:])
    assert at_once.draft(9) == in_parts.draft(9)


@given(text=st.lists(st.integers(0, 3), min_size=1, max_size=200), most=st.integers(1, 20))
def test_what_it_keeps_is_bounded_and_reaches_back_as_far_as_it_says(text: list[int], most: int) -> None:
    index = NgramIndex(most_tokens=most)
    for number, token in enumerate(text, start=1):
        index.feed((token,))
        assert len(index._young) + len(index._old) <= 2 * (len(NGRAM_LENS) * most + 1)
        near = latest(text[max(0, number - most) : number], NGRAM_LENS[0])
        assert index.match_len or near is None


def test_a_text_that_repeats_itself_is_expected_to_go_on_so() -> None:
    index = NgramIndex()
    index.feed([5, 6, 7, 5, 6, 7, 5])
    assert index.match_len == 4  # 5 6 was found again, then 7 and 5 agreed
    assert index.draft(7) == (6, 7, 5, 6, 7, 5, 6)
