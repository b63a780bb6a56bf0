"""Values as people write them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.platform.parsing import keys, parse_size

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        ("2GiB", 2 * 1024**3),
        ("512 MiB", 512 * 1024**2),
        ("1.5k", 1536),
        ("1kB", 1000),
        ("2 GB", 2 * 1000**3),
        ("4096", 4096),
        (4096, 4096),
        ("1t", 1024**4),
        ("7b", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(written: object, num_bytes: int) -> None:
    assert parse_size(written) == num_bytes


@pytest.mark.parametrize(
    "written", ["", "GiB", "-1GiB", "2 gigs", "nan", "inf", "9999999t", 0, True, None, "0"]
)
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_size(written)


@given(st.text() | st.integers() | st.floats() | st.none())
def test_anything_is_a_size_or_is_refused_as_a_wrong_value(written: object) -> None:
    with suppress(ValueError):
        assert parse_size(written) >= 0


@pytest.mark.parametrize(
    "written",
    [
        "f5",
        "ctrl+k",
        "shift+enter,ctrl+j",
        "ctrl+shift+f12",
        "alt+a",
        "ctrl+left_square_bracket",
        "escape, f20",
    ],
)
def test_keys_are_what_terminals_call_them(written: str) -> None:
    assert keys(written) == written


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("nonsense", "must be keys"),
        ("nonsense+k", "must be keys"),
        ("f25", "must be keys"),
        ("ctrl+", "must be keys"),
        ("f5,", "must be keys"),
        ("a", "typed into messages"),
        ("f5,shift+A", "typed into messages"),
        ("space", "typed into messages"),
        (5, "text"),
    ],
)
def test_what_is_no_key_or_would_take_what_is_typed_is_refused(written: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        keys(written)
