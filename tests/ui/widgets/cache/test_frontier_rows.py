"""Bytes against loss, drawn in cells."""

import pytest

from kvchat.engine.api.loss import FormatLoss, GaugeReport, Loss
from kvchat.engine.quality.frontier import recommended
from kvchat.ui.widgets.cache.frontier_rows import (
    BEATEN,
    GOOD,
    LEAST_HEIGHT,
    LEAST_WIDTH,
    TAKEN,
    frontier_rows,
)
from kvchat.ui.widgets.cache.row_view import row_text

pytestmark = pytest.mark.pure

STARTER = (
    ("fp8", 793, 3.2e-4),
    ("int8", 793, 7.2e-6),
    ("k=int8,v=int4", 637, 6.4e-5),
    ("int4", 481, 8.9e-4),
    ("k=int4,v=int2", 385, 3.1e-3),
    ("int2", 289, 2.4e-2),
)


def report(*formats: tuple[str, float, float], exact: float = 3072.0, agreement: float = 1.0) -> GaugeReport:
    found = tuple(
        FormatLoss(
            cache_format=name,
            num_bytes=round(size),
            token_bytes=size,
            loss=Loss(
                num_tokens=100,
                agreement=agreement,
                divergence=divergence,
                worst_divergence=divergence,
                perplexity_ratio=1.0,
                recall=None,
            ),
            is_converted=False,
            seconds=0.1,
        )
        for name, size, divergence in formats
    )
    return GaugeReport(
        model="m",
        num_tokens=900,
        num_replayed=100,
        exact_bytes=round(exact),
        exact_token_bytes=exact,
        formats=found,
    )


def drawn(of: GaugeReport, taken: FormatLoss | None, width: int = 78, height: int = 13) -> list[str]:
    return [row_text(row) for row in frontier_rows(of, taken, width, height)]


@pytest.mark.parametrize(("width", "height"), [(76, 12), (78, 13), (120, 24), (200, 60)])
@pytest.mark.parametrize("exact", [3072.0, 1536.0, 820.0])
def test_every_format_is_named_beside_its_mark_and_the_recommended_one_stands_out(
    width: int, height: int, exact: float
) -> None:
    of = report(*STARTER, exact=exact)
    taken = next(one for one in of.formats if one.cache_format == "int4")
    lines = drawn(of, taken, width, height)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}
    words = {name.strip(",") for line in lines for name in line.split()}
    assert {name for name, *_ in STARTER} <= words
    assert sum(line.count(TAKEN) for line in lines) == 1
    assert f"{TAKEN} int4" in "\n".join(lines) or f"int4 {TAKEN}" in "\n".join(lines)
    assert sum(line.count(GOOD) for line in lines) == 4
    assert sum(line.count(BEATEN) for line in lines) == 1, "fp8 takes as much as int8 and loses more"


def test_more_bytes_stand_further_right_and_more_loss_further_up() -> None:
    lines = drawn(report(*STARTER), None, 120, 24)
    places = {}
    for name in ("int8", "int4", "int2"):
        row = next(number for number, line in enumerate(lines) if f"{GOOD} {name} " in line)
        places[name] = row, lines[row].index(GOOD)
    assert places["int2"][0] < places["int4"][0] < places["int8"][0]
    assert places["int2"][1] < places["int4"][1] < places["int8"][1]
    labels = [line[:6].strip() for line in lines if "┤" in line]
    assert labels == ["1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6"]


def test_formats_in_one_place_share_a_mark_and_are_all_named() -> None:
    of = report(("fp8", 500, 1e-3), ("int8", 500, 1e-3), exact=1000)
    lines = drawn(of, of.formats[1])
    assert sum(line.count(TAKEN) + line.count(GOOD) + line.count(BEATEN) for line in lines) == 1
    assert f"{TAKEN} fp8, int8" in "\n".join(lines)


def test_where_none_keeps_enough_the_exact_format_is_marked() -> None:
    of = report(*STARTER, agreement=0.5)
    assert recommended(of.formats, 0.99, of.exact_bytes) is None
    text = "\n".join(drawn(of, None))
    assert f"{TAKEN} exact" in text
    assert text.count(TAKEN) == 1


@pytest.mark.parametrize("divergence", [0.0, 1.0, float("inf")])
def test_a_single_format_with_any_loss_can_be_drawn(divergence: float) -> None:
    of = report(("int8", 500, divergence), exact=400)
    assert any("int8" in line for line in drawn(of, None, LEAST_WIDTH, LEAST_HEIGHT))


def test_too_little_room_and_nothing_measured_draw_nothing() -> None:
    assert drawn(report(*STARTER), None, LEAST_WIDTH - 1, 20) == []
    assert drawn(report(*STARTER), None, 100, LEAST_HEIGHT - 1) == []
    assert drawn(report(), None) == []


def test_a_name_that_fits_nowhere_is_left_out_and_hides_nothing() -> None:
    long = "k=int8,v=int4; layers 0-1=exact; layers 2-30=int2"
    of = report((long, 500, 1e-3), ("int8", 600, 1e-3), exact=1000)
    lines = drawn(of, None, LEAST_WIDTH, LEAST_HEIGHT)
    assert sum(line.count(GOOD) + line.count(BEATEN) for line in lines) == 2
    assert "int8" in "\n".join(lines)
