"""Foreign text made safe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.text.fit_text import clean_text, one_line, path_padded

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("\x1b[2Jgone\x1b]52;c;aGk=\x07 \x9b31m\x7f", "[2Jgone]52;c;aGk= 31m"),
        ("pay \u202e001\u202c \u2066x\u2069", "pay 001 x"),
        ("a\tb\nçé 漢字 👩\u200d🚀", "a\tb\nçé 漢字 👩\u200d🚀"),
    ],
)
def test_what_moves_the_cursor_or_reorders_a_line_is_removed_and_all_else_stays(
    text: str, clean: str
) -> None:
    assert clean_text(text) == clean


@given(st.text(), st.integers(min_value=0, max_value=50))
def test_a_stream_cleaned_in_pieces_equals_the_whole_cleaned_at_once(text: str, at: int) -> None:
    assert clean_text(text[:at]) + clean_text(text[at:]) == clean_text(text)


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert "\n" not in one_line(text)
    assert one_line(text) == one_line(text).strip()


def test_a_title_gives_way_before_the_name_of_its_branch() -> None:
    path = "Notes on caches › boat"
    assert [path_padded(path, width) for width in (24, 16, 12, 10, 8)] == [
        "Notes on caches › boat  ",
        "Notes on… › boat",
        "Note… › boat",
        "Not… › bo…",
        "Notes o…",
    ]
    assert path_padded("by boat", 5) == "by b…"
