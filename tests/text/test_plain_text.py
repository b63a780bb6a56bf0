"""Foreign text made safe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.text.plain_text import clean_text, one_line, path_padded

pytestmark = pytest.mark.pure


def test_escape_sequences_lose_what_makes_them_work() -> None:
    assert clean_text("\x1b[2Jgone\x1b]52;c;aGk=\x07 \x9b31m\x7f") == "[2Jgone]52;c;aGk= 31m"


def test_marks_that_reorder_a_line_are_removed() -> None:
    assert clean_text("pay \u202e001\u202c \u2066x\u2069") == "pay 001 x"


def test_lines_tabs_accents_and_joined_emoji_stay() -> None:
    text = "a\tb\nçé 漢字 👩\u200d🚀"
    assert clean_text(text) == text


@given(st.text(), st.integers(min_value=0, max_value=50))
def test_a_stream_cleaned_in_pieces_equals_the_whole_cleaned_at_once(text: str, at: int) -> None:
    assert clean_text(text[:at]) + clean_text(text[at:]) == clean_text(text)


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert "\n" not in one_line(text)
    assert one_line(text) == one_line(text).strip()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (24, "Notes on caches › boat  "),
        (16, "Notes on… › boat"),
        (12, "Note… › boat"),
        (10, "Not… › bo…"),
        (8, "Notes o…"),
    ],
)
def test_a_title_gives_way_before_the_name_of_its_branch(width: int, shown: str) -> None:
    assert path_padded("Notes on caches › boat", width) == shown
