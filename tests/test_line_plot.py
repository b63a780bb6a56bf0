"""Plots of the measurements are plain pictures that any browser shows."""

from xml.etree import ElementTree

import pytest

from benchmarks.line_plot import line_plot
from benchmarks.points_plot import Point, points_plot

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


def test_points_stand_where_their_figures_say_with_their_intervals() -> None:
    near = [Point(name=f"p{number}", x=300.0 + number, y=50.0, low=40.0, high=60.0) for number in range(3)]
    far = [Point(name="far", x=900.0, y=80.0, low=80.0, high=80.0)]
    root = ElementTree.fromstring(
        points_plot("T & U", ("bytes", "%"), {"near": near, "<far>": far}, ("exact", 1000.0, 90.0))
    )
    names = {
        text.text: (float(text.attrib["x"]), float(text.attrib["y"])) for text in root.iter(f"{SVG}text")
    }
    assert {"T & U", "bytes", "%", "exact", "near", "<far>", "p0", "p1", "p2", "far"} <= set(names)
    assert len({names[f"p{number}"][1] for number in range(3)}) == 3, "no name covers another"
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in root.iter(f"{SVG}circle")]
    level, first, last = dots[0], dots[1], dots[-1]
    assert first[0] < last[0] < level[0]
    assert first[1] > last[1] > level[1], "up is more"
    (low, high) = sorted(
        (float(line.attrib["y1"]), float(line.attrib["y2"]))
        for line in root.iter(f"{SVG}line")
        if float(line.attrib["x1"]) == float(line.attrib["x2"]) == first[0]
    )[0]
    assert high < first[1] < low, "its interval goes through it"


def test_one_value_has_a_plot_too() -> None:
    root = ElementTree.fromstring(line_plot("one", "x", "y", {"one": [(3.0, 7.0)]}))
    assert root.tag == f"{SVG}svg"
