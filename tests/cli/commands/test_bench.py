"""`kvchat bench` runs the scenarios of the source tree, and says where they are when they are not here."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import SCENARIOS
from kvchat.cli.commands.bench import BenchOptions, measure, source_tree
from kvchat.errors import KvchatError
from tests.cli.command_line import Run
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.pure

Capture = pytest.CaptureFixture[str]

MAIN = """
import json, sys
from pathlib import Path
print("table of", *sys.argv[1:], flush=True)
if "--json" in sys.argv:
    Path(sys.argv[-1]).write_text(json.dumps({"rows": sys.argv[1:-2]}))
sys.exit(3 if "failing" in sys.argv else 0)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose scenarios print what they are called with."""
    package = tmp_path / "benchmarks"
    (package / "cpu").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    for name in ("__init__.py", "cpu/__init__.py", "table.py"):
        (package / name).touch()
    for name in ("__main__.py", "cpu/__main__.py"):
        (package / name).write_text(MAIN)
    for name in ("start", "failing"):
        (package / f"{name}.py").write_text("\ndef measure():\n    pass\n")
    return tmp_path


def options(*scenarios: str, quick: bool = False, json: bool = False) -> BenchOptions:
    return BenchOptions(scenarios=list(scenarios), quick=quick, json=json)


def test_scenarios_run_in_processes_of_their_own(tree: Path, capfd: Capture) -> None:
    assert measure(options("start", "cpu", quick=True), tree) == 0
    assert capfd.readouterr().out == "table of start --quick\ntable of --quick\n"


def test_json_is_one_object_and_the_table_goes_to_standard_error(tree: Path, capfd: Capture) -> None:
    assert measure(options("start", json=True), tree) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"rows": ["start"]}
    assert "table of start" in err


def test_a_scenario_that_fails_gives_its_exit_code(tree: Path) -> None:
    assert measure(options("failing", "cpu"), tree) == 3
    with pytest.raises(KvchatError, match="exit code 3"):
        measure(options("failing", json=True), tree)


def test_an_unknown_scenario_is_refused_with_those_that_are_there(run: Run) -> None:
    code, out, err = run("bench", "start", "nonsense", "--json")
    assert code == 2
    assert json.loads(out)["event"] == "error"
    assert "no scenario is called nonsense" in err
    assert all(name in err for name in (*SCENARIOS, "cpu", "gpu"))


def test_an_installed_package_says_where_the_measurements_are(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").touch()  # somebody else's, beside all other packages
    with pytest.raises(KvchatError, match="make bench"):
        source_tree(tmp_path)


SLOW = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
BENCH = """
import sys
from pathlib import Path
from kvchat.cli.commands.bench import measure
from kvchat.cli.commands.bench import BenchOptions
given = BenchOptions(scenarios=["start", "cpu"], json="--json" in sys.argv)
sys.exit(measure(given, Path(sys.argv[1])))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_what_is_measured_with_all_that_it_has_started(tree: Path, number: int) -> None:
    (tree / "benchmarks" / "__main__.py").write_text(SLOW)
    command = [sys.executable, "-c", BENCH, str(tree)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
        assert process.stdout.read() == "", "no other scenario is begun"
    wait_until(lambda: not _is_alive(grandchild))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
