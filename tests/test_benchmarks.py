"""`kvchat bench` has scenarios for what README and docs claim of speed and size, and a plot for each."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import SCENARIOS, draw
from benchmarks.compile_cost import compile_rows, nothing_compiled
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


def test_a_scenario_without_a_plot_of_its_own_is_drawn_as_it_was_told(tmp_path: Path) -> None:
    plain = ModuleType("plain", "What it measures.\n\nMore.")
    plain.measure = lambda *, quick=False: ROWS  # type: ignore[attr-defined]
    draw("plain", plain, ROWS, tmp_path)
    assert "plain: What it measures<" in (tmp_path / "plain.svg").read_text()
    drawing = ModuleType("drawing", "What it draws.")
    drawing.measure = lambda *, svg_dir=None: ROWS  # type: ignore[attr-defined]
    draw("drawing", drawing, ROWS, tmp_path)
    assert not (tmp_path / "drawing.svg").exists(), "it draws its own"


def test_compiling_is_what_a_first_word_takes_longer_in_places_where_nothing_is_compiled(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "compiled-layers.json").write_text("{}")
    (home / "cache" / "digests.json").write_text("{}")
    asked: list[tuple[str, bool]] = []

    def first_word_s(variables: Mapping[str, str]) -> float:
        triton, cache = Path(variables["TRITON_CACHE_DIR"]), Path(variables["KVCHAT_HOME"]) / "cache"
        assert (cache / "digests.json").exists(), "what is no compiling is known"
        is_new = not triton.exists()
        assert is_new is not (cache / "compiled-layers.json").exists()
        triton.mkdir(exist_ok=True)
        (cache / "compiled-layers.json").touch()
        asked.append((str(triton), is_new))
        return 9.0 if is_new else 2.0

    rows = compile_rows(first_word_s, home, rounds=2)
    assert [row.median for row in rows] == [9.0, 2.0, 7.0]
    assert [is_new for _, is_new in asked] == [True, False, True, False]
    assert len({place for place, _ in asked}) == 2
    (row,) = nothing_compiled()
    assert row.note == "none here: no GPU"
