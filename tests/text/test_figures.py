"""How numbers are written."""

import pytest

from kvchat.text.figures import age_text, bytes_text, part_text, short_bytes_text, short_count_text

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (412 * 1024, "412 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (6 << 30, "6.0 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_below_them(num_bytes: int, text: str) -> None:
    assert bytes_text(num_bytes) == text
    assert short_bytes_text(num_bytes) == text.replace(" ", "").replace("iB", "")


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1000, "1.0k"), (5100, "5.1k"), (131_072, "131k"), (999_600, "1.0M"), (10**8, "100M")],
)
def test_counts_are_short(count: int, text: str) -> None:
    assert short_count_text(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 64 << 20, "0 / 64 MiB"),
        (1, 64 << 20, "1 B / 64 MiB"),
        (41 << 20, 20 << 30, "41.0 MiB / 20 GiB"),
        (1010 << 20, 20 << 30, "1.0 / 20 GiB"),
        (9 << 20, 96 << 20, "9.0 / 96 MiB"),
        (200 << 20, 512 << 20, "200 / 512 MiB"),
        (1 << 30, 3 << 29, "1.0 / 1.5 GiB"),
    ],
)
def test_a_part_below_one_of_its_wholes_unit_has_its_own(part: int, whole: int, text: str) -> None:
    assert part_text(part, whole) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (59, "now"),
        (60, "1m"),
        (3599, "59m"),
        (7300, "2h"),
        (86_400 * 12, "12d"),
        (86_400 * 800, "2y"),
    ],
)
def test_ages_fit_four_characters(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
