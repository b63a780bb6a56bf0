"""Plots of the measurements are plain pictures that any browser shows."""

from xml.etree import ElementTree

import pytest

from benchmarks.line_plot import line_plot

pytestmark = pytest.mark.pure

SVG = "{http://www.w3.org/2000/svg}"


def test_a_line_goes_through_its_points_and_nothing_in_it_runs() -> None:
    lines = {"a <b> & c": [(1.0, 10.0), (10.0, 100.0)], "flat": [(1.0, 10.0), (10.0, 10.0)]}
    root = ElementTree.fromstring(line_plot("T & U", "x", "y", lines))
    assert {element.tag for element in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "rect", "text", "line", "polyline")
    }
    first, second = (line.attrib["points"].split() for line in root.iter(f"{SVG}polyline"))
    assert first[0] == second[0]
    (start_x, start_y), (end_x, end_y) = (map(float, point.split(",")) for point in first)
    assert end_x > start_x
    assert end_y < start_y, "up is more"
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"T & U", "a <b> & c", "flat", "1", "10", "100"} <= set(words)
