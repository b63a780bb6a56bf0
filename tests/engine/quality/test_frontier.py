"""Which format is recommended, and how losses are drawn."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kvchat.engine.api.loss import FormatLoss, GaugeReport, LayerLoss, Loss
from kvchat.engine.quality.frontier import frontier, frontier_svg, recommended, share_bounds
from kvchat.text.gauge import advice_line, report_lines

pytestmark = pytest.mark.pure


def loss(agreement: float, divergence: float) -> Loss:
    return Loss(
        num_tokens=100,
        agreement=agreement,
        divergence=divergence,
        worst_divergence=divergence,
        perplexity_ratio=1.01,
        recall=None,
    )


def measured(name: str, num_bytes: int, agreement: float = 1.0, divergence: float = 0.1) -> FormatLoss:
    return FormatLoss(
        cache_format=name,
        num_bytes=num_bytes,
        token_bytes=num_bytes / 10,
        loss=loss(agreement, divergence),
        is_converted=False,
        seconds=0.1,
    )


FOUND = (
    measured("fp8", 500, 1.0, 0.01),
    measured("int8", 500, 1.0, 0.001),
    measured("int4", 300, 0.99, 0.05),
    measured("int2", 200, 0.80, 2.0),
)
REPORT = GaugeReport(
    model="m", num_tokens=900, num_replayed=100, exact_bytes=1000, exact_token_bytes=100.0, formats=FOUND
)


@pytest.mark.parametrize(
    ("kept", "name"), [(1.0, "int8"), (0.995, "int8"), (0.99, "int4"), (0.8, "int2"), (0.0, "int2")]
)
def test_the_fewest_bytes_that_keep_the_stated_agreement(kept: float, name: str) -> None:
    found = recommended(FOUND, kept, 1000)
    assert found is not None
    assert found.cache_format == name


def test_the_exact_format_stays_where_none_keeps_enough_or_none_is_smaller() -> None:
    assert recommended([measured("int2", 200, 0.5)], 0.9, 1000) is None
    assert recommended([measured("int8", 1200)], 0.9, 1000) is None
    assert "stay with exact" in advice_line(replace(REPORT, exact_bytes=1), 0.99)


def test_the_frontier_has_no_format_that_another_beats() -> None:
    assert [one.cache_format for one in frontier(FOUND)] == ["int2", "int4", "int8"]


def test_advice_says_what_was_asked_for_what_is_saved_and_how_sure_it_is() -> None:
    line = advice_line(REPORT, 0.99)
    assert line.startswith("to keep 99 %: --cache-format int4 saves 70 % of the bytes")
    least, most = share_bounds(0.99, 100)
    assert f"{100 * least:.1f} %" in line
    assert least < 0.99 < most < 1.0


def test_layers_are_told_from_the_most_sensitive_on() -> None:
    layers = tuple(LayerLoss(layer=n, cache_format="int4", loss=loss(1.0, 0.1 * n)) for n in (1, 3, 5))
    lines = [line.split()[0] for line in report_lines(replace(REPORT, layers=layers), 0.5)]
    assert [word for word in lines if word in "135"] == ["5", "3", "1"]


def test_the_picture_is_well_formed_and_names_every_format() -> None:
    drawn = frontier_svg([*FOUND, measured("k=int8,v=<4>", 350, divergence=0.0)], "a < b & c", 100.0)
    root = ElementTree.fromstring(drawn)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"fp8", "int8", "int4", "int2", "k=int8,v=<4>", "a < b & c"} <= texts
    circles = [float(dot.attrib["cx"]) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert circles[0] == circles[1] > circles[2] > circles[3]
