"""`kvchat bench` has scenarios for what README and docs claim of speed and size, and a plot for each."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import SCENARIOS
from benchmarks.cpu.plot import svg
from benchmarks.row_plot import row_plot
from benchmarks.table import Row
from kvchat.cli.commands.bench import PROGRAMS

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    Row.of("ours <b>", "s", [1.0, 2.0, 4.0]),
    Row.of("  theirs", "s", [8.0]),
    Row.of("ratio", "x", [0.0]),
    Row.of("difference", "s", [-1.0, 0.5]),
]


def claims() -> list[tuple[str, Path, list[str]]]:
    """Return each claim of docs/benchmarks.md with the page that makes it and its scenarios."""
    docs = ROOT / "docs"
    lines = (docs / "benchmarks.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| “")]
    links = [re.findall(r"\]\((\S+)\)", row[1]) for row in rows]
    return [
        (row[0].strip().strip("“”"), docs / page, re.findall(r"`(\w+)`", row[2]))
        for row, (page,) in zip(rows, links, strict=True)
    ]


def test_each_claim_stands_on_its_page_and_is_measured_by_scenarios_that_are_there() -> None:
    listed = claims()
    assert len(listed) >= 13
    for claim, page, scenarios in listed:
        assert claim in " ".join(page.read_text().split())
        assert scenarios
        assert set(scenarios) <= {*SCENARIOS, *PROGRAMS}


def test_the_programs_draw_what_they_have_measured() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())
    root = ElementTree.fromstring(svg(report))
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert len(titles) == sum(bool(rates) for row in report["rows"] for rates in row["tokens_per_s"].values())
    labels = {text.text for text in root.iter(f"{SVG}text")}
    assert {*report["engines"]} <= labels


def test_a_plot_has_a_bar_and_the_figure_of_every_row() -> None:
    root = ElementTree.fromstring(row_plot("T & U", ROWS))
    assert {element.tag for element in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "rect", "text", "line")
    }
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"T & U", "ours <b>", "2 s", "theirs", "8 s", "0 x", "-0.25 s"} <= set(words)
    widths = [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect")][1:]
    assert widths[0] == pytest.approx(widths[1] / 4), "rows of one unit share a scale"
    assert widths[2:] == [0.0, 0.0]
