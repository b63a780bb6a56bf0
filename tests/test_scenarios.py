"""Every scenario of docs/benchmarks.md has a plot and JSON; those that take seconds are run."""

import json
import re
import subprocess
import sys
from importlib import import_module
from inspect import Parameter, signature
from itertools import groupby
from pathlib import Path
from typing import get_type_hints
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import SCENARIOS
from benchmarks.table import Row
from kvchat.cli.commands.bench import PROGRAMS
from kvchat.cli.main import run

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"
QUICK = ("basics", "bookkeeping")
PLOTS = {"basics-time.svg", "basics-memory.svg", "bookkeeping.svg"}
WITHOUT_CRYPTOGRAPHY = """
import runpy, sys
sys.modules["cryptography"] = None
runpy.run_module("benchmarks", run_name="__main__")
"""


def listed() -> list[str]:
    """Return the names in the page's table of scenarios."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    return re.findall(r"^\| `(\w+)` \|", page[page.index("## All scenarios") :], re.MULTILINE)


def check_plot(file: Path) -> None:
    root = ElementTree.parse(file).getroot()
    assert root.tag == f"{SVG}svg"
    drawn = [element for element in root if element.tag in (f"{SVG}rect", f"{SVG}polyline")]
    assert len(drawn) > 1, "more than the ground"


def test_the_page_lists_every_scenario_once_and_no_other() -> None:
    assert listed() == sorted({*SCENARIOS, *PROGRAMS})


@pytest.mark.parametrize("name", [name for name in listed() if name not in PROGRAMS])
def test_every_scenario_gives_figures_that_are_drawn_and_written_as_json(name: str) -> None:
    """From there on all of them go through the lines that the quick ones go through below."""
    scenario = import_module(f"benchmarks.{name}")
    parameters = signature(scenario.measure).parameters
    assert set(parameters) <= {"quick", "llama_cpp", "openvino", "svg_dir"}
    assert all(one.default is not Parameter.empty for one in parameters.values())
    assert get_type_hints(scenario.measure)["return"] == list[Row]
    assert (scenario.__doc__ or "").splitlines()[0].strip()


def test_quick_scenarios_leave_a_plot_each_and_one_object(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *QUICK, "--quick", "--json", "--svg", str(tmp_path)]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [name for name, _ in groupby(row["scenario"] for row in rows)] == [*QUICK]
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows)
    assert {file.name for file in tmp_path.iterdir()} == PLOTS
    for name in PLOTS:
        check_plot(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in listed() if name not in (*QUICK, "gpu")])
def test_every_scenario_leaves_a_plot_and_an_object(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", name, "--quick", "--json", "--svg", str(tmp_path)]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report.get(name, report)["rows"]
    [plot] = tmp_path.iterdir()
    assert plot.stem.startswith(name)
    check_plot(plot)


def test_a_scenario_that_lacks_a_package_is_left_out_with_the_reason(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-c", WITHOUT_CRYPTOGRAPHY, "encryption", "--json", str(report)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "encryption is left out" in ended.stdout
    told = json.loads(report.read_text())
    assert told["rows"] == []
    assert [*told["left_out"]] == ["encryption"]
    assert "pip install 'kvchat[encryption]'" in told["left_out"]["encryption"]
